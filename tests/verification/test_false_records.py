"""Rules that a stranger's checkpoint records: never applied, and refused or found where they are wrong."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError
from tests.orbax_trees import save_standard
from tests.verification.slice_records import rewrite

BOMB = "(a+)+$"


def test_patterns_of_a_stranger_are_never_applied(tmp_path):
    source = save_standard(tmp_path / "a", {"a" * 40 + "b": np.zeros(3)})
    reshard.convert(source, tmp_path / "b", cast={".": "float32"})
    made = {"select": [BOMB], "drop": [BOMB], "rename": [[BOMB, "x"]], "cast": [["(", "no dtype"]]}
    rewrite(tmp_path / "b" / "slices.json", lambda document: document["made"].update(made))
    found = reshard.verify(source, tmp_path / "b")
    assert (found.differences, found.rules.select) == (0, (BOMB,))
    assert [t.comparison for t in found.tensors] == ["cast"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"source": "zz"}, "made has the source 'zz' where 32 hex digits were expected"),
        ({"tensors": -1}, "expected the number of tensors made to be whole numbers from 0, found [-1]"),
        ({"select": "x"}, "expected the select rules of made to be a list of strings, found x"),
        ({"drop": [1]}, "expected the drop rules of made to be a list of strings, found [1]"),
        ({"rename": [["a"]]}, "expected the rename rules of made to be a list of pairs, found [['a']]"),
        ({"cast": 5}, "expected the cast rules of made to be a list of pairs, found 5"),
        ({"origins": []}, "expected 'origins' to be an object, found list"),
        ({"origins": {"w": {"name": 3}}}, "the origin of 'w' names no tensor"),
        ({"origins": {"w": {"name": "w", "dtype": "float7"}}}, "the origin of 'w' has the unknown dtype 'float7'"),
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_refused(tmp_path, change, text):
    source = save_standard(tmp_path / "a", {"w": np.zeros(3)})
    reshard.convert(source, tmp_path / "b")
    rewrite(tmp_path / "b" / "slices.json", lambda document: document["made"].update(change))
    with pytest.raises(CorruptError, match=re.escape(text)):
        reshard.inspect(tmp_path / "b")
    found = reshard.verify(source, tmp_path / "b")
    assert text in "".join(f.detail for f in found.files)
    assert found.differences


def test_unknown_members_are_passed_over(tmp_path):
    source = save_standard(tmp_path / "a", {"w": np.zeros(3)})
    reshard.convert(source, tmp_path / "b", cast={"w": "float16"})

    def add(document):
        document["made"]["later"] = {"any": [1]}
        document["made"]["origins"]["w"]["saturate"] = True
        document["later"] = 5

    rewrite(tmp_path / "b" / "slices.json", add)
    assert reshard.verify(source, tmp_path / "b").differences == 0


@pytest.mark.parametrize(
    ("origins", "damage"),
    [
        ({"u": {"name": "v"}}, "records that two of its tensors were made of the same one"),
        ({"u": {"name": "gone"}}, ""),
        ({"gone": {"name": "u"}}, "('gone' is not there)"),
        ({"u": {"name": "z", "dtype": "complex64"}}, ""),
        ({"u": {"name": "key", "dtype": "uint32"}}, ""),
    ],
)
def test_false_records_are_reported_as_differences(tmp_path, origins, damage):
    tree = {
        "u": np.zeros(2, np.float32),
        "v": np.ones(2, np.float32),
        "z": np.ones(2, np.complex64),
    }
    source = save_standard(tmp_path / "a", {**tree, "key": jax.random.key(0)})
    reshard.convert(source, tmp_path / "b", select=["^[uv]$"])
    rewrite(
        tmp_path / "b" / "slices.json", lambda document: document["made"].update(origins=origins)
    )
    found = reshard.verify(source, tmp_path / "b")
    assert found.differences
    assert damage in "".join(found.damage)
