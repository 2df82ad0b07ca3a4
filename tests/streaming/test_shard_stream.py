"""One device's shard of a layout as a safetensors file, read by the real safetensors."""

from __future__ import annotations

import json

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import reshard
from reshard.errors import LayoutError, PlanError
from reshard.geometry.dtypes import numpy_dtype
from tests.orbax_trees import dtype_tree, expected_arrays, mesh, put, save_pytree, small_tree

LAYOUT = {
    "mesh": {"axes": ["data", "model"], "shape": [2, 4]},
    "rules": [
        {"match": "kernel$", "axes": ["model", "data"]},
        {"match": "^params/layers/0$", "axes": [["model", "data"]]},
        {"match": "^other_mesh$", "axes": [None]},
    ],
}
ARRAYS = expected_arrays(small_tree())


def axes_of(name: str) -> tuple:
    if name.endswith("kernel"):
        return ("model", "data")
    return (("model", "data"),) if name == "params/layers/0" else ()


def loaded(data: bytes) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays of a file as the real safetensors finds them, and what it says of where they lie."""
    names = {"BF16": "bfloat16", "BOOL": "bool", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
             "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
             "F8_E5M2FNUZ": "float8_e5m2fnuz"}  # fmt: skip
    arrays = {}
    for name, found in safetensors.deserialize(data):
        dtype = names.get(found["dtype"]) or found["dtype"].replace("F", "float").replace(
            "U", "uint"
        ).replace("I", "int")
        dtype = dtype.replace("uintnt", "uint")
        arrays[name] = np.frombuffer(found["data"], numpy_dtype(dtype)).reshape(found["shape"])
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return arrays, json.loads(header["__metadata__"]["reshard.slices"])


def test_every_shard_holds_what_jax_puts_on_its_device(small):
    opened = reshard.open_checkpoint(small)
    on = mesh((2, 4), ("data", "model"))
    for number, device in enumerate(on.devices.flat):
        stream = opened.stream_shard(number, LAYOUT)
        arrays, said = loaded(b"".join(stream))
        assert (said["shard"], said["shards"]) == (number, 8)
        assert arrays.keys() == set(stream.names) == ARRAYS.keys()
        for name, array in arrays.items():
            whole = ARRAYS[name]
            sharding = NamedSharding(on, PartitionSpec(*axes_of(name)))
            index = sharding.devices_indices_map(whole.shape)[device]
            assert array.tobytes() == whole[index].tobytes(), name
            place = said["tensors"][name]
            cut = tuple(
                slice(a, a + n) for a, n in zip(place["offset"], place["shape"], strict=True)
            )
            assert place["full_shape"] == list(ARRAYS[name].shape)
            assert ARRAYS[name][cut].tobytes() == array.tobytes()


def test_the_real_package_opens_it_from_disk(small, tmp_path):
    stream = reshard.open_checkpoint(small).stream_shard(3, LAYOUT, select=["kernel$", "numpy"])
    file = tmp_path / "shard.safetensors"
    file.write_bytes(b"".join(stream))
    assert file.stat().st_size == stream.nbytes
    found = safetensors.numpy.load_file(file)
    np.testing.assert_array_equal(found["numpy"], ARRAYS["numpy"])
    assert found["params/dense/kernel"].shape == (16, 32)
    with safetensors.safe_open(file, "numpy") as opened:
        assert set(opened.metadata()) == {"reshard.slices"}


def test_select_drop_rename_and_cast_are_those_of_convert(small):
    stream = reshard.open_checkpoint(small).stream_shard(
        0, LAYOUT, select=["^params/"], drop=["layers"], rename=[("^params/", "model/")], cast=[("kernel", "bfloat16")]
    )  # fmt: skip
    arrays, _ = loaded(b"".join(stream))
    assert set(arrays) == {"model/dense/kernel", "model/dense/bias", "model/a.b/c/d"}
    kernel = ARRAYS["params/dense/kernel"][:16, :32].astype(ml_dtypes.bfloat16)
    assert arrays["model/dense/kernel"].tobytes() == kernel.tobytes()


def test_any_range_equals_those_bytes_of_the_file(small):
    stream = reshard.open_checkpoint(small).stream_shard(5, LAYOUT)
    whole = b"".join(stream)
    rng = np.random.default_rng(0)
    for start, stop in np.sort(rng.integers(0, len(whole) + 3, (60, 2))).tolist():
        assert b"".join(stream.read(start, stop)) == whole[start:stop]
    assert [len(p) for p in stream.read(3, 3)] == []


def test_without_a_layout_a_shard_is_what_the_training_job_held(small):
    opened = reshard.open_checkpoint(small)
    arrays, said = loaded(b"".join(opened.stream_shard(7)))
    assert said["shards"] == 8
    np.testing.assert_array_equal(arrays["other_mesh"], ARRAYS["other_mesh"][14:])
    np.testing.assert_array_equal(
        arrays["params/dense/kernel"], ARRAYS["params/dense/kernel"][48:, 32:]
    )


def test_parts_by_count_and_over_another_mesh(small):
    opened = reshard.open_checkpoint(small)
    layout = {"partitions": [{"match": "^numpy$", "fixed_shards": 2, "axis": 0}]}
    parts = [
        loaded(b"".join(opened.stream_shard(n, layout, select=["^numpy$"])))[0] for n in (0, 1)
    ]
    np.testing.assert_array_equal(np.concatenate([p["numpy"] for p in parts]), ARRAYS["numpy"])
    arrays, said = loaded(
        b"".join(opened.stream_shard(1, mesh="data=2,model=1", select=["kernel$"], drop=["opt"]))
    )
    assert said["shards"] == 2
    np.testing.assert_array_equal(arrays["params/dense/kernel"], ARRAYS["params/dense/kernel"][32:])


def test_every_dtype_that_safetensors_has(tmp_path):
    tree = dtype_tree()
    opened = reshard.open_checkpoint(save_pytree(tmp_path / "c", tree, use_zarr3=True))
    found = {}
    for name in tree:
        try:
            found |= loaded(b"".join(opened.stream_shard(0, select=[f"^{name}$"])))[0]
        except PlanError as error:
            assert str(error).startswith(
                f"{name!r} is {name}, which safetensors files do not have; drop it, or cast it to one of bool, int8"
            )
    assert set(tree) - set(found) == {
        "float8_e3m4", "float8_e4m3b11fnuz", "float4_e2m1fn", "int2", "int4",
        "complex128",
    }  # fmt: skip
    for name, array in found.items():
        assert array.tobytes() == tree[name].tobytes(), name


def test_refusals(small):
    opened = reshard.open_checkpoint(small)
    with pytest.raises(
        LayoutError,
        match="shard 8 does not exist: the layout has 8 shards; ask for one from 0 to 7",
    ):
        opened.stream_shard(8, LAYOUT)
    with pytest.raises(LayoutError, match="shard -1 does not exist"):
        opened.stream_shard(-1, LAYOUT)
    with pytest.raises(LayoutError, match="shard 1 does not exist: the layout has only shard 0"):
        opened.stream_shard(1, select=["^numpy$"])
    with pytest.raises(
        PlanError, match="the name '__metadata__' cannot be used in a safetensors file"
    ):
        opened.stream_shard(0, select=["^numpy$"], rename=[("numpy", "__metadata__")])


def test_a_whole_layout_on_eight_devices_is_what_stock_orbax_restores(small):
    on = mesh((2, 4), ("data", "model"))
    opened = reshard.open_checkpoint(small)
    files = [
        loaded(b"".join(opened.stream_shard(n, LAYOUT, select=["^params/"])))[0] for n in range(8)
    ]
    theirs = ocp.StandardCheckpointer().restore(small)["params"]
    for name, array in expected_arrays(theirs, "params/").items():
        sharding = put(np.zeros(array.shape), *axes_of(name), on=on).sharding
        pieces = [jax.device_put(f[name], d) for f, d in zip(files, on.devices.flat, strict=True)]
        made = jax.make_array_from_single_device_arrays(array.shape, sharding, pieces)
        assert np.asarray(made).tobytes() == array.tobytes(), name
