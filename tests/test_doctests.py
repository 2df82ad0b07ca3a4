"""The examples in docstrings of the library are what their functions answer."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import reshard

LIBRARY = Path(reshard.__file__).parent
MODULES = sorted(
    ".".join(("reshard", *path.relative_to(LIBRARY).with_suffix("").parts))
    for path in LIBRARY.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str) -> None:
    found = doctest.testmod(
        import_module(name.removesuffix(".__init__")), optionflags=doctest.ELLIPSIS
    )
    assert found.failed == 0


def test_there_are_examples() -> None:
    assert len(MODULES) > 20
