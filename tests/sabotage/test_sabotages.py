"""The sabotages fit the code as it is, and only a test that failed counts as having caught one."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.sabotage.command import check, main
from tests.sabotage.listed import SABOTAGES
from tests.sabotage.sabotage import LostTextError, Sabotage
from tests.sabotage.tree import ROOT, sabotaged
from tests.sabotage.trial import run_tests

TEXT = "def double(n):\n    return 2 * n\n"
FITS = Sabotage("tripled", "three times as much", "code.py", "2 * n", "3 * n", ("test_code.py",))


def test_each_text_is_in_its_file_once_and_its_replacement_is_code() -> None:
    """Another program, not only another text: what it parses to differs."""
    for sabotage in SABOTAGES:
        changed = sabotage.applied(ROOT)
        before = (ROOT / sabotage.file).read_text("utf-8")
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(before)), sabotage.name


def functions(file: str) -> set[str]:
    """The functions of a module that are in no class, but those that are left to campaigns."""
    found = ast.parse((ROOT / file).read_text("utf-8")).body
    return {
        node.name
        for node in found
        if isinstance(node, ast.FunctionDef)
        and "pytest.mark.campaign" not in map(ast.unparse, node.decorator_list)
    }


def test_the_tests_of_each_are_there() -> None:
    assert [sabotage.name for sabotage in SABOTAGES if not sabotage.tests] == []
    named = [test.partition("[")[0].split("::") for s in SABOTAGES for test in s.tests]
    known = {file: functions(file) for file in {file for file, *_ in named}}
    assert [parts for parts in named if len(parts) != 2 or parts[1] not in known[parts[0]]] == []


def test_each_name_is_given_once() -> None:
    assert [name for name, count in Counter(s.name for s in SABOTAGES).items() if count > 1] == []


@pytest.mark.parametrize(("text", "found"), [("return n\n", 0), (TEXT + TEXT, 2)])
def test_a_text_that_is_not_there_once(tmp_path: Path, text: str, found: int) -> None:
    (tmp_path / "code.py").write_text(text)
    said = f"the text of sabotage tripled is no longer in code.py: rewrite it (expected once, found {found} times)"
    with pytest.raises(LostTextError) as error:
        FITS.applied(tmp_path)
    assert str(error.value) == said


def test_a_lost_text_fails_before_any_test_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert check([Sabotage("lost", "", "reshard/version.py", "no such text", "", ())]) == 1
    assert "the text of sabotage lost is no longer in reshard/version.py" in capsys.readouterr().err


def test_a_name_that_no_sabotage_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["no-such-sabotage"])
    assert end.value.code == 2
    assert "no sabotage is called no-such-sabotage; --list names all" in capsys.readouterr().err


def test_the_file_is_as_before_after_the_block(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(TEXT)
    before = path.stat().st_mtime_ns
    with sabotaged(tmp_path, FITS):
        assert path.read_text() == TEXT.replace("2", "3")
    assert (path.read_text(), path.stat().st_mtime_ns) == (TEXT, before)


FAILS_IN_FIXTURE = """
import pytest


@pytest.fixture
def two():
    raise OSError


def test_double(two):
    pass
"""


@pytest.mark.parametrize(
    ("test", "is_caught"),
    [
        ("def test_double():\n    assert False\n", True),
        ("def test_double():\n    pass\n", False),
        ("import no_such_module\n\n\ndef test_double():\n    assert False\n", False),
        ("def test_other():\n    assert False\n", False),
        (FAILS_IN_FIXTURE, False),
    ],
    ids=["fails", "passes", "cannot be collected", "is not there", "its fixture fails"],
)
def test_only_a_test_that_failed_has_caught_it(tmp_path: Path, test: str, is_caught: bool) -> None:
    (tmp_path / "test_code.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    trial = run_tests(tmp_path, ["test_code.py::test_double"])
    assert trial.has_caught == is_caught, trial.output
    assert trial.failed == (("test_code.py::test_double",) if is_caught else ())
