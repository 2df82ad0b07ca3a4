"""``_sharding``: what stock Orbax writes, and what contradicts itself."""

from __future__ import annotations

import base64
import json

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint._src.metadata import sharding as orbax_sharding

from reshard.errors import CorruptError, FormatError
from reshard.formats.orbax.sharding_file import parse_sharding, read_shardings
from tests.orbax_trees import mesh

NAMED = {
    "sharding_type": "NamedSharding", "shape": [4, 2], "axis_names": ["data", "model"],
    "axis_types": None, "partition_spec": ["data", "model"],
}  # fmt: skip


def parse(**changes):
    return parse_sharding(json.dumps({**NAMED, **changes}), "x", "_sharding")


@pytest.mark.parametrize(
    ("spec", "axes"),
    [
        (PartitionSpec(), ()),
        (PartitionSpec(None, "model"), (None, "model")),
        (PartitionSpec(("data", "model")), (("data", "model"),)),
        (PartitionSpec("model", None, "data"), ("model", None, "data")),
    ],
)
def test_what_orbax_writes(spec, axes):
    written = orbax_sharding.from_jax_sharding(NamedSharding(mesh(), spec)).to_serialized_string()
    layout = parse_sharding(written, "x", "_sharding")
    assert layout.axes == axes
    assert layout.device_mesh.shape == (4, 2)
    assert layout.device_mesh.axis_types == ("Auto", "Auto")


def test_shardings_without_axes_are_no_layout():
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    written = orbax_sharding.from_jax_sharding(one).to_serialized_string()
    assert parse_sharding(written, "x", "_sharding") is None
    assert parse(sharding_type="GSPMDSharding", shape=None) is None


def test_older_forms_without_axis_types():
    assert parse().device_mesh.axis_types is None


def test_equal_texts_share_one_layout(tmp_path):
    text = json.dumps(NAMED)
    names = [base64.urlsafe_b64encode(n.encode()).decode() for n in ("a.b", "ü/c>?")]
    (tmp_path / "_sharding").write_text(json.dumps(dict.fromkeys(names, text)))
    layouts = read_shardings(tmp_path / "_sharding")
    assert list(layouts) == ["a.b", "ü/c>?"]
    assert layouts["a.b"] is layouts["ü/c>?"]
    assert read_shardings(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"shape": [4]},
            "the mesh's shape [4] needs 1 different axis names, but they are ['data', 'model']",
        ),
        ({"axis_names": ["data", "data"]}, "needs 2 different axis names"),
        ({"axis_names": [1, 2]}, "an axis name should be of type str, but is 1"),
        ({"shape": [0, 2]}, "the mesh's shape should hold numbers from 1 to 2^62, but is [0, 2]"),
        ({"shape": [-4, 2]}, "should hold numbers from 1"),
        ({"shape": [1 << 40, 2]}, "a mesh of [1099511627776, 2] has more than 1,048,576 devices"),
        (
            {"partition_spec": ["x"]},
            "should use each of the mesh's axes (data, model) at most once, but uses ['x']",
        ),
        ({"partition_spec": ["data", ["data"]]}, "at most once, but uses ['data', 'data']"),
        ({"partition_spec": [3]}, "an entry of partition_spec should be of type list, but is 3"),
        ({"partition_spec": None}, "partition_spec should be of type list, but is None"),
        ({"axis_types": [1, 2]}, "an axis type should be of type str, but is 1"),
    ],
)
def test_what_contradicts_itself(changes, message):
    with pytest.raises(CorruptError) as caught:
        parse(**changes)
    assert str(caught.value).startswith("_sharding, the sharding of 'x': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"!": "{}"}, "the key '!' should be the base64 of an array's name, but is not"),
        ({"/w==": "{}"}, "the key '/w==' should be the base64 of an array's name"),
        ({"YQ==": {}}, "the sharding of 'a' should be of type str, but is {}"),
        ({"YQ==": "{"}, "the sharding of 'a', line 1, column 2: expected JSON"),
    ],
)
def test_what_is_no_sharding_file(document, message, tmp_path):
    path = tmp_path / "_sharding"
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError) as caught:
        read_shardings(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_layout_that_does_not_fit_its_tensor(tmp_path):
    from reshard.formats.orbax.reader import open_orbax
    from tests.formats.orbax.by_hand import write_item, zarr2

    for shape, message in (((6, 2), "does not divide"), ((4,), "dimension")):
        root = write_item(
            tmp_path / str(len(shape)), {"x": (np.zeros(shape, np.int8), zarr2(shape))}
        )
        key = base64.urlsafe_b64encode(b"x").decode()
        (root / "_sharding").write_text(json.dumps({key: json.dumps(NAMED)}))
        with pytest.raises(
            CorruptError, match="the layout recorded for 'x' contradicts its shape: .*" + message
        ):
            open_orbax(str(root))
