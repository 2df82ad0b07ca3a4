"""The options of a target are declared once: whatever takes them knows exactly these, with the same defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Literal, get_args, get_origin

import pytest

import reshard
from reshard.cli.commands import convert, plan
from reshard.cli.option_names import LIBRARY_NAMES
from reshard.conversion.options import ConvertOptions, Target
from reshard.restoring.options import RestoreArguments, RestoreOptions

OPTIONS = tuple(ConvertOptions.__annotations__)
CHOICES = {"missing_axes": reshard.MissingAxes, "style": reshard.Style, "check": reshard.Check}
DEFAULTS = Target("")


def documented(declaration: type) -> list[str]:
    """The names in the Attributes section of a docstring, in order."""
    section = (declaration.__doc__ or "").split("Attributes:\n")[1]
    return re.findall(r"^ {8}(\w+):", section, re.MULTILINE)


def test_target_has_every_option() -> None:
    assert Target.__struct_fields__ == ("target", *OPTIONS)


@pytest.mark.parametrize("declaration", [ConvertOptions, RestoreOptions])
def test_every_option_is_documented(declaration: type) -> None:
    assert documented(declaration) == list(declaration.__annotations__)


def test_restore_has_every_option() -> None:
    assert RestoreArguments.__struct_fields__ == tuple(RestoreOptions.__annotations__)


def choices_in(annotation: object) -> set[object]:
    """The values that a Literal somewhere in an annotation allows."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    parts = (
        get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    )
    return set().union(*map(choices_in, parts)) if parts else set()


@pytest.mark.parametrize(
    ("command", "left_out"),
    [(convert.convert, set()), (plan.plan, {"check", "restart"})],
    ids=["convert", "plan"],
)
def test_the_command_line_has_every_option(
    command: Callable[..., None], left_out: set[str]
) -> None:
    shown = {LIBRARY_NAMES.get(n, n): p for n, p in inspect.signature(command).parameters.items()}
    assert set(OPTIONS) - shown.keys() == left_out
    for name in set(OPTIONS) - left_out:
        assert (shown[name].default or None) == (getattr(DEFAULTS, name) or None)
        assert choices_in(shown[name].annotation) == choices_in(CHOICES.get(name))
