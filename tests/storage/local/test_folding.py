"""Names that a file system takes for one are refused there, before anything is stored under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

import reshard
from reshard.errors import StorageError
from reshard.storage.local import target_checks
from reshard.storage.local.target_checks import refuse_folded
from reshard.storage.location import locate
from tests.equal import assert_same
from tests.orbax_trees import save_pytree

COMPOSED, DECOMPOSED = normalize("NFC", "ä"), normalize("NFD", "ä")
TREE = {"W": np.arange(4.0), "w": np.zeros(4), "b": np.ones(2)}


def folded(name: str) -> str:
    return normalize("NFD", name).casefold()


def is_there(path: Path) -> bool:
    """As on a file system that folds."""
    probe = next(above for above in path.parents if above.name == ".reshard-names")
    there = {folded(str(found.relative_to(probe))) for found in probe.rglob("*")}
    return folded(str(path.relative_to(probe))) in there


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def _folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_checks, "_is_there", is_there)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_pytree(tmp_path / "source", TREE)


@pytest.mark.usefixtures("_folds")
@pytest.mark.parametrize(
    ("one", "other"),
    [("W", "w"), ("straße", "STRASSE"), (COMPOSED, DECOMPOSED), ("State/w", "state/v"), ("a/B/c", "a/b/c")],
)  # fmt: skip
def test_names_that_are_one_are_refused(one: str, other: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        refuse_folded(locate(str(tmp_path)), ["alone", one, other])
    text = str(caught.value)
    assert text.startswith(f"the file system of {tmp_path} takes ")
    assert text.endswith(
        " for one name, so that what is stored there would be mixed; write an OCDBT database (ocdbt) or safetensors (to), rename one "
        "(rename), or choose a target on another file system"
    )
    shown = [name for pair in zip(one.split("/"), other.split("/"), strict=True) for name in pair]
    assert all(repr(name)[1:-1] in text for name in shown if folded(name) == folded(shown[0]))
    assert names_in(tmp_path) == []


def test_names_that_differ_here_are_taken(tmp_path: Path) -> None:
    refuse_folded(locate(str(tmp_path)), ["W", "w", COMPOSED, DECOMPOSED])
    assert names_in(tmp_path) == []


def test_a_probe_of_a_run_that_was_killed_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / ".reshard-names" / "w").mkdir(parents=True)
    refuse_folded(locate(str(tmp_path)), ["W", "w"])
    assert names_in(tmp_path) == []


def test_nothing_is_asked_where_no_names_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_checks, "_taken_for_one", lambda *_: pytest.fail("asked"))
    refuse_folded(locate(str(tmp_path)), ["params.w", "params.b", "opt/a", "opt/b", "params.w"])


@pytest.mark.usefixtures("_folds")
def test_a_conversion_is_refused_and_its_ways_out_work(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(StorageError, match="takes 'W' and 'w' for one name, so that"):
        reshard.convert(source, target)
    assert names_in(tmp_path) == ["source"]
    ways: list[dict[str, Any]] = [{"ocdbt": True}, {"to": "safetensors"}, {"rename": [("^w$", "small")]}]  # fmt: skip
    for number, options in enumerate(ways):
        way = tmp_path / str(number)
        reshard.convert(source, way, **options)
        assert_same(reshard.restore(way)["W"], TREE["W"], "W")


@pytest.mark.usefixtures("_folds")
def test_a_save_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="takes 'W' and 'w' for one name, so that"):
        reshard.save(tmp_path / "saved", TREE)
    assert names_in(tmp_path) == []


@pytest.mark.usefixtures("_folds")
def test_a_tensor_that_has_the_name_of_a_metadata_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="takes '_METADATA' and '_metadata' for one name"):
        reshard.save(tmp_path / "saved", {"_metadata": np.ones(2)})


def test_both_are_stored_where_they_differ(source: Path, tmp_path: Path) -> None:
    reshard.convert(source, tmp_path / "target")
    found = reshard.restore(tmp_path / "target")
    for name, array in TREE.items():
        assert_same(found[name], array, name)
    assert ".reshard-names" not in names_in(tmp_path / "target")
