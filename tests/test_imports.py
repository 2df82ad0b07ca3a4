"""Imports run one way, downwards, and `import reshard` stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "__main__", "demo", "cli", "api", "engine", "plan", "formats", "storage", "variables", "layout",
    "errors",
)  # fmt: skip
STRANGERS = {("plan", "formats")}
HEAVY = ("jax", "orbax", "tensorstore", "torch", "tensorflow", "keras")


def room(module: str) -> str:
    """The part of the house that a dotted module name below ``reshard`` belongs to."""
    return module.split(".")[1]


def imported(source: str) -> Iterator[str]:
    """Dotted names of everything under ``reshard`` that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("reshard."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "reshard":
                yield from (f"reshard.{a.name}" for a in node.names)
            elif node.module.startswith("reshard."):
                yield node.module


def complaint(user: str, used: str) -> str | None:
    """Why ``user`` may not import ``used``, or None where it may."""
    if used not in ROOMS:
        return f"reshard.{used} is no part of the house"
    if ROOMS.index(used) < ROOMS.index(user):
        return f"{used} lies above {user}"
    if (user, used) in STRANGERS:
        return f"{user} and {used} must not know each other"
    return None


def modules() -> list[Path]:
    return sorted(p for p in (ROOT / "reshard").rglob("*.py") if p.parent != ROOT / "reshard"
                  or p.stem != "__init__")  # fmt: skip


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_downwards(path: Path) -> None:
    user = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found = {used: complaint(user, room(used)) for used in imported(path.read_text("utf-8"))}
    assert {used: why for used, why in found.items() if why} == {}


def test_the_rule_finds_what_it_forbids() -> None:
    source = "from reshard.api import plan\ndef f():\n    import reshard.formats.base\n"
    assert list(imported(source)) == ["reshard.api", "reshard.formats.base"]
    assert complaint("layout", "api") == "api lies above layout"
    assert complaint("plan", "formats") == "plan and formats must not know each other"
    assert complaint("formats", "plan") == "plan lies above formats"
    assert complaint("cli", "errors") is None


def test_no_relative_imports() -> None:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: use full names"


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the heavy packages that a fresh interpreter has after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split()) & set(HEAVY)


def test_importing_reshard_loads_nothing_heavy() -> None:
    assert loaded_by("import reshard") == set()


def test_the_light_import_test_sees_heavy_ones() -> None:
    assert loaded_by("import tensorstore") == {"tensorstore"}


def test_the_server_uses_only_public_names() -> None:
    for path in sorted((ROOT / "server" / "reshard_server").rglob("*.py")):
        deep = [m for m in imported(path.read_text("utf-8")) if m.count(".") > 1]
        private = [m for m in deep if not m.startswith("reshard.errors")]
        assert private == [], f"{path} reaches into {private}; import from reshard instead"
