"""What the formats let a caller choose of their targets, and what a target's name says of its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.errors import PlanError
from reshard.formats import registry
from reshard.formats.format import Format
from reshard.options import Option


def format_names() -> tuple[str, ...]:
    """The names of the formats that are written."""
    return tuple(known.about.name for known in registry.FORMATS if known.about.is_written)


def format_options() -> dict[str, Option]:
    """The options that targets of all formats have, by name."""
    return {
        name: option for known in registry.FORMATS for name, option in known.about.options.items()
    }


def format_with(option: str) -> Format:
    """The first format whose targets have that option."""
    return next(known for known in registry.FORMATS if option in known.about.options)


def named_options(
    path: str, to: str | None, options: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The format that is asked for or that the target's name says, and the options of all formats, which it may change.

    Args:
        path: "" where options are checked before a target is named.

    Raises PlanError for options that contradict the name, and for a name without the ending that the format needs.
    """
    for about in (known.about for known in registry.FORMATS):
        one = about.one_file
        if to not in (None, about.name) or one is None:
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
