"""The form of a safetensors target: its options, and from them the chunks of each tensor and the files that are carried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Form, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.safetensors.beside import CONFIG_NAME, Beside, beside, model_files
from reshard.formats.safetensors.dtypes import safetensors_name
from reshard.formats.safetensors.files import folder_of
from reshard.formats.safetensors.model_config import ModelConfig, read_config
from reshard.formats.safetensors.model_name import ONLY_FILE, ModelName
from reshard.formats.slice_places import in_shared_files
from reshard.formats.target_files import SHARD_BYTES, FilesOf
from reshard.geometry.grid import Grid
from reshard.storage.location import locate

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap
    from reshard.formats.safetensors.reader import SafetensorsChunks


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
        from reshard.formats.safetensors.target_warnings import target_warnings

        return target_warnings(target, self)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.safetensors.write.file_map import plan_files

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
    return cast("SafetensorsChunks", source.chunks).model_name


def _carried(source: Reader) -> Beside:
    folder = folder_of(locate(source.uri))
    if source.format != "safetensors" or not folder.is_folder():
        raise PlanError(
            f"carry copies the files beside the weights of a folder of safetensors files, but {source.uri} is none; leave "
            "it out (carry), and copy the files yourself, or name the folder of the model, whose config and tokenizer are copied then (config)"
        )
    return beside(folder)
