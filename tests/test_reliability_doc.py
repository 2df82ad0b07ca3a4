"""docs/explanation/reliability.md names the test of each promise; every one of them exists, and ``make test`` runs it."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file, and other functions, but those that are left to campaigns."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return frozenset(one.name for one in functions if not any(map(is_campaign, one.decorator_list)))


def is_campaign(decorator: ast.expr) -> bool:
    """Only ``make campaigns`` runs what has this mark."""
    return ast.unparse(decorator) == "pytest.mark.campaign"


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
