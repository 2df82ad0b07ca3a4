"""Quantized: the tensors of a checkpoint that hold codes, each with the tensors that say what the codes mean.

A pair is found by the dtype of the codes, the names of both and their shapes, from metadata alone. A config beside the weights
gives the size of blocks where shapes leave it open: 5 scales for 576 rows may be blocks of 116 to 143 rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from reshard.errors import ReshardError
from reshard.formats.base import Reader
from reshard.formats.json.safe_json import json_value, read_bytes
from reshard.formats.quantized.blocks import ONLY_CODES, CodesShape, form_of_pair
from reshard.formats.quantized.schemes import LOW_DTYPES, NamedPair, named_pairs
from reshard.geometry.dtypes import DTYPES, PACKED
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.location import locate

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
    def halves(self) -> tuple[str, ...]:
        """The names of the codes and of their companions."""
        return (self.name, *self.companions.values())


class Quantized(Struct, frozen=True):
    """The quantised weights of a checkpoint.

    Attributes:
        pairs: by the names of their codes.
        plain: the number of tensors that are in no pair.
        bare: tensors of codes that the config calls quantised, but that have no scale.
    """

    pairs: Mapping[str, QuantizedPair]
    plain: int
    bare: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text in inspect and plan; "" where there is no pair."""
        kinds = Counter(pair.scheme for pair in self.pairs.values()).items()
        texts = [f"{kind}: {n:,} weight{'s' * (n > 1)} with scales" for kind, n in kinds]
        return f"{'; '.join(texts)}, {self.plain:,} as they are" if texts else ""


_CODES = frozenset(d for d in (*DTYPES, *PACKED) if d.startswith((*LOW_DTYPES, "int32", "uint32")))


def quantization(reader: Reader) -> Quantized | None:
    """The quantised weights of an open checkpoint; None where there are none. The config beside it is read only if it may matter."""
    return find_pairs({n: t.spec for n, t in reader.tensors.items()}, lambda: _config(reader.uri))


def find_pairs(
    specs: Mapping[str, TensorSpec], config: Callable[[], Config | None] = lambda: None
) -> Quantized | None:
    """The pairs among tensors; None where there are neither pairs nor codes that the config calls quantised.

    ``config`` gives the part of the model's config about quantisation, and is called once if a tensor may hold codes.
    """
    candidates = [spec for spec in specs.values() if spec.dtype in _CODES]
    found = list(named_pairs(candidates, specs)) if candidates else []
    bare = [spec.name for spec in candidates if spec.dtype in ONLY_CODES]
    if not found and not bare:
        return None
    document = config()
    fitting = (_pair_of(named, specs, document or {}) for named in found)
    pairs = {pair.name: pair for pair in fitting if pair is not None}
    halves = set(pairs).union(*(pair.companions.values() for pair in pairs.values()))
    bare = [name for name in bare if name not in halves] if document is not None else []
    return Quantized(pairs, len(specs) - len(halves), tuple(bare)) if pairs or bare else None


def _pair_of(
    named: NamedPair, specs: Mapping[str, TensorSpec], config: Config
) -> QuantizedPair | None:
    codes, scheme, names = named.codes, named.scheme, named.names
    scale, zeros = specs[names["scale"]], specs.get(names.get("zero_point", ""))
    is_nvfp4 = "global_scale" in names and codes.dtype == "uint8"
    form = form_of_pair(
        (codes.dtype, scale.dtype),
        codes.shape,
        scale.shape,
        None if zeros is None else zeros.shape,
        scheme.title or ("nvfp4" if is_nvfp4 else ""),
        _said(config),
        scheme.is_exact,
        "group_index" in names and config.get("desc_act") is not False,
    )
    stem = codes.name.removesuffix(scheme.ending)
    return None if form is None else QuantizedPair(codes.name, form[0], names, form[1], stem)


def _said(config: Config) -> CodesShape:
    """The rows and columns of a block in a config; () where it has none, or invalid ones."""
    found = config.get("weight_block_size")
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            found = weights.get("block_structure", found)
    sizes = found if isinstance(found, list) else []
    fit = len(sizes) == 2 and all(type(n) is int and 0 < n < 1 << 31 for n in sizes)
    return tuple(sizes) if fit else ()


def _config(uri: str) -> Config | None:
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
