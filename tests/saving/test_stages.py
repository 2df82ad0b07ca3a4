"""Three processes save arrays that lie in some of them only, as the stages of a pipeline; one restores with stock Orbax."""

from __future__ import annotations

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import reshard
from reshard.errors import TreeError
from reshard.formats.slices.parse import read_slices
from reshard.saving.processes import own_copies
from reshard.storage.location import locate
from tests.process_groups import run_group

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),
    pytest.mark.xdist_group("process_group"),
]

SHAPES = {
    "first": (8, 6), "second": (5, 8), "last": (4,), "pair": (512, 1024), "ends": (600, 512),
    "everywhere": (7, 12), "device": (3, 3),
}  # fmt: skip


def values(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Every scenario run once: where to, and what each process said."""
    root = tmp_path_factory.mktemp("stages")
    said = []
    for output in run_group(3, ["-m", "tests.saving.stage_member"], str(root)):
        pairs = (line.partition(": ") for line in output.splitlines())
        said.append({name: rest for name, _, rest in pairs})
    return root, said


@pytest.mark.parametrize("name", ["saved", "later"])
def test_stock_orbax_restores_arrays_of_any_processes(group, name):
    root, said = group
    assert [s["save"] for s in said] == ["done"] * 3
    target = {
        **{key: jax.numpy.zeros(shape) for key, shape in SHAPES.items()},
        "keys": jax.random.split(jax.random.key(0), 4),
        "copy": jax.numpy.zeros(6), "count": 0, "plain": np.zeros((2, 2), np.float32),
    }  # fmt: skip
    found = ocp.StandardCheckpointer().restore(root / name, target)
    for key, shape in SHAPES.items():
        np.testing.assert_array_equal(np.asarray(found[key]), values(*shape), err_msg=key)
    keys = np.arange(8, dtype=np.uint32).reshape(4, 2)
    np.testing.assert_array_equal(jax.random.key_data(found["keys"]), keys)
    np.testing.assert_array_equal(np.asarray(found["copy"]), np.arange(6.0, dtype=np.float32))
    assert (int(found["count"]), found["plain"].tolist()) == (7, values(2, 2).tolist())


def test_digests_and_meshes_are_recorded_by_the_first_process(group):
    root, _ = group
    for name, count in (("saved", len(SHAPES) + 4), ("later", len(SHAPES) + 4), ("alone", 1)):
        checked = reshard.verify(root / name)
        assert [t.status for t in checked.tensors] == ["recorded"] * count
    found = read_slices(locate(root / "saved")).tensors
    assert found["pair"].parts == (4, 1)
    assert found["second"].parts == (1, 2)


def test_processes_without_a_shard_take_part(group):
    root, _ = group
    assert reshard.inspect(root / "alone").tensors["second"].spec.shape == (5, 8)
    np.testing.assert_array_equal(
        np.asarray(reshard.restore(root / "alone")["second"]), values(5, 8)
    )


def test_each_process_restores_the_shards_of_its_devices(group):
    _, said = group
    assert [s["restore"] for s in said] == [
        "device 0, ends 2, everywhere 2, first 2, last 0, pair 0, second 0",
        "device 0, ends 0, everywhere 2, first 0, last 0, pair 2, second 2",
        "device 1, ends 2, everywhere 2, first 0, last 2, pair 2, second 0",
    ]


def test_an_array_that_is_neither_one_nor_a_copy_in_each_is_refused(group):
    root, said = group
    for each in said:
        assert each["unlike"].startswith("TreeError: ")
        assert (
            "'odd' is on devices of processes [0] in process 0, and of processes [1] in process 1; expected one "
            "array with the same sharding in every process (without data where none of its devices is), or a "
            "whole copy in every process"
        ) in each["unlike"]
    assert not (root / "unlike").exists()


@pytest.mark.parametrize(
    ("posted", "own"),
    [
        ([b'{"a": [0]}'], set()),
        ([b'{"a": [0], "b": [0]}', b'{"a": [1], "b": [0]}'], {"a"}),
        ([b'{"a": [1]}', b'{"a": [1]}'], set()),
        ([b'{"a": [0]}', b"{}"], set()),
    ],
)
def test_a_copy_is_on_each_process_own_devices(posted, own):
    assert own_copies(posted) == own


def test_arrays_in_several_places_are_named_together():
    with pytest.raises(TreeError) as refused:
        own_copies([b'{"a": [0], "b": [0, 1]}', b'{"a": [0, 1], "b": [1]}'])
    assert "'a' is on devices of processes [0] in process 0" in str(refused.value)
    assert "'b' is on devices of processes [0, 1] in process 0, and of processes [1]" in str(
        refused.value
    )
