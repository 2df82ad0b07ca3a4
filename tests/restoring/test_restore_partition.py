"""Restoring as ShardedVariables: N shards to M, plain and sharded, 'div' and 'mod', later than opened."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard import FixedShardsPartitioner, MinSizePartitioner, ShardedVariable
from tests.campaigns import examples
from tests.equal import assert_same
from tests.orbax_trees import mesh, put, save_pytree
from tests.restoring.recorded import record

TABLE = np.arange(13 * 6, dtype=np.float32).reshape(13, 6)
LINE = mesh((2,), ("x",))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A table, and what is not split: a bias, a number, a key."""
    tree = {
        "emb": {"table": TABLE},
        "bias": np.arange(4, dtype=np.float32),
        "n": 3,
        "key": jax.random.key(1),
    }
    return save_pytree(tmp_path_factory.mktemp("partition") / "c", tree)


@pytest.fixture(scope="module")
def mod_table(tmp_path_factory):
    """A table that is recorded as saved for 'mod' look-up from 5 shards."""
    path = save_pytree(tmp_path_factory.mktemp("mod") / "c", {"table": TABLE}, use_zarr3=True)
    record(path, {"table": TABLE}, table={"strategy": "mod", "axis": 0, "shards": 5})
    return path


def test_a_count_for_some_leaves_the_others_whole(source):
    found = reshard.restore(source, partition={"table": 5})
    table = found["emb"]["table"]
    assert [s.shape for s in table.variables] == [(3, 6), (3, 6), (3, 6), (2, 6), (2, 6)]
    assert (table.name, table.axis, table.partition_strategy) == ("emb/table", 0, "div")
    assert_same(table.numpy(), TABLE)
    assert isinstance(found["bias"], np.ndarray)
    assert found["n"] == 3


def test_a_bare_count_splits_every_array(source):
    found = reshard.restore(source, partition=2)
    assert [len(v.variables) for v in (found["emb"]["table"], found["bias"])] == [2, 2]
    assert found["n"] == 3
    assert_same(found["key"], jax.random.key(1))


@pytest.mark.parametrize(
    ("partition", "axis", "shapes"),
    [
        (FixedShardsPartitioner(3), 0, [(5, 6), (4, 6), (4, 6)]),
        (MinSizePartitioner(80, 3), 1, [(13, 2), (13, 2), (13, 2)]),
        (lambda _shape, _dtype, _axis: [1, 2], -1, [(13, 3), (13, 3)]),
        (14, 0, [(1, 6)] * 13 + [(0, 6)]),
    ],
)
def test_partitioners_axes_and_shards_without_rows(source, partition, axis, shapes):
    found = reshard.restore(source, partition={"table": partition}, axis=axis)["emb"]["table"]
    assert [s.shape for s in found.variables] == shapes
    assert_same(found.numpy(), TABLE)


def test_the_first_rule_that_matches_counts(source):
    found = reshard.restore(source, partition={"emb": 2, "table|bias": 4})
    assert len(found["emb"]["table"].variables) == 2
    assert len(found["bias"].variables) == 4


def test_shards_are_dealt_to_devices_in_turn(source):
    devices = jax.devices()[2:4]
    found = reshard.restore(source, partition={"table": 3}, devices=devices)["emb"]["table"]
    assert [list(s.devices()) for s in found.variables] == [
        [devices[0]],
        [devices[1]],
        [devices[0]],
    ]


@settings(max_examples=examples(25))
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1), st.sampled_from(["div", "mod"]))
def test_n_shards_to_m(tmp_path_factory, n, m, axis, strategy):
    """As stock Orbax writes them: a chunk for each device of n; as we read them: m shards."""
    path = tmp_path_factory.mktemp("n_to_m") / "c"
    n = max(k for k in (1, 2, 4, 8) if k <= n)
    values = np.arange(16 * 8, dtype=np.int32).reshape(16, 8)
    axes = [None, None]
    axes[axis] = "x"
    save_pytree(path, {"v": put(values, *axes, on=mesh((n,), ("x",)))}, use_ocdbt=False)
    reports = []
    found = reshard.restore(path, partition=m, partition_strategy=strategy, report=reports.append)[
        "v"
    ]
    assert len(found.variables) == m
    assert found.partition_strategy == strategy
    assert_same(found.numpy(), values)
    expected = ShardedVariable.split(values, m, partition_strategy=strategy)
    for ours, theirs in zip(found.variables, expected.variables, strict=True):
        assert_same(ours, theirs)
    assert reports[0].amplification == 1.0


def test_sharded_on_axis_0_goes_onto_a_mesh_on_axis_1(source):
    variable = reshard.restore(source, partition={"table": 4})["emb"]["table"]
    sharding = NamedSharding(LINE, PartitionSpec(None, "x"))
    plain = reshard.restore(source, {"emb": {"table": jax.ShapeDtypeStruct((13, 6), jnp.float32, sharding=sharding)}},
                            unexpected="ignore")["emb"]["table"]  # fmt: skip
    assert plain.sharding == sharding
    assert_same(plain, variable.numpy())


def test_a_layout_files_partitions_make_shards(source):
    layout = {"partitions": [{"match": "table", "fixed_shards": 2, "axis": 1}]}
    found = reshard.restore(source, layout=layout)["emb"]["table"]
    assert [s.shape for s in found.variables] == [(13, 3), (13, 3)]


def test_a_target_variable_says_shards_name_and_devices(source):
    one, two = (
        jax.device_put(np.zeros((n, 6), np.float32), d)
        for n, d in ((4, jax.devices()[1]), (9, jax.devices()[2]))
    )
    target = {"emb": {"table": ShardedVariable([one, two], "mine")}}
    found = reshard.restore(source, target, unexpected="ignore")["emb"]["table"]
    assert found.name == "mine"
    assert [(s.shape, s.devices()) for s in found.variables] == [
        ((4, 6), {jax.devices()[1]}), ((9, 6), {jax.devices()[2]}),
    ]  # fmt: skip
    assert_same(found.numpy(), TABLE)


def test_a_variable_that_was_made_abstract_is_a_target_too(source):
    abstract = jax.eval_shape(lambda: ShardedVariable([jnp.zeros((7, 6)), jnp.zeros((6, 6))], "v"))
    found = reshard.restore(source, {"emb": {"table": abstract}}, unexpected="ignore")["emb"][
        "table"
    ]
    assert [s.shape for s in found.variables] == [(7, 6), (6, 6)]
    assert_same(found.numpy(), TABLE)


def test_a_variable_that_is_made_after_the_checkpoint_was_opened(source):
    opened = reshard.open_checkpoint(source)
    assert opened.tensors["emb/table"].shape == (13, 6)
    first = opened.restore(select=["bias"])
    table = ShardedVariable.split(np.zeros((13, 6), np.float32), 4, "late")
    late = opened.restore({"emb": {"table": table}}, unexpected="ignore")["emb"]["table"]
    assert_same(first["bias"], np.arange(4, dtype=np.float32))
    assert len(late.variables) == 4
    table.assign(late)
    assert_same(table.numpy(), TABLE)


def test_an_opened_checkpoint_that_was_replaced_is_refused(tmp_path):
    path = save_pytree(tmp_path / "c", {"a": np.zeros(3)})
    opened = reshard.open_checkpoint(path)
    path.rename(tmp_path / "old")
    with pytest.raises(reshard.StorageError, match="c is not there any more; it must stay"):
        opened.restore()
    save_pytree(path, {"a": np.ones(3)})
    with pytest.raises(reshard.StorageError, match="is not the checkpoint that was opened"):
        opened.restore()


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_refused(tmp_path):
    """Parts of one and parts of another would fit each other in shape, and in nothing else."""
    path = save_pytree(tmp_path / "c", {"a": np.zeros(3), "b": np.zeros(3)})

    def replaced(progress):
        if progress.tasks_done == 1:
            path.rename(tmp_path / "old")
            save_pytree(path, {"a": np.ones(3), "b": np.ones(3)})

    with pytest.raises(reshard.StorageError, match=r"was put in its place, .* open it again"):
        reshard.restore(path, progress=replaced)


def test_what_looks_damaged_because_it_was_replaced_is_said_to_be(tmp_path):
    path = tmp_path / "c"
    reshard.save(path, {f"x{n}": np.zeros(3) for n in range(20)})

    def replaced(progress):
        if progress.tasks_done == 1:
            reshard.save(path, {"x0": np.ones(3)}, overwrite=True)

    with pytest.raises(reshard.StorageError, match="is not the checkpoint that was opened"):
        reshard.restore(path, progress=replaced, workers=1)


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 7, 13, 15])
def test_a_mod_table_stays_one_for_any_count(mod_table, shards):
    found = reshard.restore(mod_table, partition=shards)["table"]
    assert found.partition_strategy == "mod"
    for number, shard in enumerate(found.variables):
        assert_same(shard, TABLE[number::shards])
    assert_same(found.numpy(), TABLE)
    rows = found.embedding_lookup(np.array([12, 0, 5, 5]))
    assert_same(rows, TABLE[[12, 0, 5, 5]])


def test_a_mod_table_is_never_taken_for_div_in_silence(mod_table):
    target = {"table": ShardedVariable.split(np.zeros((13, 6), np.float32), 3)}
    with pytest.raises(
        reshard.LayoutError,
        match="'table' was saved for 'mod' look-up, but like has a Sharded",
    ):
        reshard.restore(mod_table, target)
    with pytest.raises(
        reshard.LayoutError, match="saved for 'mod' look-up along axis 0, but axis 1 would be"
    ):
        reshard.restore(mod_table, partition=2, axis=1)
    found = reshard.restore(mod_table, target, partition_strategy="div")["table"]
    assert_same(found.numpy(), TABLE)
    assert [s.shape for s in found.variables] == [(5, 6), (4, 6), (4, 6)]
    mod = ShardedVariable.split(np.zeros((13, 6), np.float32), 3, partition_strategy="mod")
    found = reshard.restore(mod_table, {"table": mod})["table"]
    assert_same(found.variables[1], TABLE[1::3])


def test_a_mod_table_as_a_plain_array_is_in_logical_order(mod_table):
    assert_same(reshard.restore(mod_table)["table"], TABLE)


def test_partitions_that_make_no_sense(source):
    def refused(text, **options):
        with pytest.raises(reshard.ReshardError) as error:
            reshard.restore(source, **options)
        assert text in str(error.value)

    refused(
        "partition is 'four'; expected a number of shards of at least 1, a partitioner",
        partition="four",
    )
    refused("partition['table'] is 0; expected a number of shards", partition={"table": 0})
    refused("partition has the key '(', which is not a regular expression", partition={"(": 2})
    refused("partition 'tabel' matches none of the 4 tensors", partition={"tabel": 2})
    refused("'bias' of shape [4] has no axis 1 to partition", partition={"bias": 2}, axis=1)
    refused(
        "partition_strategy is 'hash'; expected 'div', 'mod'",
        partition=2,
        partition_strategy="hash",
    )
    refused("axis is 'rows'; expected the number of a dimension", partition=2, axis="rows")
    refused("devices is [0]; expected jax devices", partition=2, devices=[0])
    refused(
        "the partition [3, 2] of 'emb/table' splits dimension 1",
        partition={"table": lambda _shape, _dtype, _axis: (3, 2)},
    )


def test_a_target_variable_and_a_layout_for_one_tensor_are_refused(source):
    table = reshard.ShardedVariable.split(np.zeros_like(TABLE), 3)
    layouts = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    layouts["bias"] = ("x",)
    options = {"unexpected": "ignore", "layout": layouts}
    found = reshard.restore(source, {"emb": {"table": table}}, **options)["emb"]["table"]
    assert_same(found.numpy(), TABLE)
    layouts["table"] = (None,)
    with pytest.raises(reshard.LayoutError, match="'emb/table' is a ShardedVariable in like, but"):
        reshard.restore(source, {"emb": {"table": table}}, **options)


def test_a_partition_and_a_layout_for_one_tensor_are_refused(source):
    layouts = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    found = reshard.restore(source, layout=layouts, partition={"table": 2})
    assert isinstance(found["bias"], np.ndarray)  # saved as numpy, and named by neither
    assert len(found["emb"]["table"].variables) == 2
    layouts["table"] = (None, None)
    with pytest.raises(
        reshard.LayoutError, match="'emb/table' is split both by the partition and by the layout"
    ):
        reshard.restore(source, layout=layouts, partition={"table": 2})
    struct = jax.ShapeDtypeStruct(
        (13, 6), jnp.float32, sharding=NamedSharding(LINE, PartitionSpec())
    )
    with pytest.raises(
        reshard.LayoutError, match="both by the partition and by the sharding in like"
    ):
        reshard.restore(
            source, {"emb": {"table": struct}}, partition={"table": 2}, unexpected="ignore"
        )
