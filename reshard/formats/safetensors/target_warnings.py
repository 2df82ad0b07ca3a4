"""Warnings about a safetensors target, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from reshard.errors import ReshardError
from reshard.formats.base import TargetCheckpoint
from reshard.formats.json.safe_json import read_json
from reshard.formats.safetensors.beside import CONFIG_NAME, left_out_text
from reshard.formats.safetensors.form import SafetensorsForm
from reshard.formats.safetensors.model_config import ModelConfig, check_config, config_warnings
from reshard.geometry.dtypes import PACKED
from reshard.layout.changes import kind_of
from reshard.storage.location import Location, locate

_NAMES_SHOWN = 3

_UNKNOWN_TO_DCP = frozenset({"float8_e8m0fnu", *PACKED})


def target_warnings(target: TargetCheckpoint, form: SafetensorsForm) -> Iterator[str]:
    """The warnings about a target of this form; PlanError where the config of a model does not fit it."""
    files, carried = form.files, form.carried
    if files == "dcp":
        yield from _torch_warning(target)
    if target.container.style is not None:
        yield from _kernel_warning(target)
    if form.config is not None:
        shapes = {name: tensor.spec.shape for name, tensor in target.tensors.items()}
        check_config(form.config, files, shapes)
        yield from config_warnings(form.config, files)
        yield from _config_dtype_warning(form.config, target)
    elif CONFIG_NAME in carried.files:
        yield from _dtype_warning(locate(carried.folder) / CONFIG_NAME, target)
    if carried.left_out:
        yield left_out_text(carried.left_out)


def _torch_warning(target: TargetCheckpoint) -> Iterator[str]:
    """torch's reader of these files has no name for some dtypes, and then loads no tensor (torch 2.13)."""
    names = [n for n, t in target.tensors.items() if t.spec.dtype in _UNKNOWN_TO_DCP]
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield (
            f"{names[0]!r}{more} is {target.tensors[names[0]].spec.dtype}, and torch's HuggingFaceStorageReader loads no "
            "tensor of a folder that holds this dtype; drop it or cast it, or read the files with safetensors.torch"
        )


def _kernel_warning(target: TargetCheckpoint) -> Iterator[str]:
    """A square kernel of an Orbax checkpoint loads everywhere as a torch weight, and computes nonsense."""
    origins = {} if target.made is None else target.made.origins
    named = [
        name
        for name, origin in origins.items()
        if name.endswith(".weight")
        and origin.name != name
        and len(target.tensors[name].spec.shape) > 1
    ]
    if named:
        some = ", ".join(map(repr, named[:_NAMES_SHOWN])) + (
            ", …" if len(named) > _NAMES_SHOWN else ""
        )
        yield (
            f"{len(named)} renamed tensor{'s' if named[1:] else ''} of two or more dimensions end{'' if named[1:] else 's'} in .weight "
            f"({some}) and kept the order of dimensions: where one is a kernel [in, out], torch expects [out, in], and a square one "
            "loads without an error and computes nonsense; transpose kernels before you load them"
        )


def _config_dtype_warning(config: ModelConfig, target: TargetCheckpoint) -> Iterator[str]:
    asked = config.values.get("dtype", config.values.get("torch_dtype"))
    made = {t.spec.dtype for t in target.tensors.values() if kind_of(t.spec.dtype) == "float"}
    if isinstance(asked, str) and made - {asked}:
        yield (
            f"{config.where} says {asked}, but the target has {', '.join(sorted(made))}: transformers casts them when it loads them; cast to "
            f"{asked} here (cast), or change the config's dtype"
        )


def _dtype_warning(config: Location, target: TargetCheckpoint) -> Iterator[str]:
    """transformers casts weights to the dtype of config.json when it loads them."""
    try:
        document = read_json(config)
    except ReshardError:
        return
    if not isinstance(document, dict):
        return
    asked = document.get("dtype", document.get("torch_dtype"))
    if not isinstance(asked, str):
        return
    origins = {} if target.made is None else target.made.origins
    made = {target.tensors[name].spec.dtype for name, origin in origins.items() if origin.dtype}
    cast = {dtype for dtype in made if kind_of(dtype) == "float"} - {asked}
    if cast:
        yield (
            f"floats were cast to {', '.join(sorted(cast))}, but config.json, which is carried, says {asked}: transformers "
            "casts them again when it loads them, so change its dtype"
        )
