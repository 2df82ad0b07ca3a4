"""The options of a target are declared once: whatever takes them knows exactly these, with the same defaults."""

from __future__ import annotations

import re

import pytest

from reshard.conversion.options import ConvertOptions, Target
from reshard.restoring.options import RestoreArguments, RestoreOptions

OPTIONS = tuple(ConvertOptions.__annotations__)


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
