"""docs/explanation/reliability.md names the test of each promise; every one of them exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def named() -> list[tuple[str, str]]:
    """File and test of each name; one without a file means the file that was named before it."""
    found, file = [], ""
    for match in NAMED.finditer(
        (ROOT / "docs" / "explanation" / "reliability.md").read_text(encoding="utf-8")
    ):
        file = match[1] or file
        if match[1] or match[2]:
            found.append((file, match[2] or ""))
    return found


def test_every_test_that_is_named_is_there():
    missing = [
        f"{file}::{test}"
        for file, test in named()
        if not (ROOT / file).is_file() or (test and test not in names_in(file))
    ]
    assert missing == []
    assert len(named()) > 80
