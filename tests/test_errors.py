"""Errors are also Python's own where they are the same: missing, forbidden, there already."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import shorten
from reshard.storage.local.files import storage_errors


def test_a_missing_checkpoint_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist: expected") as found:
        reshard.inspect(tmp_path / "none")
    assert isinstance(found.value, reshard.MissingError)


def test_a_missing_layout_file_is_a_missing_file(tmp_path: Path) -> None:
    reshard.save(tmp_path / "a", {"w": np.ones(2)})
    with pytest.raises(
        FileNotFoundError, match=r"layout file .* cannot be read: No such file"
    ) as found:
        reshard.convert(tmp_path / "a", tmp_path / "b", layout=tmp_path / "none.yaml")
    assert isinstance(found.value, reshard.MissingError)


def test_a_target_that_is_there_is_a_file_that_exists(tmp_path: Path) -> None:
    reshard.save(tmp_path / "a", {"w": np.ones(2)})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("kept")
    with pytest.raises(FileExistsError, match="exists already and was left untouched") as found:
        reshard.convert(tmp_path / "a", tmp_path / "b")
    assert isinstance(found.value, reshard.TargetExistsError)


def test_no_permission_is_a_permission_error() -> None:
    with (
        pytest.raises(PermissionError, match="cannot read 'x': Permission denied; ") as found,
        storage_errors("read", "x"),
    ):
        raise PermissionError(13, os.strerror(13))
    assert isinstance(found.value, reshard.ForbiddenError)
    assert type(pickle.loads(pickle.dumps(found.value))) is reshard.ForbiddenError


def test_an_error_that_says_what_is_wrong_is_not_worded_again() -> None:
    first = reshard.MissingError("nothing is there; check the path")
    with pytest.raises(reshard.MissingError) as found, storage_errors("read", "x"):
        raise first
    assert found.value is first
    assert str(first) == "nothing is there; check the path"


class Counted(tuple[object, ...]):
    """A tuple that counts how often items of it are taken."""

    taken = 0

    def __iter__(self) -> Iterator[object]:
        for item in super().__iter__():
            Counted.taken += 1
            yield item


def test_the_text_of_a_value_is_cut_while_it_is_made() -> None:
    shared: tuple[object, ...] = ()
    for _ in range(60):
        shared = Counted((shared,) * 16)
    text = shorten(shared)
    del shared  # its own text would be shown where this fails
    assert text == "(" * 61 + "), (), (), (), (" + "..."
    assert Counted.taken < 200
    circle: list[object] = []
    circle.append(circle)
    assert shorten(circle) == "[" * 77 + "..."


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, -3, "it's", b"ab", [], (), {}, set(), frozenset(), (1,), [1, (2, 3)], {"a": [1], 2: {3}}, frozenset({4})],
    ids=repr,
)  # fmt: skip
def test_the_text_of_a_small_value_is_that_of_python(value: object) -> None:
    assert shorten(value) == repr(value)


def test_long_texts_and_numbers_are_cut() -> None:
    assert shorten("a" * 10**7) == "'" + "a" * 76 + "..."
    assert shorten(b"a" * 10**7, 120) == "b'" + "a" * 115 + "..."
    assert shorten([10**5000]) == "[a number of 16,610 bits]"
