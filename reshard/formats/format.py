"""Format: a format of checkpoints, as facts and three functions; and refusals that several share.

A format recognises and opens checkpoints, and plans the files of a target; it moves no tensor bytes, and knows no plan of a
conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct

from reshard.arguments import Unlisted
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint
from reshard.formats.contents import Item, Leaf
from reshard.formats.marks import TENSORFLOW_INDEX, TREE_METADATA
from reshard.options import Option
from reshard.storage.base import Entry, FileKind, FileStatus, Traits
from reshard.storage.location import Location


class OneFile(Struct, frozen=True):
    """The names of targets that are single files.

    Attributes:
        ending: of such a name.
        option, value: the option that asks for a single file, and its value for that; "" for a format whose targets are all single
            files, with names of that ending.
    """

    ending: str
    option: str = ""
    value: str = ""


class About(Struct, frozen=True, kw_only=True):
    """The facts about a format that need no checkpoint.

    Attributes:
        name: the same as that of its readers and forms.
        title: the name in sentences, such as ``"Orbax"``.
        marks: the files by which its checkpoints are recognised, for messages.
        leaf_bytes: memory that opening a checkpoint takes for each leaf, an overestimate.
        options: the options of a target of this format.
        tensors_only: True if its checkpoints have no place for strings, None and empty containers, so that a target with any
            is refused.
        holds_texts: True if they have a place for strings all the same.
        mixes_values: True if its checkpoints have a model and the values of its training in one, so that a target without a place for
            these leaves them out with a warning.
        holds_keys: True if they can say that a tensor is a PRNG key of JAX.
        one_file: the names of targets that are single files of this format; None if none are.
        may_be_file: tells by its name if a file may be a checkpoint by itself; ``recognise`` then decides. None if no file is.
        is_index: tells by its name if a file stands for itself and files beside it, which the mark lists. None if no file does.
        by_prefix: True if a checkpoint is named by the prefix of its files' names, which no file has as its whole name.
        temporary: parts of the names of folders that are not committed, so that a target with one could not be read.
        is_flat: True if a folder's checkpoint is files right in it, which may also lie beside folders of other checkpoints.
        written_as: the default output format of a format that is only read; "" for none.
    """

    name: str
    title: str
    marks: str
    leaf_bytes: int
    tensors_only: bool
    holds_texts: bool = False
    mixes_values: bool = False
    holds_keys: bool = False
    options: Mapping[str, Option] = {}
    one_file: OneFile | None = None
    may_be_file: Callable[[str], bool] | None = None
    is_index: Callable[[str], bool] | None = None
    by_prefix: bool = False
    temporary: tuple[str, ...] = ()
    is_flat: bool = False
    written_as: str = ""


@dataclass(frozen=True)
class PlaceNames:
    """The names at a location, which all formats look at: the place is looked up and listed once.

    It notices no change, so it is kept for one call only.
    """

    root: Location

    @property
    def name(self) -> str:
        """The name of the location itself."""
        return self.root.name

    @cached_property
    def kind(self) -> FileKind | None:
        """A file, a folder or another thing; None if nothing has that name."""
        found = self.root.status()
        return None if found is None else found.kind

    @cached_property
    def has_tree(self) -> bool:
        """True if the folder lists the leaves of a tree of Orbax.

        Looked up before the folder is listed: it usually decides, and a checkpoint of 10,000 tensors may have as many folders.
        """
        return (self.root / TREE_METADATA).exists()

    @cached_property
    def entries(self) -> Sequence[Entry]:
        """The names in the folder; none where there is no folder. In a bucket one listing is cheaper than several look-ups."""
        return self.root.entries() if self.kind == "folder" else ()

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The names in the folder that are no folders."""
        return tuple(entry.name for entry in self.entries if not entry.is_folder)

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """The names of the folders in the folder, links to folders among them."""
        return tuple(entry.name for entry in self.entries if entry.is_folder)

    @cached_property
    def index(self) -> FileStatus | None:
        """The status of the index of TensorFlow whose prefix the location is."""
        return (self.root.parent / f"{self.name}{TENSORFLOW_INDEX}").status()

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """The names in the parent folder that are no folders."""
        return tuple(entry.name for entry in self.root.parent.entries() if not entry.is_folder)


def _yes(_: Location) -> bool:
    return True


def _no(_: Location) -> bool:
    return False


class Mark(Struct, frozen=True, kw_only=True):
    """The facts about a checkpoint that a format has recognised. Those that need the content of files are looked up on request.

    Attributes:
        leaves: estimates the number of leaves without opening it; 0 if it cannot be read.
        is_ours: tells if a target may replace it: nothing is lost but a checkpoint.
        is_finished: tells if no mark says that it was not committed.
        items: its items; none in a format without items.
        files: the files that the location stands for, in a fixed order: those of a prefix, or an index and the files beside it.
            Empty where it is one file or a folder.
        runs: the folder is certainly no training run ("never"), one if steps are in it ("with steps"), or perhaps one ("perhaps").
    """

    leaves: Callable[[Location], int]
    is_ours: Callable[[Location], bool] = _no
    is_finished: Callable[[Location], bool] = _yes
    items: Callable[[Location], tuple[Item, ...]] = lambda _: ()
    files: tuple[Location, ...] = ()
    runs: Literal["never", "with steps", "perhaps"] = "never"


class Opening(Struct, frozen=True):
    """The way to open a checkpoint.

    Attributes:
        record: the use of its record.
        uri: the text by which the user named it.
        unlisted: the treatment of tensors and files that no index lists.
    """

    record: RecordUse = "checked"
    uri: str = ""
    unlisted: Unlisted = "leave"


class Format(Struct, frozen=True, kw_only=True):
    """A format: facts and three functions; an entry of ``known_formats.FORMATS``, or of another distribution.

    Attributes:
        recognise: the mark of a checkpoint, finished or not, by its names; None for anything else. It lists nothing itself, and reads
            a file only where a name does not decide. A format of this distribution is asked only where ``marks.MARKS`` finds its names.
        open: opens the checkpoint at a location that is viewed as one checkpoint. Raises CorruptError for damage, FormatError for an
            unsupported feature.
        write: the form of a target, from the format's own options, parsed, and the open source. Raises PlanError for options that contradict
            each other or the source. None for a format that is only read.
    """

    about: About
    recognise: Callable[[PlaceNames], Mark | None]
    open: Callable[[Location, Opening], Reader]
    write: Callable[[Mapping[str, Any], Reader], Form] | None = None

    def form(self, options: Mapping[str, Any], source: Reader) -> Form:
        """The form of a target. Raises as ``write``, and PlanError for a format that is only read."""
        if self.write is None:
            raise PlanError(
                f"{source.uri}: {self.about.title} are only read, and the target has the format of the source where none is named; name another (to)"
            )
        return self.write(options, source)


_MOST_SHOWN = 8


def refuse_surrogates(title: str, target: TargetCheckpoint) -> None:
    """Raises PlanError for a name or a string that cannot be encoded as UTF-8, in which the format of that title stores them."""
    for leaf in target.leaves:
        for what, text in (("name", leaf.name), ("string", leaf.text or "")):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise PlanError(
                    f"{leaf.name!r}: the {what} has a lone surrogate, which {title} files cannot hold; rename it (rename) or leave "
                    "it out (drop)"
                )


def refuse_others(known: Format, target: TargetCheckpoint, source: Reader) -> None:
    """Raises FormatError, listing them, for strings, None, empty containers and PRNG keys, where the format holds tensors only.

    Only the source's own format holds values that are not read, and only those that are carried.
    """
    _refuse_objects(known, target)
    about = known.about
    values = (f"{leaf.name!r} ({leaf.kind})" for leaf in unheld(known, target.leaves))
    others = [*values, *_keys(about, target, source)]
    if others:
        held = "tensors and strings" if about.holds_texts else "tensors"
        held = held if about.tensors_only else "tensors and plain values"
        raise FormatError(
            f"{known.about.title} files hold {held} only, and cannot hold {_some(others)}; leave them out (drop), or write Orbax (to)"
        )


def unheld(known: Format, leaves: Sequence[Leaf]) -> Iterator[Leaf]:
    """The leaves that are no tensors and that the format has no place for."""
    about = known.about
    for leaf in leaves if about.tensors_only else ():
        is_held = leaf.tensor or _is_carried(about, leaf)
        if not (is_held or (about.holds_texts and leaf.text is not None)):
            yield leaf


def _keys(about: About, target: TargetCheckpoint, source: Reader) -> Iterator[str]:
    """The PRNG keys, where the format has no place for them."""
    for leaf in () if about.holds_keys else target.leaves:
        found = source.tensors.get(leaf.name)
        if (found is not None and found.is_key) or leaf.meta.get("ext_metadata"):
            yield f"{leaf.name!r} (a PRNG key)"


def _is_carried(about: About, leaf: Leaf) -> bool:
    """True if a value that is not read goes into a target as it is."""
    return leaf.carried is not None and leaf.carried.format == about.name


def _refuse_objects(known: Format, target: TargetCheckpoint) -> None:
    objects = [
        f"{leaf.name!r} ({leaf.kind})"
        for leaf in target.leaves
        if leaf.is_object and not _is_carried(known.about, leaf)
    ]
    if objects:
        raise FormatError(
            f"{known.about.title} cannot hold {_some(objects)}: such values are not read; leave them out (drop)"
        )


def _some(named: Sequence[str]) -> str:
    more = f" and {len(named) - _MOST_SHOWN} more" if len(named) > _MOST_SHOWN else ""
    return ", ".join(named[:_MOST_SHOWN]) + more


def refuse_database(form: Form, traits: Traits) -> None:
    """Raises PlanError for a target in a database, where files are not written in place, or other processes write too."""
    if form.put_bytes(0) is not None:
        traits.refuse_database()
