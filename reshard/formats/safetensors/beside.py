"""The files beside the weights of a safetensors folder, such as config.json or the folder of a tokenizer."""

from __future__ import annotations

from msgspec import Struct

from reshard.errors import FormatError, PlanError
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.safetensors.model_name import is_weights
from reshard.geometry.sizes import exact_bytes
from reshard.storage.commit_markers import COMMIT_MARKER, UNFINISHED_MARK
from reshard.storage.location import Location, locate

MOST_FOLDER_BYTES = 64 << 20
MOST_FOLDER_FILES = 1000
"""Of a folder that is carried. Larger ones hold weights in other formats (``original/``, ``onnx/``) or other checkpoints, and
would double the target; the largest tokenizers take 40 MB."""


_OF_THE_RUN = OF_RECORDS | {COMMIT_MARKER, UNFINISHED_MARK}
"""Files that reshard wrote about the checkpoint itself. A marker that is carried would say that its copy is complete."""


CONFIG_NAME = "config.json"
_OF_A_MODEL = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Endings of config, generation and tokenizer files, chat templates, and model code that a config names."""


class Beside(Struct, frozen=True):
    """The files beside the weights.

    Attributes:
        folder: the text of the location that they are in; "" where there are none.
        files: their paths below it.
        left_out: the folders that are too large.
    """

    folder: str = ""
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def locations(self) -> tuple[Location, ...]:
        """The locations of ``files``, in that order."""
        return tuple(locate(f"{self.folder}/{path}") for path in self.files)


def beside(folder: Location) -> Beside:
    """Every plain file at the top of a folder that is neither weights, nor their index or record, and those in small folders
    whose names do not begin with a dot; by name.

    Raises FormatError for anything but a plain file, and for a link that leads out of the folder.
    """
    folder = folder.view()
    files: list[str] = []
    left_out: list[str] = []
    for entry in folder.entries():
        name = entry.name
        if is_weights(name) or name in _OF_THE_RUN:
            continue
        found = (folder / name).status(f"the file {name!r}")
        if found is None or found.kind != "folder":
            _refuse_odd(folder / name)
            files.append(name)
        elif not name.startswith("."):  # .git, .cache
            inner = None if entry.is_link else _files_below(folder, name)
            files += inner or ()
            left_out += [name] if inner is None else []
    return Beside(str(folder), tuple(files), tuple(left_out))


def model_files(folder: Location) -> Beside:
    """The config.json, tokenizer and other small files at the top of the folder of a model, by name.

    Raises PlanError for a place that is no folder with a config.json, FormatError as ``beside``.
    """
    if not folder.is_folder() or not (folder / CONFIG_NAME).is_file():
        raise PlanError(
            f"config is {str(folder)!r}, which is no folder with a {CONFIG_NAME}; name the folder of a Hugging Face model (config)"
        )
    found = beside(folder)
    files = [
        name
        for name in found.files
        if name.endswith(_OF_A_MODEL) and "/" not in name and not name.endswith(".index.json")
    ]
    return Beside(found.folder, tuple(files))


def left_out_text(folders: tuple[str, ...]) -> str:
    """The sentence that names the folders that are not carried."""
    names, one = ", ".join(map(repr, folders)), len(folders) == 1
    return (
        f"{'the folder' if one else 'the folders'} {names} beside the weights {'is' if one else 'are'} not carried: only folders of at "
        f"most {exact_bytes(MOST_FOLDER_BYTES)} and {MOST_FOLDER_FILES:,} files are; copy {'it' if one else 'them'} yourself where "
        "the model needs it"
    )


def _files_below(folder: Location, name: str) -> list[str] | None:
    """The paths of the files in a folder below; None if it is too large, or has a link to a folder."""
    nbytes, found = 0, []
    for below in (folder / name).files():
        path = f"{name}/{below}"
        status = (folder / path).status(f"the file {path!r}")
        if status is not None and status.kind == "folder":
            return None
        _refuse_odd(folder / path)
        nbytes += 0 if status is None else status.nbytes
        found.append(path)
        if nbytes > MOST_FOLDER_BYTES or len(found) > MOST_FOLDER_FILES:
            return None
    return sorted(found)


def _refuse_odd(file: Location) -> None:
    if not file.is_file(f"the file {file.name!r}"):
        raise FormatError(
            f"{file} is beside the weights and should be carried, but is no plain file; remove it, or leave carry out"
        )
