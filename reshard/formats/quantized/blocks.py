"""Blocks: how many codes share a scale along each dimension, from the shapes of both."""

from __future__ import annotations

import math
from functools import lru_cache

from reshard.formats.quantized.schemes import TORCHAO
from reshard.geometry.dtypes import DTYPES, PACKED

CodesShape = tuple[int, ...]

ONLY_CODES = frozenset(d for d in DTYPES if d.startswith("float8") and d != "float8_e8m0fnu")
_OF_SCALES = ("float", "bfloat", "uint8")
_BYTE_EXPONENTS = ("uint8", "float8_e8m0fnu")
"""Scales that are powers of two, as in the MX formats."""
_WORDS = ("int32", "uint32", "uint8")
"""Elements that hold several codes."""
_TWO_IN_A_BYTE = ("nvfp4", "mxfp4")


@lru_cache(maxsize=4096)  # the layers of a model repeat their shapes
def form_of_pair(
    dtypes: tuple[str, str],
    codes: CodesShape,
    scale: CodesShape,
    zeros: CodesShape | None,
    title: str,
    said: CodesShape,
    is_exact: bool,
    has_groups: bool,
) -> tuple[str, CodesShape] | None:
    """The scheme and the grain of a pair; None where codes and scale do not fit: two tensors may be called so by chance."""
    tile = _tile_of_pair(dtypes[0], codes, scale, title, said, is_exact)
    is_sure = title != "" or dtypes[0] in ONLY_CODES  # that these tensors belong together
    if not (tile or is_sure) or not dtypes[1].startswith(_OF_SCALES):
        return None
    if tile is None:
        return title or f"{_kind(dtypes[0])}, blocks of unknown form", codes  # never cut
    zeros_tile = None if zeros is None else _tile(codes, zeros, (), is_exact)
    groups = (scale if len(scale) == len(codes) else (0,) * len(codes)) if has_groups else codes
    return _words(dtypes, title, tile), _grain(codes, tile, zeros_tile or tile, groups)


def _grain(
    codes: CodesShape, tile: CodesShape, zeros_tile: CodesShape, groups: CodesShape
) -> CodesShape:
    """The codes that stay together along each dimension.

    Zero points are packed along another dimension than codes; groups of any order leave whole each dimension that they differ along.
    """
    whole = tuple(0 if a == b else a for a, b in zip(codes, groups, strict=True))
    sides = zip(tile, zeros_tile, whole, strict=True)
    return tuple(math.lcm(*(size or 1 for size in sizes)) for sizes in sides)


def _tile_of_pair(
    dtype: str,
    codes: CodesShape,
    scale: CodesShape,
    title: str,
    said: CodesShape,
    is_exact: bool,
) -> CodesShape | None:
    if title == TORCHAO:
        return None
    tile = _tile(codes, scale, () if dtype in _WORDS else said, is_exact)
    if (
        title == "mxfp4" and tile is not None
    ):  # gpt-oss: the last dimension has the codes of a block
        return (*tile[:-1], codes[-1])
    return tile


def _words(dtypes: tuple[str, str], title: str, tile: CodesShape) -> str:
    """The kind of codes, and how many share a scale where an element's number of codes is known."""
    dtype, scale_dtype = dtypes
    if not title and dtype in _WORDS:
        is_mx = dtype == "uint8" and scale_dtype in _BYTE_EXPONENTS
        title = "mxfp4" if is_mx else "packed integers"
    title = title or _kind(dtype)
    if dtype in _WORDS:
        return f"{title}, {_blocks(tile, 2)}" if title in _TWO_IN_A_BYTE else title
    return f"{title}, {_blocks(tile, PACKED.get(dtype, (1,))[0])}"


def _kind(dtype: str) -> str:
    """A dtype of codes in words.

    >>> _kind("float8_e4m3fn"), _kind("int8")
    ('fp8', 'int8')
    """
    return dtype.partition("_")[0].replace("float", "fp")


def _tile(
    codes: CodesShape, scale: CodesShape, said: CodesShape, is_exact: bool
) -> CodesShape | None:
    """The number of codes that share a scale along each dimension, 0 for all of them; None where the shapes do not fit."""
    if len(scale) == len(codes):
        sizes = (0,) * (len(codes) - len(said)) + said[-len(codes) :] if codes else ()
        tile = tuple(_along(*sides, is_exact) for sides in zip(codes, scale, sizes, strict=True))
        return None if -1 in tile else tile
    if math.prod(scale) == 1:
        return (0,) * len(codes)
    if scale == codes[:-1]:
        return (*(1,) * len(scale), 0)
    return _tile_of_list(codes, scale[0]) if len(scale) == 1 else None


def _tile_of_list(codes: CodesShape, scales: int) -> CodesShape | None:
    """The same for scales in one dimension: of each row or column, or of stretches of a flat tensor."""
    if scales in codes:
        which = codes.index(scales)
        return tuple(int(dim == which) for dim in range(len(codes)))
    long = [dim for dim, size in enumerate(codes) if size > 1]
    if len(long) != 1 or not 0 < scales < codes[long[0]]:
        return None
    size = -(-codes[long[0]] // scales)
    return tuple(size if dim == long[0] else 0 for dim in range(len(codes)))


def _along(codes: int, scales: int, said: int, is_exact: bool) -> int:
    """The number of codes that share a scale along a dimension, 0 for all of them; -1 where the sizes do not fit."""
    if scales == codes or (codes and scales > codes and scales % codes == 0):
        return 1  # the element of a packed tensor may have several scales
    if scales < 1 or codes < 1 or scales > codes:
        return -1
    if said and -(-codes // said) == scales:
        return said
    if scales == 1:
        return 0
    size = 1 << (-(-codes // scales) - 1).bit_length()  # the only power of two that can be a block
    if not is_exact and -(-codes // size) == scales:
        return size
    return codes // scales if codes % scales == 0 else -1


def _blocks(tile: CodesShape, factor: int) -> str:
    """The codes that share a scale, in words; an element of the last dimension holds ``factor`` of them.

    >>> _blocks((128, 128), 1), _blocks((1, 0), 1), _blocks((0, 0), 1), _blocks((1, 8), 2)
    ('blocks of 128×128', 'a scale for each channel', 'a scale for each', 'blocks of 16')
    """
    sizes = [size * (factor if dim == len(tile) - 1 else 1) for dim, size in enumerate(tile)]
    blocks = [size for size in sizes if size > 1]
    if blocks:
        return f"blocks of {'×'.join(map(str, blocks))}"
    return "a scale for each channel" if any(sizes) else "a scale for each"
