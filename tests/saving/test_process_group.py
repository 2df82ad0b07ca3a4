"""Two real processes of four devices each save together; one process restores with stock Orbax."""

from __future__ import annotations

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

import reshard
from reshard.formats.slices.parse import read_slices
from reshard.storage.location import locate
from tests.process_groups import run_group

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
    pytest.mark.xdist_group("process_group"),
]


def values(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


WANTED = {
    "both": values(64, 32), "rows": values(4096, 256), "columns": values(8, 4096),
    "small": values(16), "replicated": values(512, 512), "replicated2": values(512, 513),
    "numpy": values(9, 5), "table": values(13, 4),
}  # fmt: skip


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Every scenario run once, by one group: where to, and what each process said."""
    root = tmp_path_factory.mktemp("group")
    said = []
    for output in run_group(2, ["-m", "tests.saving.group_member"], str(root), "all"):
        pairs = (line.partition(": ") for line in output.splitlines())
        said.append({name: rest for name, _, rest in pairs})
    return root, said


@pytest.mark.parametrize("name", ["one", "two"])
def test_one_process_restores_what_two_saved(group, name):
    root, said = group
    assert [s["donated"] for s in said] == ["done", "done"]
    found = ocp.StandardCheckpointer().restore(root / name)
    for key, value in WANTED.items():
        np.testing.assert_array_equal(np.asarray(found[key]), value, err_msg=key)
    assert (int(found["count"]), found["note"]) == (7, "text")
    assert jax.random.key_data(found["key"]).tolist() == [0, 3]
    keys = jax.random.key_data(jax.random.split(jax.random.key(1), 8))
    np.testing.assert_array_equal(jax.random.key_data(found["keys"]), keys)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    assert found["both"].sharding == NamedSharding(mesh, PartitionSpec("data", "model"))


def test_it_restores_onto_another_mesh(group):
    root, _ = group
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    target = {
        key: jax.ShapeDtypeStruct(WANTED[key].shape, np.float32, sharding=sharding)
        for key in ("both", "rows", "columns", "small")
    }
    options = v1.options.PyTreeOptions(loading=v1.options.PyTreeOptions.Loading(partial_load=True))
    with v1.Context(pytree_options=options):
        found = v1.load(root / "one", target)
    for key, value in found.items():
        assert value.sharding == sharding
        np.testing.assert_array_equal(np.asarray(value), WANTED[key])


def test_digests_of_all_processes_are_combined(group):
    root, _ = group
    checked = reshard.verify(root / "one")
    assert {t.status for t in checked.tensors} == {"recorded"}
    assert len(checked.tensors) == len(WANTED) + 3


def test_each_process_wrote_a_share_and_shards_were_not_merged_across_them(group):
    root, _ = group
    entry = {n: t.spec for n, t in reshard.inspect(root / "one").tensors.items()}
    # Four parts along "data", two of them in each process: merged below 1 MiB, but not across.
    assert entry["both"].chunk_shape == (32, 32)
    assert entry["small"].chunk_shape == (8,)
    assert entry["rows"].chunk_shape == (1024, 256)


def test_slices_record_the_layouts(group):
    root, _ = group
    found = read_slices(locate(root / "one")).tensors
    assert found["both"].parts == (4, 2)
    assert found["table"].partition == {"strategy": "mod", "axis": 0, "shards": 5}


@pytest.mark.parametrize(
    ("scenario", "kind", "texts"),
    [
        ("different", "TreeError", [
            "processes 0 and 1 would save different trees: process 0 has 'numpy' of float32[9, 5]",
            "process 1 has 'numpy' of float32[9, 6]"]),
        ("bad_leaf", "TreeError", ["'odd' is of type object; expected jax or numpy arrays"]),
        ("no_writing", "StorageError", ["refused"]),
        ("exists", "TargetExistsError", ["exists already and was left untouched"]),
        ("step", "TargetExistsError", ["step 3 of", "exists already ('ckpt_0003') and was left untouched"]),
    ],
)  # fmt: skip
def test_the_failure_of_one_is_the_failure_of_all(group, scenario, kind, texts):
    root, said = group
    for index in (0, 1):
        assert said[index][scenario].startswith(kind)
        for text in texts:
            assert text in said[index][scenario]
    failing = 0 if scenario in ("exists", "step") else 1
    if scenario != "different":
        assert f"process {failing} of 2 failed: " in said[1 - failing][scenario]
    if failing:
        assert not (root / scenario).exists()
    assert not list(root.glob(".*"))  # no staging folder is left


def test_a_process_that_gets_no_answer_says_so(group):
    _, said = group
    assert said[1]["absent"] == "done"
    assert said[0]["absent"].startswith(
        "StorageError: process 1 of 2 gave no answer within 1 s (step 'placed'), so nothing was published"
    )


def test_overwriting_works_in_a_group(group):
    root, _ = group
    assert reshard.verify(root / "exists").differences == 0


def test_a_stock_manager_restores_the_steps_of_a_group(group):
    root, _ = group
    options = ocp.CheckpointManagerOptions(step_prefix="ckpt", step_format_fixed_length=4)
    with ocp.CheckpointManager(root / "steps", options=options) as manager:
        assert manager.all_steps() == [1, 2, 3]
        for step in (2, 3):
            found = manager.restore(step)
            for key, value in WANTED.items():
                np.testing.assert_array_equal(np.asarray(found[key]), value, err_msg=key)
    assert {t.status for t in reshard.verify(root / "steps", step="latest").tensors} == {"recorded"}


def test_a_manager_of_the_group_combines_digests_too(group):
    root, said = group
    assert [s["manager"] for s in said] == ["done", "done"]
    step = root / "manager" / "1"
    assert read_slices(locate(step / "default")).tensors["both"].parts == (4, 2)
    assert not list((step / "default").glob("slices.json.*"))
    assert {t.status for t in reshard.verify(step).tensors} == {"recorded"}
