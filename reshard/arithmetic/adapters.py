"""Adapter: an open LoRA adapter, with its tensors by the module that each belongs to, whichever program wrote it.

PEFT has ``adapter_config.json`` beside tensors ``base_model.model.<module>.lora_A.weight``, diffusers the same names without the beginning,
kohya ``lora_unet_<module>.lora_down.weight`` with ``.alpha``, and Qwix, which MaxText uses, ``<kernel>_lora_a`` beside the kernel's name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from reshard.arguments import adapter_of
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Reader
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.safe_json import json_value, read_bytes
from reshard.patterns.compile import Pattern, compile_pattern
from reshard.storage.location import Location, locate, real_text

Dialect = Literal["peft", "diffusers", "qwix"]
"""The programs that write adapters of one form."""

Role = Literal["a", "b", "bias", "alpha", "magnitude"]

_ENDINGS: Mapping[str, Role] = {
    ".lora_A.weight": "a", ".lora_B.weight": "b", ".lora_B.bias": "bias",
    ".lora_embedding_A": "a", ".lora_embedding_B": "b",
    ".lora_magnitude_vector": "magnitude", ".lora_magnitude_vector.weight": "magnitude",
    ".lora_down.weight": "a", ".lora_up.weight": "b", ".lora.down.weight": "a", ".lora.up.weight": "b", ".alpha": "alpha",
}  # fmt: skip
_OF_QWIX: Mapping[str, Role] = {"_lora_a": "a", "_lora_b": "b"}
_LARGEST_RANK = 1 << 20
_WRAPPED = "base_model.model."

_CONFIG, _IN_HEADER = "adapter_config.json", "lora_adapter_metadata"
_REFUSED = (
    "layer_replication", "use_qalora", "alora_invocation_tokens", "trainable_token_indices", "use_bdlora", "arrow_config", "kasa_config",
    "monteclora_config", "velora_config",
)  # fmt: skip
"""Options of PEFT under which a merged weight is more than one product."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that took a part out of the base; a config that peft has converted has others."""


class PeftConfig(Struct, frozen=True):
    """The members of ``adapter_config.json`` that a merge depends on; patterns are of the ends of modules' names."""

    peft_type: str = "LORA"
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    fan_in_fan_out: bool = False
    target_parameters: list[str] | None = None
    init_lora_weights: bool | str | None = True


class AdapterModule(Struct, frozen=True):
    """A module that an adapter changes.

    Attributes:
        name: as the base should have it, with "." between parts.
        tensors: the names of its tensors in the adapter, by role.
        config: the defaults, for an adapter that has none.
        rank: of the product of the factors.
        scale: of the product, with the user's; without ``alpha`` where that is a tensor.
    """

    name: str
    tensors: Mapping[Role, str]
    config: PeftConfig
    rank: int
    scale: float

    @property
    def is_embedding(self) -> bool:
        return "_embedding_" in self.tensors["a"][-len(".lora_embedding_A") :]


class LoraAdapter(Struct, frozen=True):
    """An open adapter.

    Attributes:
        place: as the user named it.
        plain: the names of tensors that replace those of the base, by the name there.
    """

    place: str
    reader: Reader
    modules: Sequence[AdapterModule]
    plain: Mapping[str, str]
    dialect: Dialect


class AdapterPath(Struct, frozen=True):
    """An adapter that a call names, ``given`` from any folder, and the scale that the user gave; None for none."""

    given: str
    path: str
    root: Location
    scale: float | None = None

    @classmethod
    def parsed(cls, text: str) -> AdapterPath:
        """From ``ADAPTER`` or ``ADAPTER=SCALE``. PlanError for a scale that is not finite."""
        path, scale = adapter_of(text)
        if scale is not None and not math.isfinite(scale):
            raise PlanError(f"the scale of {text!r} should be a finite number (lora)")
        root = locate(path)
        return cls(str(root) + text.removeprefix(path), path, root, scale)

    @property
    def text(self) -> str:
        """The same for every name of the place."""
        return real_text(self.root) + ("" if self.scale is None else f"={self.scale!r}")

    def open(self) -> LoraAdapter:
        """The open adapter. Raises FormatError, naming what is not understood; PlanError for a scale that is missing."""
        reader = open_reader(CheckpointPath.at(self.path))
        folder = self.root if self.root.is_folder() else self.root.parent
        configs = _read_configs(folder, reader)
        is_peft = (folder / _CONFIG).is_file()
        is_qwix = not is_peft and any(map(_of_qwix, reader.tensors))
        plain: dict[str, str] = {}
        found: dict[str, dict[Role, str]] = {}
        for name in reader.tensors:
            module, role = _parted(name)
            if role is None and not (is_peft and name.startswith(_WRAPPED)):
                raise FormatError(
                    f"{self.path} has {name!r}, which is no tensor of an adapter: expected names that end in "
                    f"{', '.join([*list(_ENDINGS)[:2], *_OF_QWIX])}; give the folder of an adapter (lora)"
                )
            if role is None:
                other = plain.setdefault(module.replace(".base_layer", ""), name)
            else:
                other = found.setdefault(module, {}).setdefault(role, name)
            if other != name:
                raise FormatError(
                    f"{self.path} has both {other!r} and {name!r}; remove the one that is not meant"
                )
        if is_qwix and self.scale is None:
            raise PlanError(
                f"{self.path} stores no scale: alpha / rank is a flag of its training; write it behind the adapter: {self.path}=SCALE (lora)"
            )
        modules = [self._module(reader, *each, configs, is_qwix) for each in found.items()]
        if not modules and not plain:
            raise FormatError(f"{self.path} has no tensors; give the folder of an adapter (lora)")
        dialect: Dialect = "peft" if is_peft else "qwix" if is_qwix else "diffusers"
        return LoraAdapter(self.path, reader, modules, plain, dialect)

    def _module(
        self,
        reader: Reader,
        key: str,
        tensors: Mapping[Role, str],
        configs: Mapping[str, PeftConfig],
        is_qwix: bool,
    ) -> AdapterModule:
        """A module, by its name in the adapter. FormatError where a factor is missing, or rank or scale make no sense."""
        factors: tuple[Role, Role] = ("a", "b")
        for role in factors:
            if role not in tensors:
                raise FormatError(
                    f"{self.path} has {next(iter(tensors.values()))!r}, but not the factor {role.upper()} of {key!r}; restore the adapter from a copy"
                )
        name = key.replace(".base_layer", "")
        config = configs.get(name.partition(".")[0]) or configs.get("")
        shape = reader.tensors[tensors["a"]].spec.shape or (0,)
        rank = shape[-1 if is_qwix else 0]
        if config is not None:
            rank = int(_matching(config.rank_pattern, name, config.r))
        scale = 1.0 if self.scale is None else self.scale
        is_rank = 0 < rank <= _LARGEST_RANK
        if is_rank and "alpha" in tensors:
            scale /= rank
        elif is_rank and config is not None:
            alpha = _matching(config.alpha_pattern, name, config.lora_alpha)
            scale *= alpha / (math.sqrt(rank) if config.use_rslora else rank)
        if not (is_rank and math.isfinite(scale)):
            raise FormatError(
                f"{self.path} has the rank {rank} and the scale {scale} for {name!r}: expected a rank of 1 to {_LARGEST_RANK:,}, and a finite scale; "
                "restore the adapter from a copy"
            )
        return AdapterModule(name, tensors, config or PeftConfig(), rank, scale)


def _parted(name: str) -> tuple[str, Role | None]:
    """Module and role of a tensor; None for one that replaces another."""
    dotted = name.replace("/", ".")
    for ending, role in _ENDINGS.items():
        if dotted.endswith(ending):
            return dotted.removesuffix(ending).removeprefix(_WRAPPED), role
    if kernel := _of_qwix(dotted):
        return kernel[1] + (kernel[3] or ""), _OF_QWIX[kernel[2]]
    return dotted.removeprefix(_WRAPPED), None


def _of_qwix(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"(.+)(_lora_[ab])([./]value)?", name, re.DOTALL)


def _read_configs(folder: Location, reader: Reader) -> dict[str, PeftConfig]:
    """The configs beside an adapter, or in the header of its file; none where it has none."""
    file = folder / _CONFIG
    if file.is_file():
        return {"": _config(json_value(read_bytes(file), str(file)), str(file))}
    text = reader.metadata.header.get(_IN_HEADER)
    if text is None:
        return {}
    where = f"{_IN_HEADER} in the header of {reader.uri}"
    found: dict[str, dict[str, Any]] = {}
    document = json_value(text.encode(), where)
    for key, value in document.items() if isinstance(document, dict) else ():
        prefix, _, member = key.partition(".")
        found.setdefault(prefix if member else "", {})[member or prefix] = value
    return {prefix: _config(members, where) for prefix, members in found.items()}


def _config(document: Any, where: str) -> PeftConfig:
    try:
        config = msgspec.convert(document, PeftConfig)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where} is no config of an adapter: {error}") from None
    if config.peft_type != "LORA":
        raise FormatError(
            f"{where} describes an adapter of the kind {config.peft_type[:40]!r}, but only LORA is added to weights; merge it with peft"
        )
    for name in _REFUSED:
        if document.get(name):
            raise FormatError(
                f"{where} has {name}: {json.dumps(document[name])[:60]}, so that a merged weight is more than a product of two factors; merge it "
                "with peft"
            )
    init = str(config.init_lora_weights)
    if init.startswith(_CHANGES_BASE):
        raise FormatError(
            f"{where} has init_lora_weights: {init[:40]!r}, which takes a part out of the base before training; convert it to a plain LoRA with "
            "peft (path_initial_model_for_weight_conversion)"
        )
    return config


def _matching(patterns: Mapping[str, float] | None, module: str, otherwise: float) -> float:
    """The value of the first pattern that matches the end of a name, as peft does."""
    for pattern, value in (patterns or {}).items():
        if _compiled(pattern).search(module):
            return value
    return otherwise


@lru_cache(maxsize=1024)  # each is compared with every module
def _compiled(pattern: str) -> Pattern:
    return compile_pattern(
        rf"^(.*\.)?({pattern})$", f"the pattern {pattern[:60]!r} of {_CONFIG}", FormatError
    )
