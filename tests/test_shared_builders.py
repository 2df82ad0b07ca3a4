"""What several tests share has a module of its own: no test module is imported by another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MODULES = sorted(TESTS.rglob("*.py"))


def imported(source: str) -> list[tuple[str, list[str]]]:
    """The modules that are imported, each with the names that are taken from it."""
    nodes = list(ast.walk(ast.parse(source)))
    taken = [
        (n.module or "", [a.name for a in n.names]) for n in nodes if isinstance(n, ast.ImportFrom)
    ]
    return taken + [(a.name, []) for n in nodes if isinstance(n, ast.Import) for a in n.names]


def wrong(source: str) -> list[str]:
    """Imports of test modules and conftest files, and of private names of other modules of the tests."""
    found = []
    for module, names in imported(source):
        if not module.startswith("tests."):
            continue
        last = [module.rpartition(".")[2], *names]
        found += [f"{module}: {n}" for n in last if n.startswith(("test_", "conftest", "_"))]
    return found


def test_no_test_module_is_imported_by_another() -> None:
    found = {path.relative_to(TESTS).as_posix(): wrong(path.read_text("utf-8")) for path in MODULES}
    assert {path: imports for path, imports in found.items() if imports} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from tests.layout.test_mesh import MESH",
        "from tests.server.api.conftest import Served",
        "from tests.engine.stores import _chunks",
        "import tests.layout.test_mesh",
    ],
)
def test_the_check_finds_what_it_looks_for(line: str) -> None:
    assert wrong(line)
