"""A paragraph stands once in a file: a merge that doubles one leaves correct code, which no other test notices."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SHORTEST = 60
"""Characters of a paragraph that is compared: the shape of a result is said in a few words, again and again."""


def doubled(source: str) -> list[str]:
    """Paragraphs that a docstring of a module has twice, or that definitions of two names have.

    Methods of one name in several classes do one thing, so that they may say the same.
    """
    names: dict[str, set[str]] = defaultdict(set)
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            paragraphs = [one for part in text.split("\n\n") if len(one := " ".join(part.split())) >= SHORTEST]  # fmt: skip
            found += [one for one in set(paragraphs) if paragraphs.count(one) > 1]
            for one in paragraphs:
                names[one].add(getattr(node, "name", ""))
    return found + [one for one, of in names.items() if len(of) > 1]


@pytest.mark.parametrize("room", ["reshard", "server/reshard_server"])
def test_no_paragraph_stands_twice_in_a_file(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    found = {str(file): doubled(file.read_text("utf-8")) for file in files}
    assert {file: texts for file, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""{0}\n\n{1}"""', 0),
        ('"""{0}\n\n{0}"""', 1),
        ('def a():\n    """{0}"""\ndef b():\n    """{0}"""', 1),
        ('class A:\n    def a(self):\n        """{0}"""\nclass B:\n    def a(self):\n        """{0}"""', 0),
        ('def a():\n    """Short."""\ndef b():\n    """Short."""', 0),
    ],
)  # fmt: skip
def test_the_check_finds_what_it_looks_for(source: str, count: int) -> None:
    texts = [f"{word} says so in a sentence that is long enough to be compared at all." for word in ("One", "Two")]  # fmt: skip
    assert len(doubled(source.format(*texts))) == count
