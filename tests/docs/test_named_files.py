"""Files that the map, the path of a conversion, messages, help and comments name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`?\b((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`?")
LINK = re.compile(r"\]\([^)]*\)")
PAGE = re.compile(r"(?<!tests/)\bdocs/[\w/.-]*\w\.(?:md|svg|png|py)\b")
FILE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")
PATH = re.compile(r"`((?:[\w-]+/)*(?:[\w-]+/|[\w-]+\.[a-z]+))`")
TEST = re.compile(r"`((?:tests/[\w/]+\.py)?)((?:::test_\w+)?)`")
TEXTS = {".py", ".md", ".html", ".js", ".toml", ".yaml", ".service", ".conf", ".sh"}
ROOMS = (
    "",
    "conversion",
    "engine",
    "engine/movers",
    "formats",
    "layout",
    "planning",
    "variables",
)
"""Where a bare name such as ``stream.py`` may lie, after its room was named."""


def section(title: str) -> str:
    """A section of CONTRIBUTING."""
    return (ROOT / "CONTRIBUTING.md").read_text().partition(title)[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/explanation/conversion-in-twelve-types.md"]
)
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    if page == "CONTRIBUTING.md":
        text = section("## Where things are")
    text = LINK.sub("]", text).replace("reshard/", "")
    named = {m[1] for m in NAMED.finditer(text)}
    assert len(named) > 15
    missing = [name for name in named if not _exists(name)]
    assert missing == []


@pytest.mark.parametrize("package", ["reshard", "server/reshard_server"])
def test_every_room_is_on_the_map(package: str) -> None:
    text = section("## Where things are")
    rooms = {path.parent.name for path in (ROOT / package).glob("*/*") if path.suffix in TEXTS}
    assert len(rooms) > 10
    assert {room for room in rooms if f"`{room}/`" not in text} == set()


def changes() -> list[tuple[str, list[str]]]:
    """The kinds of change that CONTRIBUTING lists, each with the files and rooms of its row."""
    lines = section("## A change, and where it goes").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    return [(row[0], PATH.findall(row[1])) for row in rows if row[0] != "| a change"]


@pytest.mark.parametrize(("change", "files"), changes())
def test_a_change_is_sent_to_a_few_files_that_exist(change: str, files: list[str]) -> None:
    assert 1 < len(files) <= 5, change
    places = (ROOT, ROOT / "reshard", ROOT / "server" / "reshard_server" / "pages" / "templates")
    assert [file for file in files if not any((place / file).exists() for place in places)] == []


def test_the_kinds_of_change_are_read() -> None:
    assert len(changes()) >= 15


def test_files_that_pages_name_exist() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    named = {(page.name, name) for page in pages for name in FILE.findall(page.read_text("utf-8"))}
    assert len(named) > 15
    assert sorted((page, name) for page, name in named if not _exists(name)) == []


def named_tests(page: str) -> list[tuple[str, str]]:
    """The tests that a page names, each with its file; ``::test_name`` alone is in the file named before it."""
    file, found = "", []
    for match in TEST.finditer(page):
        file = match[1] or file
        if match[0] != "``":
            found.append((file, match[2].removeprefix("::")))
    return found


def is_test(file: str, name: str) -> bool:
    path = ROOT / file
    return path.is_file() and f"def {name}(" in path.read_text("utf-8") if name else path.is_file()


def test_tests_that_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, *test) for page in pages for test in named_tests(page.read_text("utf-8"))}
    assert len(named) > 100
    assert sorted(test for test in named if not is_test(*test[1:])) == []


def test_a_test_that_is_gone_is_noticed() -> None:
    page = "`tests/test_imports.py::test_gone`, `::test_imports_run_one_way`, `tests/gone.py`"
    assert [test for test in named_tests(page) if not is_test(*test)] == [
        ("tests/test_imports.py", "test_gone"),
        ("tests/gone.py", ""),
    ]


def test_pages_that_code_and_messages_name_exist() -> None:
    named = {
        (str(file.relative_to(ROOT)), page)
        for folder in ("reshard", "server", "deploy", "tests", "benchmarks")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix in TEXTS
        for page in PAGE.findall(file.read_text("utf-8"))
    }
    assert len({page for _, page in named}) > 5
    assert sorted((file, page) for file, page in named if not (ROOT / page).exists()) == []


def _exists(name: str) -> bool:
    places = [
        ROOT,
        ROOT / "reshard",
        ROOT / "server",
        ROOT / "server" / "reshard_server",
        *(ROOT / "reshard" / room for room in ROOMS),
    ]
    return any((place / name).exists() for place in places)
