"""A scalar is whole on every device, whatever layout is asked for it: a rule for everything does not stop at a counter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import reshard
from reshard.layout.tensor_layout import TensorLayout

MESH = reshard.DeviceMesh((8,), ("x",))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scalars") / "ckpt"
    tree = {"w": jnp.arange(8.0), "count": jnp.int32(3), "n": 5, "loss": np.float32(0.5)}
    reshard.save(path, tree)
    return path


def by_map() -> Any:
    layout = reshard.LayoutMap(MESH)
    layout[".*"] = ("x",)
    return layout


LAYOUTS = {
    "map": by_map,
    "layout": lambda: TensorLayout(("x",), MESH),
    "sharding": lambda: NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x")),
    "file": lambda: {"mesh": {"x": 8}, "rules": [{"match": ".*", "axes": ["x"]}]},
    "partitions": lambda: {"partitions": [{"match": ".*", "fixed_shards": 2}]},
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_convert(source: Path, tmp_path: Path, kind: str) -> None:
    report = reshard.convert(source, tmp_path / "out", layout=LAYOUTS[kind]())
    assert len(report.tensors) == 4
    assert reshard.verify(source, tmp_path / "out").differences == 0
    found = reshard.inspect(tmp_path / "out").tensors["count"].spec
    assert found.slices.count == 1
    assert not (found.layout and any(found.layout.axes))


@pytest.mark.parametrize("kind", ["map", "layout", "sharding", "file"])
def test_restore(source: Path, kind: str) -> None:
    found = reshard.restore(source, layout=LAYOUTS[kind]())
    assert {s.data.shape for s in found["w"].addressable_shards} == {(1,)}
    assert (found["count"], found["n"], found["loss"]) == (3, 5, 0.5)
    assert found["count"].sharding.is_fully_replicated
    assert len(found["count"].sharding.device_set) == 8
