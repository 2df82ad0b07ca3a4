"""The form of a target: its format, the options of that format, and what the format cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from reshard.conversion.check_target import CheckedOptions
from reshard.errors import FormatError, PlanError, ReshardError
from reshard.formats.base import Encoding, Leaf, Reader, TargetCheckpoint, TargetTensor
from reshard.formats.forms import SHARD_BYTES, Form, OrbaxForm, SafetensorsForm
from reshard.formats.json.safe_json import read_json
from reshard.formats.safetensors.carried import files_beside
from reshard.formats.safetensors.dtypes import safetensors_name
from reshard.formats.safetensors.write.file_plan import slices_of
from reshard.layout.changes import kind_of
from reshard.planning.chunking import SPLIT_ABOVE_BYTES, contiguous_grid

FILE_CHUNK_BYTES = 64 << 20
"""Most bytes of a chunk in a shared file. It is a unit of work only: readers of the file do not see it."""

_MOST_SHOWN = 8

_UNKNOWN_TO_DCP = frozenset({"float8_e8m0fnu"})


def form_of(reader: Reader, options: CheckedOptions) -> Form:
    """The form of a target, with the options of its format.

    Raises PlanError for options of another format.
    """
    to = options.to or reader.format
    if to == "safetensors":
        _refuse_others(to, _orbax_options(options))
        return _safetensors_form(reader, options)
    _refuse_others("orbax", _safetensors_options(options))
    return OrbaxForm(options.ocdbt)


def _refuse_others(to: str, given: dict[str, bool]) -> None:
    foreign = next((name for name, is_given in given.items() if is_given), None)
    if foreign is not None:
        other = "Orbax" if to == "safetensors" else "safetensors"
        raise PlanError(
            f"{foreign} is an option of {other} targets, but the target's format is {to}; leave it out ({foreign}), or "
            f"write {other} (to)"
        )


def _orbax_options(options: CheckedOptions) -> dict[str, bool]:
    return {
        "ocdbt": options.ocdbt,
        "style": options.style is not None,
        "compression": options.encoding != Encoding(checksum=True),
        "chunk_bytes": options.chunk_bytes != SPLIT_ABOVE_BYTES,
    }


def _safetensors_options(options: CheckedOptions) -> dict[str, bool]:
    return {
        "files": options.files is not None,
        "file_bytes": options.file_bytes is not None,
        "file_names": options.file_names is not None,
        "carry": options.carry,
    }


def _safetensors_form(reader: Reader, options: CheckedOptions) -> SafetensorsForm:
    files = options.files or "shards"
    if options.file_bytes is not None and files != "shards":
        raise PlanError(
            f"file_bytes is the size of shards, but files is {files!r}; leave it out (file_bytes)"
        )
    if files == "one" and (options.file_names is not None or options.carry):
        name = "carry" if options.carry else "file_names"
        raise PlanError(
            f"{name} is for a folder of files, but the target is a single file; leave it out ({name}), or ask for "
            "other files (files)"
        )
    return SafetensorsForm(
        files,
        options.file_bytes or SHARD_BYTES,
        options.file_names,
        _carried(reader) if options.carry else (),
    )


def _carried(reader: Reader) -> tuple[Path, ...]:
    folder = Path(reader.uri)
    if reader.format != "safetensors" or not folder.is_dir():
        raise PlanError(
            f"carry copies the files beside the weights of a folder of safetensors files, but {reader.uri} is none; leave "
            "it out (carry), and copy the files yourself"
        )
    return files_beside(folder)


def in_files(tensor: TargetTensor, form: SafetensorsForm) -> TargetTensor:
    """The tensor with the chunks in which it is written: contiguous parts of each slice that a file holds.

    Raises PlanError for a dtype that the format does not have.
    """
    spec = tensor.spec
    safetensors_name(spec.dtype, spec.name)
    storage = contiguous_grid(slices_of(tensor, form), spec.itemsize, FILE_CHUNK_BYTES)
    return replace(tensor, spec=replace(spec, storage=storage))


def copies_of(tensor: TargetTensor, form: Form) -> int:
    """In how many files each element is: rank files repeat what is replicated over the mesh."""
    if not isinstance(form, SafetensorsForm) or form.files != "ranks":
        return 1
    layout = tensor.spec.layout
    mesh = None if layout is None else layout.device_mesh
    slices = slices_of(tensor, form).count
    return 1 if mesh is None or not slices else max(1, math.prod(mesh.shape) // slices)


def refuse_unheld(target: TargetCheckpoint, reader: Reader) -> None:
    """Raises FormatError, listing them, for leaves that the target's format has no place for."""
    if not isinstance(target.form, SafetensorsForm):
        return
    others = [f"{leaf.name!r} ({_kind(leaf)})" for leaf in target.leaves if not leaf.tensor]
    keys = {name for name, tensor in reader.tensors.items() if tensor.is_key}
    others += [f"{leaf.name!r} (a PRNG key)" for leaf in target.leaves if leaf.name in keys]
    if others:
        more = f" and {len(others) - _MOST_SHOWN} more" if len(others) > _MOST_SHOWN else ""
        raise FormatError(
            f"safetensors files hold tensors only, and cannot hold {', '.join(others[:_MOST_SHOWN])}{more}; leave them out "
            "(drop), or write Orbax (to)"
        )


def _kind(leaf: Leaf) -> str:
    if leaf.text is not None:
        return "a string"
    kind = leaf.value_type
    if kind in ("Dict", "List", "Tuple", "NamedTuple"):
        return f"an empty {kind.lower()}"
    return kind or "no tensor"


def form_warnings(target: TargetCheckpoint, reader: Reader) -> Iterator[str]:
    """What a person should know about the form of a target."""
    if not isinstance(target.form, SafetensorsForm):
        return
    if target.copied:
        yield (
            f"the items {', '.join(sorted(target.copied))} are no trees of tensors, so a safetensors target leaves them out"
        )
    if target.form.files == "dcp":
        yield from _torch_warning(target)
    config = next((path for path in target.form.carried if path.name == "config.json"), None)
    if config is not None:
        yield from _dtype_warning(config, target, reader)


def _torch_warning(target: TargetCheckpoint) -> Iterator[str]:
    """torch's reader of these files has no name for some dtypes, and then loads no tensor (torch 2.13)."""
    names = [n for n, t in target.tensors.items() if t.spec.dtype in _UNKNOWN_TO_DCP]
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield (
            f"{names[0]!r}{more} is {target.tensors[names[0]].spec.dtype}, and torch's HuggingFaceStorageReader loads no "
            "tensor of a folder that holds this dtype; drop it or cast it, or read the files with safetensors.torch"
        )


def _dtype_warning(config: Path, target: TargetCheckpoint, reader: Reader) -> Iterator[str]:
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
    floats = {t.spec.dtype for t in target.tensors.values() if kind_of(t.spec.dtype) == "float"}
    cast = floats - {t.spec.dtype for t in reader.tensors.values()} - {asked}
    if cast:
        yield (
            f"floats were cast to {', '.join(sorted(cast))}, but config.json, which is carried, says {asked}: transformers "
            "casts them again when it loads them, so change its dtype"
        )
