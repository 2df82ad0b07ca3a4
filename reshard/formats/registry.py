"""Finds and opens checkpoints, whatever their format, and says in errors what is there instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, get_args

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import Unlisted, check_choice
from reshard.errors import (
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
    ReshardError,
    StorageError,
    TargetExistsError,
)
from reshard.formats.base import Reader, RecordUse
from reshard.formats.foreign import foreign_text
from reshard.formats.format import Format, Mark, Opening, PlaceNames
from reshard.formats.keras.files import weights_text
from reshard.formats.known_formats import (
    every_format,
    files_of,
    is_own_format,
    known_format,
    mark_of,
    marks,
    own_formats,
    recognised,
)
from reshard.formats.names import step_name
from reshard.formats.state_dict.files import held_text
from reshard.formats.steps import committed, committed_steps, names_in, steps_text
from reshard.formats.tensorflow.files import prefix_text
from reshard.storage.base import NONE, Requests
from reshard.storage.buckets.counts import so_far
from reshard.storage.commit_markers import COMMIT_MARKER, UNFINISHED_MARK, is_left_unfinished
from reshard.storage.local.staging import staging_above
from reshard.storage.location import Location, is_in_hub, locate, without_scheme

if TYPE_CHECKING:
    from reshard.formats.computed.formula import Computation


class CheckpointPath(Struct, frozen=True, dict=True):
    """A checkpoint that a call reads.

    Attributes:
        path: as messages name it.
        root: its location. One listing of a bucket answers every later lookup of this call (``Store.remembered``). The
            location sees no change after that, so it is not kept for the next call.
        before: the requests to buckets that this process had made before it.
        unlisted: the treatment of tensors and files that no index lists.
        computed: what makes another checkpoint of it, in this order, as it is opened.
    """

    path: str
    root: Location
    before: Requests = NONE
    unlisted: Unlisted = "leave"
    computed: tuple[Computation, ...] = ()

    @cached_property
    def names(self) -> PlaceNames:
        """The names at its location."""
        return PlaceNames(self.root)

    @cached_property
    def recognised(self) -> tuple[Format, Mark] | None:
        """The first format that recognises it, with its mark; every step of the call asks here, so that names are looked at once."""
        return recognised(self.names)

    @property
    def options(self) -> dict[str, object]:
        """The options that ask for what is computed, as plain data."""
        return dict(each.option for each in self.computed)

    @classmethod
    def at(cls, path: str, unlisted: Unlisted = "leave") -> CheckpointPath:
        """The checkpoint at a path or URL; nothing is looked up yet but the commit of a repository of the hub, which its path names from here on.

        Raises as ``locate``, and PlanError for a choice that does not exist.
        """
        check_choice("unlisted", unlisted, get_args(Unlisted))
        before, root = so_far(), locate(path).remembered()
        return cls(str(root) if is_in_hub(path) else path, root, before, unlisted)

    def below(self, name: str) -> CheckpointPath:
        """A folder in it."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}", root=self.root / name)


class FoundCheckpoint(Struct, frozen=True):
    """A checkpoint of a known format that is not opened yet.

    Attributes:
        uri: as the user named it.
        root: viewed as one checkpoint.
        unlisted, computed: as in ``CheckpointPath``.
    """

    uri: str
    format: Format
    mark: Mark
    root: Location
    unlisted: Unlisted = "leave"
    computed: tuple[Computation, ...] = ()

    def open(self, record: RecordUse = "checked") -> Reader:
        """The open checkpoint; ``record``: the use of its slices.json. Raises as ``open_reader``."""
        reader = self.format.open(self.root, Opening(record, self.uri, self.unlisted))
        for each in self.computed:
            reader = each.applied(reader, self.root)
        options = dict(each.option for each in self.computed)
        return replace(reader, computed=options) if options else reader

    def price(self) -> tuple[int, int]:
        """An estimate of its leaves, and of the bytes that they take once it is opened; 0 where it cannot be read."""
        leaves = self.mark.leaves(self.root)
        each = self.format.about.leaf_bytes + sum(one.tensor_bytes for one in self.computed)
        return leaves, leaves * each + self.root.kept_bytes


def open_reader(source: CheckpointPath | str, record: RecordUse = "checked") -> Reader:
    """Open a checkpoint with the reader of its format.

    Args:
        source: a path or a URL, or a path that the call has looked at already.
        record: the use of its slices.json.

    Raises:
        StorageError: nothing is there, or it cannot be read.
        IncompleteCheckpointError: it is in the staging folder of an unfinished run.
        NotACheckpointError: no known format; for a folder with steps the message names the latest.
    """
    return find_checkpoint(source).open(record)


def open_written(place: Location) -> Reader:
    """Opens a checkpoint that a transaction has written but not published. Raises as ``open_reader``."""
    uri, place = str(place), place.remembered()
    known, mark = recognised(PlaceNames(place)) or _refuse_unknown(uri, place)
    return FoundCheckpoint(uri, known, mark, viewed(place, mark)).open()


def find_checkpoint(source: CheckpointPath | str) -> FoundCheckpoint:
    """A checkpoint, without reading its metadata. Raises as ``open_reader``."""
    chosen = CheckpointPath.at(source) if isinstance(source, str) else source
    uri, root = chosen.path, chosen.root
    _refuse_staged(uri, root)
    known, mark = chosen.recognised or _refuse_unknown(uri, root)
    # Recognised before it is viewed, since a bucket lists all of what is viewed.
    place = viewed(root, mark)
    if not place.traits.renames:
        _refuse_unfinished(uri, place)
    return FoundCheckpoint(
        without_scheme(uri), known, mark, place, chosen.unlisted, chosen.computed
    )


def viewed(root: Location, mark: Mark | None = None) -> Location:
    """The location, read as one checkpoint. Raises FormatError for a file of a prefix or an index that is a link out of its folder."""
    files = files_of(root) if mark is None else mark.files
    if not files:
        return root.view()
    place = Location(root.parent.view().store, root.path)
    for file in files:
        Location(place.store, file.path).status(f"the file {file.name!r}")
    return place


def _refuse_staged(uri: str, root: Location) -> None:
    folder = None if (path := root.local) is None else staging_above(path)
    if folder is not None:
        raise IncompleteCheckpointError(
            f"{uri} is unfinished output of reshard, below {str(folder)!r}; run the same command again to finish "
            "it, and read the target that it then becomes"
        )


def _refuse_unfinished(uri: str, place: Location) -> None:
    if is_left_unfinished(place):
        raise IncompleteCheckpointError(
            f"{uri} has {UNFINISHED_MARK} but no {COMMIT_MARKER} that counts: a run of reshard is writing it, or was interrupted; run the same "
            "command again to finish it, or remove what it left (reshard clean)"
        )


def _refuse_unknown(uri: str, root: Location) -> NoReturn:
    """Raises the error for a place that no format recognises, with what is there instead."""
    refuse_missing(uri, root)
    _refuse_unfinished(uri, root)
    looked_for = ", ".join(known.about.marks for known in every_format())
    raise NotACheckpointError(
        f"{uri} is not a checkpoint of a known format: looked for {looked_for}{_hint(uri, root)}"
    )


def single_files(folder: Location, *, is_named: bool = True) -> list[str]:
    """The names of files right below a folder that may each be a checkpoint, in order; their content is not looked at.

    Links are left out. So are files of a format whose checkpoint is the whole folder, unless nothing names the folder itself
    (``is_named``).
    """
    names = PlaceNames(folder)
    files = [entry.name for entry in folder.entries() if not entry.is_folder and not entry.is_link]
    found = set[str]()
    for known in every_format():
        may_be = known.about.may_be_file
        mine = [] if may_be is None else list(filter(may_be, files))
        if mine and not (is_named and mark_of(known, names)):
            found.update(mine)
    return sorted(found)


def is_there(root: Location) -> bool:
    """True if anything is there, or files with that prefix and the endings of a checkpoint, finished or not."""
    return root.exists() or files_of(root) is not None or bool(prefix_text(root))


def has_checkpoint(root: Location) -> bool:
    """True if a checkpoint of a known format is there, finished or not."""
    return recognised(PlaceNames(root)) is not None


def is_written(root: Location) -> bool:
    """True if a checkpoint that a target may replace is there, finished or not."""
    found = marks(PlaceNames(root))
    return any(mark.is_ours(root) for known, mark in found if not known.about.by_prefix)


def holds_only_tensors(reader: Reader) -> bool:
    """True if its format has no place for strings, None and empty containers."""
    return any(f.about.tensors_only for f in _formats_of(reader))


def mixes_values(reader: Reader) -> bool:
    """True if its format has a model and the values of its training in one."""
    return any(f.about.mixes_values for f in _formats_of(reader))


def _formats_of(reader: Reader) -> Iterator[Format]:
    """The format of an open checkpoint; none for a reader that was made of live tensors or by a map."""
    known = own_formats() if is_own_format(reader.format) else every_format()
    return (one for one in known if one.about.name == reader.format)


def target_format(name: str) -> Format:
    """The format of a target, by its name or by that of its source, which may be one that is only read."""
    known = known_format(name)
    return known_format(known.about.written_as) if known.about.written_as else known


def is_no_run(root: Location) -> bool:
    """True if it is certainly one checkpoint, and not the folder of a training run."""
    return any(
        mark.runs == "never" or (mark.runs == "with steps" and not any(committed(root)))
        for _, mark in marks(PlaceNames(root))
    )


def committed_format(root: Location) -> str | None:
    """The name of the format of a finished checkpoint; None where there is none."""
    found = recognised(PlaceNames(root))
    if found is None or is_left_unfinished(root):
        return None
    known, mark = found
    return known.about.name if mark.is_finished(root) else None


def may_stand_above_others(name: str) -> bool:
    """True if checkpoints of this format are files right in a folder, so that folders in it may hold others."""
    return known_format(name).about.is_flat


def refuse_other_content(target: Location) -> None:
    """Raises TargetExistsError for a target with anything but a checkpoint in it: overwriting replaces all of it."""
    found = target.status()
    if found is None or is_written(target) or is_left_unfinished(target):
        return
    if found.kind == "file":
        raise TargetExistsError(
            f"the target {str(target)!r} is a file that is not a checkpoint, and was left untouched; overwriting "
            "replaces only checkpoints and empty folders: choose another target, or remove it"
        )
    if not target.entries():
        return
    raise TargetExistsError(
        f"the target {str(target)!r} is a folder that contains something other than a checkpoint, and was left "
        "untouched; overwriting replaces only checkpoints and empty folders: choose another target, or empty it"
    )


def refuse_missing(
    uri: str, root: Location, expected: str = "the directory of a checkpoint"
) -> None:
    """Raises MissingError where nothing is there, nor files with that prefix; StorageError where the store refuses access.

    NotACheckpointError for a prefix of data files without their index.
    """
    if not root.exists() and files_of(root) is None:
        if found := prefix_text(root):
            raise NotACheckpointError(f"{uri} is not a checkpoint of a known format: {found}")
        steps = _steps_beside(root)
        nearest = "" if steps else _nearest(uri, root)
        raise MissingError(
            f"{uri} does not exist{steps}: expected {expected}; check the path{nearest}"
        )


def _steps_beside(root: Location) -> str:
    """The steps of the run in whose folder a step is missing; "" for any other path."""
    if step_name(root.name) is None:
        return ""
    try:
        steps = committed_steps(root.parent)
    except StorageError:
        return ""
    return f", and the run has {steps_text(steps)}" if steps else ""


_MOST_NAMES = 10_000
"""A folder with more is not searched for a name like the one that is missing."""


def _nearest(uri: str, root: Location) -> str:
    """The checkpoint beside a missing one whose name is most like its own, or the one that its folder is; "" for none."""
    from difflib import get_close_matches  # only an error needs it

    begins = uri.rstrip("/").removesuffix(root.name)
    try:
        folder = root.parent.remembered()
        names = {entry.name for entry in folder.entries()} | set(names_in(folder))
        close = get_close_matches(root.name, sorted(names)) if len(names) <= _MOST_NAMES else []
        found = [f"{begins}{name}" for name in close if has_checkpoint(folder / name)]
        found += [begins.rstrip("/")] if begins and has_checkpoint(folder) else []
    except ReshardError:
        return ""
    return f"; the nearest that is there: {found[0]}" if found else ""


def _hint(uri: str, root: Location) -> str:
    """The kind of the folder, and the path to give instead, in words."""
    if not root.is_folder():
        found = (
            prefix_text(root)
            or foreign_text(root)
            or "it is a file, expected a safetensors file or the directory of a checkpoint"
        )
        return f"; {found}"
    below = uri.rstrip("/")
    if steps := committed_steps(root):
        last = f"{below}/{steps[max(steps)]}"
        return f"; it holds steps of a training run, so name one of them: {last}"
    if names := list(islice(committed(root), 4)):
        some = ", ".join(f"{below}/{name}" for name in names[:3])
        more = " or another" if names[3:] else ""
        return f"; it holds checkpoints, so name one of them: {some}{more}"
    found = prefix_text(root) or weights_text(root) or foreign_text(root) or held_text(root)
    return f"; {found}" if found else ""
