"""value_metadata_tree, as stock Orbax writes and reads it with rich types switched on."""

import collections
import json

import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.metadata.pytree_metadata_options import PyTreeMetadataOptions

from reshard.formats.contents import Container, Item
from reshard.formats.orbax.write_metadata import updated_tree

Pair = collections.namedtuple("Pair", ["mu", "nu"])
RICH = PyTreeMetadataOptions(support_rich_types=True)


def rich_checkpointer():
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(pytree_metadata_options=RICH))


@pytest.fixture
def recorded(tmp_path):
    tree = {"pair": Pair(np.zeros(2), np.ones(3)), "tuple": (np.zeros(4), [np.zeros(1)])}
    with rich_checkpointer() as checkpointer:
        checkpointer.save(tmp_path / "rich", tree)
    return json.loads((tmp_path / "rich" / "_METADATA").read_bytes())["value_metadata_tree"]


def write(making, path, recorded, drop=()):
    keys = [("pair", "mu"), ("pair", "nu"), ("tuple", 0), ("tuple", 1, 0)]
    entries = [
        making.Entry(k, np.full(2, i, "f4"), ("model",), meta={"value_metadata": {"value_type": "jax.Array", "skip_deserialize": False}})
        for i, k in enumerate(keys) if k not in drop
    ]  # fmt: skip
    container = Container("v0", (Item("", "", True, meta={"value_metadata_tree": recorded}),))
    return making.write(path, entries, container)


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_tuples_and_namedtuples_come_back(making, recorded, tmp_path):
    path = write(making, tmp_path / "ckpt", recorded)
    with rich_checkpointer() as checkpointer:
        found = checkpointer.restore(path)
    assert found["pair"]._fields == ("mu", "nu")
    assert found["pair"].nu.tolist() == [1, 1]
    assert tuple(found["pair"].nu.sharding.spec) == ("model",)
    assert isinstance(found["tuple"], tuple)
    assert found["tuple"][1][0].tolist() == [3, 3]
    leaf = json.loads((path / "_METADATA").read_bytes())["value_metadata_tree"]
    assert '"write_shape": [1]' in leaf


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_with_a_leaf_dropped_orbax_falls_back_to_dicts(making, recorded, tmp_path):
    path = write(making, tmp_path / "ckpt", recorded, drop=[("pair", "mu"), ("tuple", 0)])
    assert "value_metadata_tree" not in json.loads((path / "_METADATA").read_bytes())
    with rich_checkpointer() as checkpointer:
        found = checkpointer.restore(path)
    assert found["pair"]["nu"].tolist() == [1, 1]
    assert found["tuple"]["1"][0].tolist() == [3, 3]


@pytest.mark.parametrize(
    "text",
    ["", "{", "7", '{"a": 7}', '{"category": "custom", "clazz": "x"}', "[" * 5000, '{"a":' * 300 + "1" + "}" * 300],
)  # fmt: skip
def test_what_makes_no_sense_is_left_out(text):
    assert updated_tree(text, {("a",): {}}) is None
