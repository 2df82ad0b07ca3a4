"""Arrays of a type that a program registered with Orbax: its handler finds them as its own arrays again."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import type_handlers
from orbax.checkpoint._src.metadata.array_metadata_store import Store

import reshard
from tests.orbax_trees import mesh, put


class OwnArrayHandler(type_handlers.ArrayHandler):
    """Arrays under a name of their own, as libraries register them."""

    def typestr(self) -> str:
        return "own.Array"


@pytest.fixture
def checkpointer() -> ocp.Checkpointer:
    handler = OwnArrayHandler(array_metadata_store=Store())
    registry = type_handlers.create_type_handler_registry(
        (jax.Array, handler),
        (np.ndarray, type_handlers.NumpyHandler()),
    )
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(type_handler_registry=registry))


def test_they_keep_type_and_sharding(checkpointer: ocp.Checkpointer, tmp_path: Path) -> None:
    tree = {"w": put(np.arange(32.0).reshape(8, 4), "x", None, on=mesh((8,), ("x",)))}
    tree |= {"v": np.arange(3)}
    checkpointer.save(tmp_path / "a", tree)
    reshard.convert(tmp_path / "a", tmp_path / "b")
    listed = json.loads((tmp_path / "b" / "_METADATA").read_text())["tree_metadata"]
    assert listed["('w',)"]["value_metadata"]["value_type"] == "own.Array"
    restored = checkpointer.restore(tmp_path / "b")
    assert restored["w"].sharding == tree["w"].sharding
    np.testing.assert_array_equal(np.asarray(restored["w"]), np.asarray(tree["w"]))
    report = reshard.convert(tmp_path / "a", tmp_path / "c", to="dcp")
    assert "the value type 'own.Array' (of 'w') is left out: the target has plain arrays" in (
        report.warnings
    )
