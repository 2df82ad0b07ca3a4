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


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda s: s.name)
def test_the_text_is_in_the_file_once_and_its_replacement_is_code(sabotage: Sabotage) -> None:
    changed = sabotage.applied(ROOT)
    assert ast.dump(ast.parse(changed)) != ast.dump(
        ast.parse((ROOT / sabotage.file).read_text("utf-8"))
    )


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda s: s.name)
def test_the_tests_are_there(sabotage: Sabotage) -> None:
    assert sabotage.tests
    for test in sabotage.tests:
        file, *inside, function = test.partition("[")[0].split("::")
        found = ast.parse((ROOT / file).read_text("utf-8"))
        assert not inside
        assert function in [n.name for n in found.body if isinstance(n, ast.FunctionDef)], test


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
