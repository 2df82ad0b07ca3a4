"""The object graph of a TensorFlow target: kept from a source of TensorFlow, without what is dropped; else made of the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.errors import CorruptError
from reshard.formats.contents import Carried, CarriedPart, Extent
from reshard.formats.tensorflow import other_leaves
from reshard.formats.tensorflow.object_graph import VALUE, kept_graph, object_graph
from reshard.formats.tensorflow.strings import one_string, stored_strings
from reshard.geometry.grid import Box
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = pytest.mark.xdist_group("tensorflow")

ROWS = [1, 3, 3]
TWO = {"partitions": [{"match": "^table$", "fixed_shards": 2}]}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tensorflow: Oracle) -> str:
    """A variable that ``first`` and ``second`` name, a lookup table, and a ShardedVariable of three shards."""
    return str(tensorflow.ask("save_shared", folder=str(tmp_path_factory.mktemp("shared"))))


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return [one.tobytes() for one in a] == [one.tobytes() for one in b]


def test_paths_that_share_a_variable_and_lookup_tables_stay(
    shared: str, tmp_path: Path, tensorflow: Oracle
) -> None:
    asked: dict[str, Any] = {"of_second": "second", "rows": ROWS}
    wanted = tensorflow.ask("restored_shared", prefix=shared, **asked)
    assert wanted[1].tolist() == [1, 2, -1]
    report = reshard.convert(shared, tmp_path / "made", layout=TWO, files="one")
    assert not [said for said in report.warnings if "graph" in said]
    assert same(tensorflow.ask("restored_shared", prefix=str(tmp_path / "made"), **asked), wanted)


def test_values_that_are_dropped_are_no_values_of_the_graph(
    shared: str, tmp_path: Path, tensorflow: Oracle
) -> None:
    asked = {"of_second": "second", "rows": ROWS}
    reshard.convert(shared, tmp_path / "made", drop=["^first$"])
    with pytest.raises(
        RefusedError, match="Found 1 Python objects that were not bound to checkpointed values"
    ):
        tensorflow.ask("restored_shared", prefix=str(tmp_path / "made"), **asked)
    saved = tensorflow.ask("save_keras", folder=str(tmp_path))
    reshard.convert(saved, tmp_path / "model", drop=["OPTIMIZER_SLOT"])
    wanted = tensorflow.ask("resumed_keras", prefix=saved)
    reshard.convert(saved, tmp_path / "all")
    assert same(tensorflow.ask("resumed_keras", prefix=str(tmp_path / "all")), wanted)
    *weights, step = tensorflow.ask("restored_without_slots", prefix=str(tmp_path / "model"))
    assert same(weights, wanted[:4])
    assert step == 2


def test_a_renamed_tensor_has_the_path_of_its_name(
    shared: str, tmp_path: Path, tensorflow: Oracle
) -> None:
    report = reshard.convert(
        shared, tmp_path / "made", rename=[("^first$", "third")], drop=["^lookup/"]
    )
    assert report.warnings[-1] == (
        f"the object graph is made of the names, and not kept from the source, whose graph does not have 'third{VALUE}': objects that had "
        "several paths have one"
    )
    found = tensorflow.ask("checkpoint_values", prefix=str(tmp_path / "made"))
    assert f"third{VALUE}" in found


def test_a_graph_that_is_too_large_is_not_kept(
    shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensorflow: Oracle
) -> None:
    monkeypatch.setattr(other_leaves, "MOST_GRAPH_BYTES", 10)
    reshard.convert(shared, tmp_path / "made", drop=["^lookup/"])
    asked = {"of_second": "second", "rows": ROWS}
    with pytest.raises(RefusedError):
        tensorflow.ask("restored_shared", prefix=str(tmp_path / "made"), **asked)


def put(folder: Path, graph: bytes) -> Carried:
    stored, crc = stored_strings(one_string(graph))
    (folder / "data").write_bytes(stored)
    part = CarriedPart(Extent(str(folder / "data"), 0, len(stored)), Box((), ()), crc)
    return Carried("tensorflow", (part,), (), crc)


def test_a_slot_without_its_value_is_left_out(tmp_path: Path) -> None:
    kernel, slot = f"w{VALUE}", f"w/.OPTIMIZER_SLOT/opt/m{VALUE}"
    graph = put(tmp_path, object_graph([kernel, slot]))
    assert kept_graph(graph, [kernel, slot]) == object_graph([kernel, slot])
    found = kept_graph(graph, [kernel])
    assert isinstance(found, bytes)
    assert b"VARIABLE_VALUE" in found
    assert b"m" not in found.replace(b"VARIABLE_VALUE", b"")
    assert kept_graph(graph, [kernel, f"v{VALUE}", slot]) == f"v{VALUE}"
    assert kept_graph(graph, [kernel, slot, "no object"]) == object_graph([kernel, slot])


def test_a_damaged_graph_is_found(shared: str, tmp_path: Path) -> None:
    for file in Path(shared).parent.glob("ckpt-1.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = tmp_path / "ckpt-1.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[content.index(b"second")] ^= 1
    data.write_bytes(content)
    with pytest.raises(CorruptError) as caught:
        reshard.convert(tmp_path / "ckpt-1", tmp_path / "made")
    assert str(caught.value) == (
        f"{data}: the strings of '_CHECKPOINTABLE_OBJECT_GRAPH' are damaged: they do not have their checksum; restore the file from a copy"
    )
    with pytest.raises(CorruptError) as caught:
        kept_graph(put(tmp_path, b"\x0a\x05\x12"), [])
    assert str(caught.value) == (
        f"{tmp_path / 'data'}: the object graph is damaged: a field goes beyond its end; restore the file from a copy"
    )
    assert [file.name for file in tmp_path.glob("made*")] == []


@given(st.data())
def test_any_damage_is_an_error_or_a_graph(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    keys = [f"a/b{VALUE}", f"a/b/.OPTIMIZER_SLOT/opt/m{VALUE}", f"c{VALUE}"]
    damaged = bytearray(object_graph(keys))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    graph = put(tmp_path_factory.mktemp("graph"), bytes(damaged))
    try:
        found = kept_graph(graph, data.draw(st.lists(st.sampled_from(keys))))
    except CorruptError as error:
        assert "the object graph is damaged" in str(error)
    else:
        assert isinstance(found, bytes) or found in keys
