"""Adapter: an open LoRA adapter, with its tensors by the module that each belongs to, whichever program wrote it.

PEFT has ``adapter_config.json`` beside tensors ``base_model.model.<module>.lora_A.weight``, diffusers the same names without the beginning,
kohya ``lora_unet_<module>.lora_down.weight`` with ``.alpha``, and Qwix, which MaxText uses, ``<kernel>_lora_a`` beside the kernel's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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

Role = Literal["a", "b", "embedding_a", "embedding_b", "bias", "alpha", "magnitude"]

_ENDINGS: Mapping[str, Role] = {
    ".lora_A.weight": "a", ".lora_B.weight": "b", ".lora_B.bias": "bias",
    ".lora_embedding_A": "embedding_a", ".lora_embedding_B": "embedding_b",
    ".lora_magnitude_vector": "magnitude", ".lora_magnitude_vector.weight": "magnitude",
    ".lora_down.weight": "a", ".lora_up.weight": "b", ".lora.down.weight": "a", ".lora.up.weight": "b", ".alpha": "alpha",
}  # fmt: skip
_OF_QWIX: Mapping[str, Role] = {"_lora_a": "a", "_lora_b": "b"}
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


class LoraAdapter(Struct, frozen=True):
    """An open adapter.

    Attributes:
        place: as the user named it.
        user_scale: multiplies what the adapter says; None if the user gave none.
        configs: by the beginning of the names of modules; "" for all.
        modules: the names of tensors by role, by module; as the base should have it, with "." between parts.
        plain: the names of tensors that replace those of the base, by the name there.
        dialect: the programs that write such adapters.
    """

    place: str
    user_scale: float | None
    reader: Reader
    configs: Mapping[str, PeftConfig]
    modules: Mapping[str, Mapping[Role, str]]
    plain: Mapping[str, str]
    dialect: Literal["peft", "diffusers", "qwix"]

    def config(self, module: str) -> PeftConfig | None:
        """The config of a module; None for an adapter that has none."""
        return self.configs.get(module.partition(".")[0]) or self.configs.get("")

    def rank(self, module: str, found: int) -> int:
        """The rank that its config has for a module; ``found`` if there is no config."""
        config = self.config(module)
        return found if config is None else int(_matching(config.rank_pattern, module, config.r))

    def scale(self, module: str, rank: int, has_alpha: bool) -> float:
        """The scale of a module's product, but for ``alpha`` where that is a tensor."""
        config = self.config(module)
        own = 1.0
        if has_alpha:
            own = 1 / rank
        elif config is not None:
            alpha = _matching(config.alpha_pattern, module, config.lora_alpha)
            own = alpha / (math.sqrt(rank) if config.use_rslora else rank)
        return own * (1.0 if self.user_scale is None else self.user_scale)


class AdapterPath(Struct, frozen=True):
    """An adapter that a call names, and the scale that the user gave; None for none."""

    path: str
    root: Location
    scale: float | None = None

    @classmethod
    def parsed(cls, text: str) -> AdapterPath:
        """From ``ADAPTER`` or ``ADAPTER=SCALE``. PlanError for a scale that is not finite."""
        path, scale = adapter_of(text)
        if scale is not None and not math.isfinite(scale):
            raise PlanError(f"the scale of {text!r} should be a finite number (lora)")
        return cls(path, locate(path), scale)

    @property
    def text(self) -> str:
        """The same for every name of the place."""
        return real_text(self.root) + ("" if self.scale is None else f"={self.scale!r}")

    def open(self) -> LoraAdapter:
        """The open adapter. Raises FormatError, naming what is not understood; PlanError for a scale that is missing."""
        reader = open_reader(CheckpointPath.at(self.path))
        folder = self.root if self.root.is_folder() else self.root.parent
        configs = _read_configs(folder, reader)
        modules: dict[str, dict[Role, str]] = {}
        plain: dict[str, str] = {}
        is_qwix = False
        for name in reader.tensors:
            module, role = _parted(name)
            if role is None:
                plain[module.replace(".base_layer", "")] = name
                continue
            is_qwix = is_qwix or name.replace("/value", "").endswith(tuple(_OF_QWIX))
            if modules.setdefault(module, {}).setdefault(role, name) != name:
                raise FormatError(
                    f"{self.path} has {name!r} and {modules[module][role]!r} for one factor of {module!r}; remove one of them"
                )
        is_peft = (folder / _CONFIG).is_file()
        odd = [name for name in plain.values() if not (is_peft and name.startswith(_WRAPPED))]
        if odd or not reader.tensors:
            found = f"{odd[0]!r}, which is no tensor of an adapter" if odd else "no tensors"
            raise FormatError(
                f"{self.path} has {found}: expected names that end in {', '.join([*list(_ENDINGS)[:2], *_OF_QWIX])}; give the folder of an adapter "
                "(lora)"
            )
        if is_qwix and self.scale is None:
            raise PlanError(
                f"{self.path} stores no scale: alpha / rank is a flag of its training; write it behind the adapter: {self.path}=SCALE (lora)"
            )
        dialect: Literal["peft", "diffusers", "qwix"] = (
            "peft" if is_peft else "qwix" if is_qwix else "diffusers"
        )
        return LoraAdapter(self.path, self.scale, reader, configs, modules, plain, dialect)


def _parted(name: str) -> tuple[str, Role | None]:
    """Module and role of a tensor; None for one that replaces another."""
    dotted = name.replace("/", ".")
    for ending, role in _ENDINGS.items():
        if dotted.endswith(ending):
            return dotted.removesuffix(ending).removeprefix(_WRAPPED), role
    value = ".value" if dotted.endswith(".value") else ""
    for ending, role in _OF_QWIX.items():
        if dotted.endswith(ending + value):
            return dotted.removesuffix(ending + value) + value, role
    return dotted.removeprefix(_WRAPPED), None


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
