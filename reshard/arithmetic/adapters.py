"""Adapter: an open LoRA adapter, with its tensors by the module that each belongs to, whichever program wrote it.

PEFT has ``adapter_config.json`` beside tensors ``base_model.model.<module>.lora_A.weight``, diffusers the same names without the beginning,
and Qwix, which MaxText uses, ``<kernel>_lora_a`` beside the kernel's name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from reshard.arguments import adapter_of
from reshard.arithmetic.lora_formula import Role
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Reader
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.safe_json import json_value, read_bytes
from reshard.patterns.compile import Pattern, compile_pattern
from reshard.storage.location import Location, locate

_ENDINGS: Mapping[str, tuple[Role, str]] = {
    ".lora_A.weight": ("a", ".weight"), ".lora_B.weight": ("b", ".weight"), ".lora_B.bias": ("bias", ".weight"),
    ".lora_embedding_A": ("a", ".weight"), ".lora_embedding_B": ("b", ".weight"),
    ".lora_magnitude_vector": ("magnitude", ".weight"), ".lora_magnitude_vector.weight": ("magnitude", ".weight"),
    ".lora.down.weight": ("a", ".weight"), ".lora.up.weight": ("b", ".weight"),
    "_lora_a": ("a", ""), "_lora_b": ("b", ""), "_lora_a.value": ("a", ".value"), "_lora_b.value": ("b", ".value"),
}  # fmt: skip
"""The ends of names, with the roles of tensors, and the end that the weight has in the base."""
_LARGEST_RANK = 1 << 20
_WRAPPED = "base_model.model."

_CONFIG, _IN_HEADER = "adapter_config.json", "lora_adapter_metadata"
_REFUSED = {"peft_type": "(?!LORA$)", "init_lora_weights": "pissa|olora|corda|loftq|lora_ga"} | dict.fromkeys(
    ("layer_replication", "use_qalora", "alora_invocation_tokens", "trainable_token_indices", "use_bdlora", "arrow_config", "kasa_config",
    "monteclora_config", "velora_config"), r"(?!(None|False|\[\]|\{\})$)",
)  # fmt: skip
"""Options of PEFT, with values under which a merged weight is more than a product: some initialisations took a part out of the base."""


class PeftConfig(Struct, frozen=True):
    """The members of ``adapter_config.json`` that a merge depends on; patterns are of the ends of modules' names."""

    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    fan_in_fan_out: bool = False
    target_parameters: list[str] | None = None


Configs = Mapping[str, PeftConfig]
Tensors = dict[Role, str]


class AdapterModule(Struct, frozen=True):
    """A module that an adapter changes.

    Attributes:
        name: as the base should have it, with "." between parts.
        ending: of its weight there; only PEFT and diffusers have ".weight".
        tensors: the names of its tensors in the adapter, by role.
        rank: of the product of the factors.
        scale: of the product, with the user's.
    """

    name: str
    ending: str
    tensors: Tensors
    config: PeftConfig
    rank: int
    scale: float


class LoraAdapter(Struct, frozen=True):
    """An open adapter.

    Attributes:
        plain: the names of tensors that replace those of the base, by the name there.
    """

    reader: Reader
    modules: Sequence[AdapterModule]
    plain: Mapping[str, str]
    is_peft: bool


class AdapterPath(Struct, frozen=True):
    """An adapter that a call names, and the scale that the user gave; None for none."""

    root: Location
    scale: float | None = None

    @classmethod
    def parsed(cls, text: str) -> AdapterPath:
        """From ``ADAPTER`` or ``ADAPTER=SCALE``. PlanError for a scale that is not finite."""
        path, scale = adapter_of(text)
        if scale is not None and not math.isfinite(scale):
            raise PlanError(f"the scale of {text!r} should be a finite number (lora)")
        return cls(locate(path), scale)

    def named(self, place: str) -> str:
        """The text that asks for it, with that name of its place."""
        return place if self.scale is None else f"{place}={self.scale!r}"

    def open(self) -> LoraAdapter:
        """The open adapter. Raises FormatError, naming what is not understood; PlanError for a scale that is missing."""
        place = str(self.root)
        reader = open_reader(CheckpointPath.at(place))
        file = (self.root if self.root.is_folder() else self.root.parent) / _CONFIG
        is_peft = file.is_file()
        plain: dict[str, str] = {}
        found: dict[tuple[str, str], Tensors] = {}
        for name in reader.tensors:
            dotted = name.replace("/", ".")
            ending = next(filter(dotted.endswith, _ENDINGS), "")
            stem = dotted.removesuffix(ending).removeprefix(_WRAPPED)
            if ending:
                role, rest = _ENDINGS[ending]
                other = found.setdefault((stem, rest), {}).setdefault(role, name)
            elif is_peft and name.startswith(_WRAPPED):
                other = plain.setdefault(stem.replace(".base_layer", ""), name)
            else:
                raise FormatError(
                    f"{place} has {name!r}, which is no tensor of an adapter: expected names that end in {', '.join(_ENDINGS)}; give the folder of "
                    "an adapter (lora)"
                )
            if other != name:
                raise FormatError(
                    f"{place} has both {other!r} and {name!r}; remove the one that is not meant"
                )
        if not found and not plain:
            raise FormatError(f"{place} has no tensors; give the folder of an adapter (lora)")
        configs = _read_configs(file, reader)
        modules = [self._module(reader, *key, each, configs) for key, each in found.items()]
        return LoraAdapter(reader, modules, plain, is_peft)

    def _module(
        self, reader: Reader, stem: str, ending: str, tensors: Tensors, configs: Configs
    ) -> AdapterModule:
        """A module, by its name in the adapter. FormatError where a factor is missing, or rank or scale make no sense."""
        if lacking := sorted({"a", "b"} - tensors.keys()):
            raise FormatError(
                f"{self.root} has {next(iter(tensors.values()))!r}, but not the factor {lacking[0].upper()} of {stem!r}; restore the adapter from a "
                "copy"
            )
        name = stem.replace(".base_layer", "")
        config = configs.get(name.partition(".")[0]) or configs.get("")
        if config is None:
            if ending != ".weight" and self.scale is None:
                raise PlanError(
                    f"{self.root} stores no scale: alpha / rank is a flag of its training; write it behind the adapter: {self.root}=SCALE (lora)"
                )
            shape = reader.tensors[tensors["a"]].spec.shape or (0,)
            rank = shape[0 if ending == ".weight" else -1]
            config = PeftConfig(rank, rank)
        rank = int(_matching(config.rank_pattern, name, config.r))
        alpha = _matching(config.alpha_pattern, name, config.lora_alpha)
        size = min(max(1, rank), _LARGEST_RANK)  # others are refused below
        scale = alpha / (math.sqrt(size) if config.use_rslora else size)
        scale *= 1 if self.scale is None else self.scale
        if not (0 < rank <= _LARGEST_RANK and math.isfinite(scale)):
            raise FormatError(
                f"{self.root} has the rank {rank} and the scale {scale} for {name!r}: expected a rank of 1 to {_LARGEST_RANK:,}, and a finite scale; "
                "restore the adapter from a copy"
            )
        return AdapterModule(name, ending, tensors, config, rank, scale)


def _read_configs(file: Location, reader: Reader) -> dict[str, PeftConfig]:
    """The configs beside an adapter, or in the header of its file, by the prefixes of their members; none where it has none."""
    where, text = (
        f"{_IN_HEADER} in the header of {reader.uri}",
        reader.metadata.header.get(_IN_HEADER, "{}").encode(),
    )
    if file.is_file():
        where, text = str(file), read_bytes(file)
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    try:
        for key, value in msgspec.convert(json_value(text, where), dict[str, Any]).items():
            prefix, _, member = key.rpartition(".")
            if re.match(_REFUSED.get(member, "(?!)"), str(value)):
                raise FormatError(
                    f"{where} has {member}: {str(value)[:60]}, so that a merged weight is more than the base and a product of two factors; merge it "
                    "with peft"
                )
            found[prefix][member] = value
        return {prefix: msgspec.convert(found[prefix], PeftConfig) for prefix in found}
    except msgspec.ValidationError as error:
        raise FormatError(f"{where} is no config of an adapter: {error}") from None


def _matching(patterns: Mapping[str, float] | None, module: str, otherwise: float) -> float:
    """The value of the first pattern that matches the end of a name, as peft does."""
    each = (patterns or {}).items()
    return next((v for pattern, v in each if _compiled(pattern).search(module)), otherwise)


@lru_cache(maxsize=1024)  # each is compared with every module
def _compiled(pattern: str) -> Pattern:
    return compile_pattern(
        rf"^(.*\.)?({pattern})$", f"the pattern {pattern[:60]!r} of {_CONFIG}", FormatError
    )
