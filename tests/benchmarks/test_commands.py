"""Every benchmark can be loaded, and every command that a page or a docstring names is there."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
COMMAND = re.compile(r"python -m (benchmarks(?:\.\w+)+)")
OF_PEERS = "peers"
"""Programs that set up jax and run when they are loaded."""


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_benchmark_can_be_loaded(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if OF_PEERS in path.parts:
        compile(path.read_text("utf-8"), str(path), "exec")
    else:
        importlib.import_module(module.removesuffix(".__init__"))


def test_every_command_that_is_named_is_there() -> None:
    pages = [ROOT / "Makefile", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *BENCHMARKS]
    named = {name for page in pages for name in COMMAND.findall(page.read_text("utf-8"))}
    assert len(named) > 8
    assert sorted(name for name in named if find_spec(name) is None) == []
