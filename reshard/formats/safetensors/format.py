"""safetensors as a format: single files, shards with an index, and slices over files.

Warnings about a safetensors target, one sentence each.

The form of a safetensors target: its options, and from them the chunks of each tensor and the files that are carried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec.structs import replace

from reshard.errors import PlanError, ReshardError
from reshard.formats.base import Form, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.format import About, Format, Mark, OneFile, PlaceNames
from reshard.formats.loose_pieces import in_shared_files
from reshard.formats.marks import SAFETENSORS_ENDING, is_index, is_weights
from reshard.formats.names import OF_RECORDS
from reshard.formats.quantized import quantization_config
from reshard.formats.safe_json import read_json
from reshard.formats.safetensors.files import (
    ONLY_FILE,
    ModelName,
    folder_of,
    is_shard,
    is_whole,
)
from reshard.formats.safetensors.header import is_safetensors, safetensors_name
from reshard.formats.safetensors.model_folder import (
    CONFIG_NAME,
    Beside,
    ModelConfig,
    beside,
    check_config,
    config_warnings,
    left_out_text,
    model_files,
    read_config,
)
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    leaf_count,
    open_safetensors,
)
from reshard.formats.slices.file_digests import files_below
from reshard.formats.slices.parse import read_slices
from reshard.formats.target_files import SAFETENSORS_OPTIONS, SHARD_BYTES, FilesOf
from reshard.geometry.dtypes import PACKED
from reshard.geometry.grid import Grid
from reshard.layout.changes import kind_of
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.location import Location, locate

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap
    from reshard.formats.safetensors.reader import SafetensorsChunks


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


class SafetensorsForm(Form, frozen=True):
    """A safetensors target.

    Attributes:
        file_bytes: for shards, the most bytes of tensors in one file; a larger tensor has a file of its own.
        file_names: the pattern of the files' names; None for the usual ones.
        name: the names of a model's files.
        carried: files that are copied as they are, from beside the source or from the folder of a model.
        config: the config.json among them that is held against the target; None where it is the source's own.
    """

    format: ClassVar[str] = "safetensors"

    files: FilesOf = "shards"
    file_bytes: int = SHARD_BYTES
    file_names: str | None = None
    carried: Beside = Beside()
    name: ModelName = ModelName()
    config: ModelConfig | None = None

    @property
    def file(self) -> str:
        return ONLY_FILE if self.files == "one" else ""

    def slices_of(self, tensor: TargetTensor) -> Grid:
        """The slices in which a tensor is stored."""
        shards = tensor.shards
        if self.files in ("one", "shards") or not isinstance(shards, Grid):
            return Grid.whole(tensor.spec.shape)
        return shards

    def arrange(self, given: Unarranged) -> TargetTensor:
        """The tensor with contiguous parts of each slice that a file holds as chunks, cut where the source is if that is near."""
        tensor = given.tensor
        safetensors_name(tensor.spec.dtype, tensor.spec.name)
        grid = self.slices_of(tensor)
        arranged = in_shared_files(tensor, given.source, grid)
        return replace(arranged, copies=_copies(self, tensor, grid))

    def warnings(self, target: TargetCheckpoint, _source: Reader, /) -> Iterator[str]:

        return target_warnings(target, self)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.safetensors.write_files import plan_files

        return plan_files(target, self)


def _copies(form: SafetensorsForm, tensor: TargetTensor, slices: Grid) -> int:
    """The number of copies of a slice: rank files repeat one that is replicated over the mesh."""
    layout = tensor.spec.layout
    mesh = None if layout is None or form.files != "ranks" else layout.device_mesh
    return 1 if mesh is None or not slices.count else max(1, math.prod(mesh.shape) // slices.count)


def safetensors_form(options: Mapping[str, Any], source: Reader) -> SafetensorsForm:
    """The form that the parsed options ask for; PlanError for options that contradict each other."""
    files: FilesOf = options["files"] or "shards"
    carries = options["carry"] and not _is_file_to_file(files, source)
    _refuse_contradictions(files, {**options, "carry": carries})
    config = None
    carried = _carried(source) if carries else Beside()
    if options["config"] is not None:
        carried = model_files(locate(options["config"]))
        config = read_config(locate(carried.folder) / CONFIG_NAME)
    if source.computed.keys() & {"dequantize", "quantize_like"}:
        like = source.computed.get("quantize_like")
        carried = carried.saying(None if like is None else quantization_config(like))
    file_bytes = options["file_bytes"] or SHARD_BYTES
    return SafetensorsForm(
        files, file_bytes, options["file_names"], carried, _name_of(source), config
    )


def _is_file_to_file(files: FilesOf, source: Reader) -> bool:
    """True if one file becomes one: all of its content is kept, so that there is nothing to carry."""
    place = locate(source.uri)
    return (
        files == "one"
        and source.format == "safetensors"
        and folder_of(place) == place
        and not place.is_folder()
    )


def _refuse_contradictions(files: FilesOf, options: Mapping[str, Any]) -> None:
    if options["file_bytes"] is not None and files != "shards":
        raise PlanError(
            f"file_bytes is the size of shards, but files is {files!r}; leave it out (file_bytes)"
        )
    name = next((name for name in ("config", "carry", "file_names") if options[name]), "")
    if files == "one" and name:
        raise PlanError(
            f"{name} is for a folder of files, but the target is a single file; leave it out ({name}), or ask for "
            "other files (files)"
        )
    if options["carry"] and options["config"] is not None:
        raise PlanError(
            "carry takes the files beside the weights of the source, and config those of another model; leave one of them out (carry, "
            "config)"
        )


def _name_of(source: Reader) -> ModelName:
    """The source's own, so that the programs that load it find the target too."""
    if source.format != "safetensors":
        return ModelName()
    return cast("SafetensorsChunks", source.chunks.origin).model_name


def _carried(source: Reader) -> Beside:
    folder = folder_of(locate(source.uri))
    if source.format != "safetensors" or not folder.is_folder():
        raise PlanError(
            f"carry copies the files beside the weights of a folder of safetensors files, but {source.uri} is none; leave "
            "it out (carry), and copy the files yourself, or name the folder of the model, whose config and tokenizer are copied then (config)"
        )
    return beside(folder)


def _is_replaceable(root: Location) -> bool:
    """True for a safetensors file, and for a folder with nothing but files of this project.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which must not be lost.
    """
    if not root.is_folder():
        return is_safetensors(root)
    try:
        record = read_slices(root)
        if record is None:
            return False
        known = frozenset({*OF_RECORDS, COMMIT_MARKER, *record.files})
        return all(n in known or ("/" not in n and is_weights(n)) for n in files_below(root))
    except ReshardError:
        return False


_FILE = Mark(leaves=leaf_count, is_ours=_is_replaceable)
# A run's folder may also hold a safetensors file, beside its checkpoints.
_FOLDER = replace(_FILE, is_finished=is_whole, runs="with steps")


def _recognise(names: PlaceNames) -> Mark | None:
    """The mark of a safetensors file, of an index of such files, and of a folder that holds some at its top.

    A file counts by its ending or by its first bytes. So a damaged file with the ending gets the error of its header,
    not one about unknown formats.
    """
    if names.kind != "file":
        return _FOLDER
    if not is_index(names.name):
        return _FILE if is_weights(names.name) or is_safetensors(names.root) else None
    folder = names.root.parent
    beside = (folder / name for name in names.beside if name.endswith(SAFETENSORS_ENDING))
    return replace(_FILE, files=(names.root, *beside), is_finished=lambda _: is_whole(folder))


SAFETENSORS = Format(
    about=About(
        name=FORMAT,
        title="safetensors",
        marks="safetensors (*.safetensors)",
        leaf_bytes=OPENED_TENSOR_BYTES,
        options=SAFETENSORS_OPTIONS,
        tensors_only=True,
        is_flat=True,
        one_file=OneFile(SAFETENSORS_ENDING, "files", "one"),
        may_be_file=lambda name: is_weights(name) and not is_shard(name),
        is_index=is_index,
    ),
    recognise=_recognise,
    open=lambda root, how: open_safetensors(root, how.record, how.uri, how.unlisted),
    write=safetensors_form,
)
