"""The form of a target: its format, with that format's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.conversion.check_target import CheckedOptions, parsed_options
from reshard.conversion.options import Target
from reshard.errors import PlanError
from reshard.formats.base import Form, Reader
from reshard.formats.format import Format
from reshard.formats.registry import format_with, known_format
from reshard.storage.base import ON_DISK, Traits


def form_of(reader: Reader, options: CheckedOptions, traits: Traits = ON_DISK) -> Form:
    """The form of a target of the open source, in a place with these traits.

    Raises PlanError for options of another format, and for options that contradict each other or the source.
    """
    known = known_format(options.to or reader.format)
    refuse_others(known, options)
    given = {name: options.format_options[name] for name in known.about.options}
    if not traits.in_place:
        given |= _of_objects(known, options, given)
    return known.form(given, reader)


def _of_objects(known: Format, options: CheckedOptions, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are others by default where chunks are put as objects."""
    defaults = parsed_options(Target(""))
    return {
        name: option.in_bucket(options.max_memory)
        for name, option in known.about.options.items()
        if option.in_bucket is not None and given[name] == defaults[name]
    }


def refuse_others(known: Format, options: CheckedOptions) -> None:
    """Raises PlanError for an option, given another value than its default, that the format does not have."""
    defaults = parsed_options(Target(""))
    for name, value in options.format_options.items():
        if name not in known.about.options and value != defaults[name]:
            other = format_with(name).about.title
            raise PlanError(
                f"{name} is an option of {other} targets, but the target's format is {known.about.name}; leave it out ({name}), or "
                f"write {other} (to)"
            )
