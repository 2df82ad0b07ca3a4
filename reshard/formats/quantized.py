"""Quantized: the tensors of a checkpoint that hold codes, each with the tensors that say what the codes mean.

A pair is found by the dtype of the codes, the names of both and their shapes, from metadata alone. A scheme is the way in which a program
names them. Blocks, the codes that share a scale along each dimension, follow from the shapes of both. A config beside the weights
gives the size of blocks where shapes leave it open: 5 scales for 576 rows may be blocks of 116 to 143 rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.errors import ReshardError
from reshard.formats.base import Reader
from reshard.formats.safe_json import json_value, read_bytes
from reshard.geometry.dtypes import DTYPES, PACKED
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate


class NamingScheme(Struct, frozen=True):
    """A way to name codes and companions.

    Attributes:
        ending: of the names of codes; the stem is before it.
        dtypes: the prefixes of the dtypes of codes.
        companions: roles by the endings of the names of companions, behind the stem. One of role "scale" must be there.
        title: in words; "" for one that follows from dtypes.
        is_exact: True if every scale has equally many codes.
    """

    ending: str
    dtypes: tuple[str, ...]
    companions: Mapping[str, str]
    title: str = ""
    is_exact: bool = False


LOW_DTYPES = ("float8", "float6_", "float4", "int2", "int4", "int8", "uint2", "uint4", "uint8")
_OF_LAYER = {
    "input_scale": "input_scale", "activation_scale": "input_scale", "act_scale": "input_scale",
    "input_global_scale": "input_global_scale", "input_zero_point": "input_zero_point",
}  # fmt: skip
_OF_WEIGHT = {
    "_scale_inv": "scale", "_scale": "scale", "_scale_2": "global_scale", "_global_scale": "global_scale",
    "_zero_point": "zero_point", "_shape": "shape", "_g_idx": "group_index",
}  # fmt: skip
_OF_PARTS = {"_scale": "scale", "_zero_point": "zero_point", "_per_tensor_scale": "global_scale"}
_OF_LINEAR = {f"weight{ending}": role for ending, role in _OF_WEIGHT.items()} | _OF_LAYER
TORCHAO = "packed by torchao"
"""Its scales may be transposed or swizzled."""

SCHEMES = (
    # compressed-tensors
    NamingScheme("weight_packed", ("int32", "uint8"), _OF_LINEAR),
    NamingScheme("_packed", ("int32", "uint8"), _OF_WEIGHT),
    # AWQ, GPTQ
    NamingScheme("qweight", ("int32",), {"scales": "scale", "qzeros": "zero_point", "g_idx": "group_index"}, "AWQ or GPTQ"),
    # MLX, and the same in transformers
    NamingScheme("weight", ("uint32",), {"scales": "scale", "biases": "zero_point", "qbiases": "zero_point"}, "MLX"),
    # gpt-oss
    NamingScheme("_blocks", ("uint8",), {"_scales": "scale"}, "mxfp4"),
    # Qwix; AQT keeps a list of scales
    *(
        NamingScheme(f"{sep}qvalue", LOW_DTYPES, {
            f"{sep}scale": "scale", f"{sep}scale{sep}0": "scale", f"{sep}scale{sep}1": "scale_1",
            f"{sep}scale_t{sep}0": "scale_t", f"{sep}zero_point": "zero_point",
        }, is_exact=True)
        for sep in "/."
    ),
    # bitsandbytes
    *(
        NamingScheme("", ("uint8",), {
            f"{sep}absmax": "scale", f"{sep}quant_map": "code", f"{sep}nested_absmax": "nested_scale",
            f"{sep}nested_quant_map": "nested_code", f"{sep}quant_state{sep}bitsandbytes__nf4": "state",
            f"{sep}quant_state{sep}bitsandbytes__fp4": "state",
        }, "4 bits of bitsandbytes")
        for sep in "./"
    ),
    NamingScheme("weight", ("int8",), {"SCB": "scale", "weight_format": "format"}, "int8 of bitsandbytes"),
    # torchao and quanto, whose tensors of several parts are taken apart
    NamingScheme("_qdata", ("uint8", "int32"), _OF_PARTS, TORCHAO),
    NamingScheme("_qdata", LOW_DTYPES, _OF_PARTS),
    *(NamingScheme(f"{sep}_data", LOW_DTYPES, {f"{sep}_scale": "scale", f"{sep}_shift": "zero_point"}) for sep in "./"),
    # ComfyUI, EETQ
    NamingScheme("weight", LOW_DTYPES, {"scale_weight": "scale", "scale_input": "input_scale"}),
    NamingScheme("weight", ("int8",), {"weight_scales": "scale"}),
    # fp8 and int8 of Hugging Face, compressed-tensors and ModelOpt, and DeepSeek's own names
    NamingScheme("weight", LOW_DTYPES, _OF_LINEAR),
    NamingScheme("weight", LOW_DTYPES, {"scale": "scale", **_OF_LAYER}),
    # experts in one tensor
    NamingScheme("", LOW_DTYPES, {**_OF_WEIGHT, "_input_scale": "input_scale"}),
    # the same of ModelOpt
    NamingScheme("", LOW_DTYPES, {"_weight_scale": "scale", "_weight_scale_2": "global_scale", "_input_scale": "input_scale"}),
)  # fmt: skip
"""The ways in which programs name codes and their companions, in the order in which they are tried."""


def named_pairs(
    candidates: Iterable[TensorSpec], specs: Mapping[str, TensorSpec]
) -> Iterator[tuple[TensorSpec, NamingScheme, Mapping[str, str]]]:
    """The tensors that may be codes, each with the first scheme that names a scale, and the companions by role; shapes may still not fit."""
    possible = _possible(specs)
    for spec in candidates:
        for scheme in possible:
            if spec.name.endswith(scheme.ending) and spec.dtype.startswith(scheme.dtypes):
                names = _companions(spec.name.removesuffix(scheme.ending), scheme, specs)
                if "scale" in names:
                    yield spec, scheme, names
                    break


def _possible(names: Iterable[str]) -> list[NamingScheme]:
    """The schemes with a possible scale among the names, each with its possible companions: most of 100,000 tensors need one look."""
    lasts = {name[max(name.rfind("."), name.rfind("/")) + 1 :] for name in names}
    text = "\n".join([*lasts, ""])
    found = []
    for scheme in SCHEMES:
        companions = {
            ending: role
            for ending, role in scheme.companions.items()
            if f"{ending[max(ending.rfind('.'), ending.rfind('/')) + 1 :]}\n" in text
        }
        if "scale" in companions.values():
            found.append(replace(scheme, companions=companions))
    return found


def _companions(stem: str, scheme: NamingScheme, specs: Mapping[str, TensorSpec]) -> dict[str, str]:
    """The names of the companions of codes, by role."""
    found: dict[str, str] = {}
    for ending, role in scheme.companions.items():
        if (name := stem + ending) in specs:
            found[ending.strip("_./") if role in found else role] = name
    return found


CodesShape = tuple[int, ...]

ONLY_CODES = frozenset(d for d in DTYPES if d.startswith("float8") and d != "float8_e8m0fnu")
_OF_SCALES = ("float", "bfloat", "uint8")
_BYTE_EXPONENTS = ("uint8", "float8_e8m0fnu")
"""Scales that are powers of two, as in the MX formats."""
WORDS = ("int32", "uint32", "uint8")
"""The dtypes of elements that hold several codes."""
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
    tile = None if title == TORCHAO else _tile(codes, scale, () if dtypes[0] in WORDS else said, is_exact)  # fmt: skip
    if title == "mxfp4" and tile is not None:
        tile = (*tile[:-1], codes[-1])  # gpt-oss: the last dimension has the codes of a block
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


def _words(dtypes: tuple[str, str], title: str, tile: CodesShape) -> str:
    """The kind of codes, and how many share a scale where an element's number of codes is known."""
    dtype, scale_dtype = dtypes
    is_mx = dtype == "uint8" and scale_dtype in _BYTE_EXPONENTS
    title = title or ("mxfp4" if is_mx else "packed integers" if dtype in WORDS else _kind(dtype))
    if dtype in WORDS and title not in _TWO_IN_A_BYTE:
        return title
    return f"{title}, {_blocks(tile, 2 if dtype in WORDS else PACKED.get(dtype, (1,))[0])}"


def _kind(dtype: str) -> str:
    """A dtype of codes in words.

    >>> _kind("float8_e4m3fn"), _kind("int8")
    ('fp8', 'int8')
    """
    return dtype.partition("_")[0].replace("float", "fp")


@lru_cache(maxsize=4096)
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
    if len(scale) == 1:
        return _tile_of_list(codes, scale[0])
    is_lower = len(scale) < len(codes)  # a scale is then for all of the last dimensions
    return (
        _tile(codes, (*scale, *(1,) * (len(codes) - len(scale))), said, is_exact)
        if is_lower
        else None
    )


def _tile_of_list(codes: CodesShape, scales: int) -> CodesShape | None:
    """The same for scales in one dimension: of each row or column, or of stretches of a flat tensor."""
    long = [dim for dim, size in enumerate(codes) if size > 1]
    if scales not in codes and (len(long) != 1 or not 0 < scales < codes[long[0]]):
        return None
    which = codes.index(scales) if scales in codes else long[0]
    size = -(-codes[which] // max(1, scales))
    return tuple(size if dim == which else 0 for dim in range(len(codes)))


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


def companion_tile(
    pair: QuantizedPair, role: str, codes: TensorSpec, companion: TensorSpec
) -> CodesShape | None:
    """The codes that share an element of a companion along each dimension, 0 for all of them.

    None for a companion that has no part for a part of the codes, such as an order or a shape.
    """
    if pair.scheme == TORCHAO or not role.startswith(("scale", "zero_point")):
        return None
    return _tile(codes.shape, companion.shape, pair.grain, is_exact=False)


def companion_axes(
    pair: QuantizedPair, role: str, codes: TensorSpec, companion: TensorSpec
) -> tuple[int | None, ...]:
    """The dimension of the codes that each dimension of a companion belongs to; None for one that is for all codes."""
    tile, rank = companion_tile(pair, role, codes, companion) or (), len(companion.shape)
    is_list = rank == 1 < len(tile)
    own = tuple(dim if size else None for dim, size in enumerate(tile) if size or not is_list)
    return (*own[:rank], *(None,) * (rank - len(own)))


def _blocks(tile: CodesShape, factor: int) -> str:
    """The codes that share a scale, in words; an element holds ``factor`` of them along the last dimension that has blocks.

    >>> _blocks((128, 128), 1), _blocks((1, 0), 1), _blocks((0, 0), 1), _blocks((1, 8), 2)
    ('blocks of 128×128', 'a scale for each channel', 'a scale for each', 'blocks of 16')
    """
    last = max((dim for dim, size in enumerate(tile) if size > 1), default=0)
    sizes = [size * (factor if dim == last else 1) for dim, size in enumerate(tile)]
    blocks = [size for size in sizes if size > 1]
    if blocks:
        return f"blocks of {'×'.join(map(str, blocks))}"
    return "a scale for each channel" if any(sizes) else "a scale for each"


Config = Mapping[str, Any]

MAX_CONFIG_BYTES = 16 << 20
"""A config takes some kilobytes; one that lists every layer that is left alone takes some hundred."""

_CONFIGS = {"config.json": "quantization_config", "hf_quant_config.json": "quantization"}
_SHOWN = 3


class QuantizedPair(Struct, frozen=True, gc=False):
    """A tensor of codes, and its companions.

    Attributes:
        name: of the codes.
        scheme: the kind of the codes, and the number that share a scale, in words.
        companions: the names of the other tensors by role: "scale", "global_scale", "zero_point", "shape", "group_index",
            "input_scale", "code", "state"; where several have one role, the others by the end of their names.
        grain: along each dimension of the codes, the elements that must stay together: a cut at a multiple parts no block.
        stem: the beginning of all names.
    """

    name: str
    scheme: str
    companions: Mapping[str, str]
    grain: CodesShape
    stem: str

    @property
    def kind(self) -> str:
        """The kind of codes, in words: ``scheme`` without its blocks."""
        return self.scheme.partition(",")[0]

    @property
    def halves(self) -> tuple[str, ...]:
        """The names of the codes and of their companions."""
        return (self.name, *self.companions.values())


class Quantized(Struct, frozen=True):
    """The quantised weights of a checkpoint.

    Attributes:
        pairs: by the names of their codes.
        plain: the number of tensors that are in no pair.
        bare: tensors of codes that the config calls quantised, but that have no scale.
        config: the part of the model's config about quantisation.
    """

    pairs: Mapping[str, QuantizedPair]
    plain: int
    bare: tuple[str, ...] = ()
    config: Config | None = None

    @property
    def text(self) -> str:
        """The text in inspect and plan; "" where there is no pair."""
        kinds = Counter(pair.scheme for pair in self.pairs.values()).items()
        texts = [f"{kind}: {n:,} weight{'s' * (n > 1)} with scales" for kind, n in kinds]
        return f"{'; '.join(texts)}, {self.plain:,} as they are" if texts else ""


CODES = frozenset(d for d in (*DTYPES, *PACKED) if d.startswith((*LOW_DTYPES, "int32", "uint32")))
"""The dtypes of tensors that may hold codes."""


def quantization(reader: Reader) -> Quantized | None:
    """The quantised weights of an open checkpoint; None where there are none. The config beside it is read only if it may matter."""
    return find_pairs(
        {n: t.spec for n, t in reader.tensors.items()}, lambda: quantization_config(reader.uri)
    )


def find_pairs(
    specs: Mapping[str, TensorSpec], config: Callable[[], Config | None] = lambda: None
) -> Quantized | None:
    """The pairs among tensors; None where there are neither pairs nor codes that the config calls quantised.

    ``config`` gives the part of the model's config about quantisation, and is called once if a tensor may hold codes.
    """
    candidates = [spec for spec in specs.values() if spec.dtype in CODES]
    named = list(named_pairs(candidates, specs)) if candidates else []
    bare = [spec.name for spec in candidates if spec.dtype in ONLY_CODES]
    if not named and not bare:
        return None
    document = config()
    fitting = (_pair_of(*each, specs, document or {}) for each in named)
    pairs = {pair.name: pair for pair in fitting if pair is not None}
    halves = set(pairs).union(*(pair.companions.values() for pair in pairs.values()))
    bare = [name for name in bare if name not in halves] if document is not None else []
    found = Quantized(pairs, len(specs) - len(halves), tuple(bare), document)
    return found if pairs or bare else None


def _pair_of(
    codes: TensorSpec,
    scheme: NamingScheme,
    names: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    config: Config,
) -> QuantizedPair | None:
    scale, zeros = specs[names["scale"]], specs.get(names.get("zero_point", ""))
    is_nvfp4 = "global_scale" in names and codes.dtype == "uint8"
    form = form_of_pair(
        (codes.dtype, scale.dtype), codes.shape, scale.shape, None if zeros is None else zeros.shape, scheme.title or ("nvfp4" if is_nvfp4 else ""),
        _said(config), scheme.is_exact, "group_index" in names and config.get("desc_act") is not False,
    )  # fmt: skip
    stem = codes.name.removesuffix(scheme.ending)
    return None if form is None else QuantizedPair(codes.name, form[0], names, form[1], stem)


def config_groups(config: Config, part: str = "") -> dict[str, Config]:
    """The groups of a config by name, or a part of each that has it."""
    groups = config.get("config_groups")
    found = groups.items() if isinstance(groups, Mapping) else ()
    members = {n: g.get(part) if part else g for n, g in found if isinstance(g, Mapping)}
    return {name: each for name, each in members.items() if isinstance(each, Mapping)}


def _said(config: Config) -> CodesShape:
    """The rows and columns of a block in a config; () where it has none, or invalid ones."""
    found = config.get("weight_block_size")
    for weights in config_groups(config, "weights").values():
        found = weights.get("block_structure", found)
    sizes = found if isinstance(found, list) else []
    fit = len(sizes) == 2 and all(type(n) is int and 0 < n < 1 << 31 for n in sizes)
    return tuple(sizes) if fit else ()


def quantization_config(uri: str) -> Config | None:
    """The part about quantisation in the config beside a checkpoint; None where there is none, or none that can be read.

    It only helps: a copy of the tensors needs no config, and damage in it is no reason to refuse one.
    """
    try:
        place = locate(uri)
        folder = (place if place.is_folder() else place.parent).view()
        for name, member in _CONFIGS.items():
            file = folder / name
            document = json_value(read_bytes(file, MAX_CONFIG_BYTES), str(file)) if file.is_file() else {}  # fmt: skip
            inner = document.get("text_config") if isinstance(document, Mapping) else None
            for holder in (document, inner):
                found = holder.get(member) if isinstance(holder, Mapping) else None
                if isinstance(found, Mapping):
                    return found
    except ReshardError:
        pass
    return None


def bare_warnings(found: Quantized | None) -> Iterator[str]:
    """One sentence where codes have no scale."""
    if found is not None and found.bare:
        some = ", ".join(map(repr, found.bare[:_SHOWN])) + ", …" * (len(found.bare) > _SHOWN)
        one = len(found.bare) == 1
        yield (
            f"{len(found.bare):,} tensor{' holds' if one else 's hold'} codes ({some}), and the config calls the weights quantised, but the "
            f"checkpoint has no scale{'' if one else 's'} for {'it' if one else 'them'}; look for files that are missing"
        )
