"""The formats by name, by their marks on disk and by the names and options of targets: those of this distribution, and those that others add.

A distribution adds a format by an entry point of the group ``reshard.formats``: its name is the format's name, its object a
``Format``. They are looked up only where no format of this distribution recognises a place or has a name that is asked for, so
that no other call waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from reshard.errors import FormatError, PlanError
from reshard.formats.dcp.format import DCP, TORCH_DIST
from reshard.formats.format import About, Format, Mark, PlaceNames
from reshard.formats.keras.files import ARCHIVE
from reshard.formats.keras.files import ENDING as WEIGHTS
from reshard.formats.keras.format import KERAS
from reshard.formats.marks import MARKS, STATE_ENDINGS
from reshard.formats.orbax.format import ORBAX
from reshard.formats.safetensors.format import SAFETENSORS
from reshard.formats.state_dict.format import STATE_DICT
from reshard.formats.tensorflow.files import prefix_of
from reshard.formats.tensorflow.format import TENSORFLOW
from reshard.options import Option
from reshard.storage.location import Location

FORMATS: tuple[Format, ...] = (ORBAX, SAFETENSORS, TORCH_DIST, DCP, KERAS, STATE_DICT, TENSORFLOW)
"""In the order of ``MARKS``."""

GROUP = "reshard.formats"


@cache
def added_formats() -> tuple[Format, ...]:
    """The formats of other distributions that are installed. Raises FormatError for one that cannot be loaded."""
    from importlib.metadata import entry_points

    found = []
    for point in entry_points(group=GROUP):
        where = f"the entry point {point.name} = {point.value} of the group {GROUP}"
        by = f" of the distribution {point.dist.name}" if point.dist else ""
        try:
            one = point.load()
        except Exception as error:  # a module of others may raise anything
            raise FormatError(
                f"{where}{by} cannot be loaded: {type(error).__name__}: {error}; repair or remove that distribution"
            ) from error
        # Names and options of targets are declared here, so that no other distribution changes what they mean.
        if not isinstance(one, Format) or one.about.name != point.name or is_own_format(point.name):
            raise FormatError(
                f"{where}{by} is no reshard.formats.format.Format of that name, or its name is one of reshard's own; repair or remove that "
                "distribution"
            )
        if other := one.about.options.keys() - {
            name for own in FORMATS for name in own.about.options
        }:
            raise FormatError(
                f"{where}{by} has the option {min(other)!r}, which reshard does not have; a format may take options of reshard's own only"
            )
        found.append(one)
    return tuple(found)


def is_own_format(name: str) -> bool:
    """True if a format of this distribution has that name."""
    return any(known.about.name == name for known in FORMATS)


def own_formats() -> tuple[Format, ...]:
    """The formats of this distribution."""
    return FORMATS


def every_format() -> tuple[Format, ...]:
    """The formats of this distribution and of others. Raises as ``added_formats``."""
    return (*FORMATS, *added_formats())


def known_format(name: str) -> Format:
    """The format of that name. Raises as ``added_formats`` where it is none of this distribution."""
    known = FORMATS if is_own_format(name) else every_format()
    return next(one for one in known if one.about.name == name)


def mark_of(known: Format, names: PlaceNames) -> Mark | None:
    """The mark of a checkpoint of this format; None where its names, or what it says of them, show none."""
    is_marked = MARKS.get(known.about.name)
    return known.recognise(names) if is_marked is None or is_marked(names) else None


def marks(names: PlaceNames) -> Iterator[tuple[Format, Mark]]:
    """Each format that recognises the names, with its mark, in the order of ``FORMATS``.

    Formats of other distributions are asked only if none of these does, and only where a file or a folder has the name.
    """
    is_marked = False
    for known in FORMATS:
        # Nothing that is there has the name of a prefix, and in a bucket a look-up beside it is a request.
        if known.about.by_prefix and names.kind == "folder":
            continue
        if (mark := mark_of(known, names)) is not None:
            is_marked = True
            yield known, mark
    if is_marked or names.kind is None:
        return
    for known in added_formats():
        if (mark := known.recognise(names)) is not None:
            yield known, mark


def recognised(names: PlaceNames) -> tuple[Format, Mark] | None:
    """The first format that recognises the names."""
    return next(marks(names), None)


def files_of(root: Location, *, is_there: bool = False) -> tuple[Location, ...] | None:
    """The files that a prefix or an index stands for; None for another file, a folder, or nothing at all.

    ``is_there``: True if something is known to have that very name, so that it is no prefix.
    """
    names = PlaceNames(root)
    for known in FORMATS:
        is_index = known.about.is_index
        if not (is_index and is_index(names.name)) and not (known.about.by_prefix and not is_there):
            continue
        if (mark := mark_of(known, names)) is not None and mark.files:
            return mark.files
    return None


def format_names(asked: str | None = None) -> tuple[str, ...]:
    """The names of the formats that are written; of other distributions too if none of this one has the name that is asked for."""
    known = FORMATS if asked is None or is_own_format(asked) else every_format()
    return tuple(one.about.name for one in known if one.write is not None)


def format_options() -> dict[str, Option]:
    """The options that targets of all formats have, by name."""
    return {name: option for known in FORMATS for name, option in known.about.options.items()}


def format_with(option: str) -> Format:
    """The first format whose targets have that option."""
    return next(known for known in FORMATS if option in known.about.options)


def _refuse_other_name(path: str, to: str | None) -> None:
    """Raises PlanError for a target with the name of a file that a format does not write, or that is only a part of one.

    ``to``: the target's format; None where only its source says it.
    """
    name = path.rpartition("/")[2]
    if name.endswith(ARCHIVE):
        raise PlanError(
            f"the target {path!r} has the name of an archive of Keras, which is not written; name a file of weights, such as "
            f"{path.removesuffix(ARCHIVE) + WEIGHTS!r}, or leave the ending out (target)"
        )
    ending = next((one for one in reversed(STATE_ENDINGS) if name.endswith(one)), "")
    by_prefix = any(one.about.by_prefix for one in FORMATS if one.about.name == to)
    # TensorFlow 1 names its checkpoints model.ckpt.
    if ending and not (ending == ".ckpt" and (by_prefix or to is None)):
        raise PlanError(
            f"the target {path!r} has the name of a file of torch.save, which is not written; name a .safetensors file, or a folder without "
            f"the ending {ending}, in the format that you choose (to)"
        )
    if by_prefix and (prefix := prefix_of(name)):
        raise PlanError(
            f"the target {path!r} has the name of one file of a TensorFlow checkpoint; name what its files begin with, "
            f"{path.removesuffix(name) + prefix!r} (target)"
        )


def _refuse_temporary_name(path: str, about: About) -> None:
    name = path.rstrip("/").rpartition("/")[2]
    mark = next((mark for mark in about.temporary if mark in name), None)
    if mark is not None:
        raise PlanError(
            f"the target {path!r} has {mark!r} in its name, as a folder that {about.title} has not committed, so that nothing would read it; "
            "give it another name (target)"
        )


def named_options(
    path: str, to: str | None, options: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The format that is asked for, or that the target's name implies, and the options of all formats; the name may change them.

    Args:
        path: "" where options are checked before a target is named.

    Raises PlanError for options that contradict the name, for a name without the ending that the format needs, and for one of files that
    are not written.
    """
    _refuse_other_name(path, to)
    for known in FORMATS:
        about = known.about
        if to not in (None, about.name):
            continue
        if about.temporary:
            _refuse_temporary_name(path, about)
        one = about.one_file
        if one is None:
            continue
        if not path.endswith(one.ending):
            if path and to is not None and not one.option:
                raise PlanError(
                    f"the target {path!r} should have a name that ends in {one.ending}, by which {about.title} knows its files; add that "
                    "ending (target)"
                )
            continue
        if not one.option:
            return about.name, options
        if options[one.option] not in (None, one.value):
            raise PlanError(
                f"{one.option} is {options[one.option]!r}, which makes a folder, but the target {path!r} has the name of a file; "
                f"name a folder, or leave {one.option} out for one file"
            )
        return about.name, {**options, one.option: one.value}
    return to, options
