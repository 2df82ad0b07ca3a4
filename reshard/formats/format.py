"""Format: the entry of a checkpoint format in the registry.

A format recognises and opens checkpoints, and plans the files of a target; it moves no tensor bytes, and knows no plan of a
conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from reshard.arguments import Unlisted
from reshard.errors import FormatError, PlanError
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import Item, Leaf, StoredTensor
from reshard.geometry.grid import Grid
from reshard.options import Option
from reshard.storage.base import Traits
from reshard.storage.location import Location

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap
    from reshard.formats.slices.record_files import RecordedFolder


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
        is_written: True if targets can have it; False for a format that is only read.
        by_prefix: True if a checkpoint is named by the prefix of its files' names, which no file has as its whole name.
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
    by_prefix: bool = False
    is_written: bool = True
    is_flat: bool = False
    written_as: str = ""


def _yes(_: Location) -> bool:
    return True


class Recognised(Struct, frozen=True, kw_only=True):
    """A checkpoint that has the marks of a format. Facts that need other files are looked up on request.

    Attributes:
        count_leaves: estimates the number of leaves without opening it; 0 if it cannot be read.
        is_ours: tells if a target may replace it: nothing is lost but a checkpoint.
        is_finished: tells if no mark says that it was not committed.
        is_no_run: tells if it is certainly one checkpoint, and not the folder of a training run.
        items: its items; none in a format without items.
    """

    count_leaves: Callable[[Location], int]
    is_ours: Callable[[Location], bool]
    is_finished: Callable[[Location], bool] = _yes
    is_no_run: Callable[[Location], bool] = _yes
    items: Callable[[Location], tuple[Item, ...]] = lambda _: ()


class Format(Protocol):
    """A format; an entry of ``registry.FORMATS``.

    A class that inherits from this one has ``files_of``, ``may_be_file``, ``warnings`` and ``folders_to_record`` of a format that has none.
    """

    about: About

    def recognise(self, root: Location) -> Recognised | None:
        """The checkpoint at a location, finished or not, by its marks; None for anything else."""
        ...

    def files_of(self, root: Location) -> tuple[Location, ...] | None:  # noqa: ARG002  of the interface
        """The files that a location stands for, in a fixed order; None where it is one file or a folder.

        A format whose checkpoints are named by a prefix gives ``run/ckpt-1000.index``, … for ``run/ckpt-1000``; nothing may have
        that very name. An index stands for itself and the files beside it.
        """
        return None

    def may_be_file(self, name: str) -> bool:  # noqa: ARG002  of the interface
        """True if a file of that name may be a checkpoint by itself; ``recognise`` then decides."""
        return False

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",
    ) -> Reader:
        """Opens the checkpoint at a location that is viewed as one checkpoint.

        Args:
            record: the use of its record.
            uri: the text by which the user named it.
            unlisted: the treatment of tensors and files that no index lists.

        Raises CorruptError for damage, FormatError for an unsupported feature.
        """
        ...

    def form(self, options: Mapping[str, Any], source: Reader) -> Form:
        """The form of a target, from the format's own options, parsed, and the open source.

        Raises PlanError for options that contradict each other or the source.
        """
        ...

    def arrange(
        self,
        form: Form,
        tensor: TargetTensor,
        source: StoredTensor,
        slices: Grid,
    ) -> TargetTensor:
        """A tensor of a target with the chunks and the encoding in which it is stored.

        Args:
            tensor: as one chunk without encoding.
            slices: the parts of it that readers will want.

        Raises PlanError, naming the tensor, for a dtype that the format does not have and for too many chunks.
        """
        ...

    def warnings(self, target: TargetCheckpoint, source: Reader) -> Iterator[str]:  # noqa: ARG002  of the interface
        """Notes for a person about a target, one sentence each; PlanError for options that its tensors contradict."""
        return iter(())

    def plan(self, target: TargetCheckpoint) -> FileMap:
        """The files of a target; nothing is written yet.

        Raises FormatError or PlanError, naming the tensor, for names that collide or are unsafe and for arrays that
        the format cannot hold; LayoutError where a layout does not divide its tensor.
        """
        ...

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:  # noqa: ARG002  of the interface
        """The folders of an open checkpoint that get a slices.json, the top last.

        Raises FormatError for a checkpoint that has no room for one.
        """
        return []


class ReadFormat(Format):
    """A format that is only read: a target of it is refused."""

    def form(self, options: Mapping[str, Any], source: Reader) -> Form:  # noqa: ARG002  of the interface
        """Raises PlanError."""
        raise self._refusal(source.uri)

    def arrange(
        self,
        form: Form,  # noqa: ARG002  of the interface
        tensor: TargetTensor,
        source: StoredTensor,  # noqa: ARG002  of the interface
        slices: Grid,  # noqa: ARG002  of the interface
    ) -> TargetTensor:
        """Raises PlanError."""
        raise self._refusal(repr(tensor.spec.name))

    def plan(self, target: TargetCheckpoint) -> FileMap:
        """Raises PlanError."""
        raise self._refusal(repr(target.form))

    def _refusal(self, what: str) -> PlanError:
        return PlanError(
            f"{what}: {self.about.title} are only read, and the target has the format of the source where none is named; name another (to)"
        )


_MOST_SHOWN = 8


def refuse_surrogates(known: Format, target: TargetCheckpoint) -> None:
    """Raises PlanError for a name or a string that cannot be encoded as UTF-8, in which the format stores them."""
    for leaf in target.leaves:
        for what, text in (("name", leaf.name), ("string", leaf.text or "")):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise PlanError(
                    f"{leaf.name!r}: the {what} has a lone surrogate, which {known.about.title} files cannot hold; rename it (rename) or leave "
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
