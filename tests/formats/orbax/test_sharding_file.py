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
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.tree_metadata import OneDevice, parse_sharding, read_shardings
from reshard.storage.location import locate
from tests.orbax_trees import mesh

NAMED = {
    "sharding_type": "NamedSharding", "shape": [4, 2], "axis_names": ["data", "model"],
    "axis_types": None, "partition_spec": ["data", "model"],
}  # fmt: skip


def parse(**changes):
    return parse_sharding(json.dumps({**NAMED, **changes}), "x", "_sharding")


def devices(*rows):
    return {"device_mesh": {"mesh": [[{"id": i} for i in row] for row in rows]}}


def test_device_ids_row_major_without_the_coordinates_of_older_forms():
    written = [
        [{"id": 7 - 2 * row - at, "coords": [0, at, row]} for at in range(2)] for row in range(4)
    ]
    assert parse(device_mesh={"mesh": written}).device_mesh.device_ids == (7, 6, 5, 4, 3, 2, 1, 0)


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
    assert layout.device_mesh.device_ids == tuple(range(8))


def test_an_array_on_one_device_keeps_the_devices_name():
    one = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    written = orbax_sharding.from_jax_sharding(one).to_serialized_string()
    assert parse_sharding(written, "x", "_sharding") == OneDevice(written)


def test_other_shardings_are_no_layout():
    assert parse(sharding_type="SingleDeviceSharding", device_str=None) is None
    assert parse(sharding_type="GSPMDSharding", shape=None) is None


def test_older_forms_without_axis_types():
    assert parse().device_mesh.axis_types is None


def test_equal_texts_share_one_layout(tmp_path):
    text = json.dumps(NAMED)
    names = [base64.urlsafe_b64encode(n.encode()).decode() for n in ("a.b", "ü/c>?")]
    (tmp_path / "_sharding").write_text(json.dumps(dict.fromkeys(names, text)))
    layouts = read_shardings(MetadataFiles(locate(tmp_path)))
    assert list(layouts) == ["a.b", "ü/c>?"]
    assert layouts["a.b"] is layouts["ü/c>?"]
    other = json.dumps({**NAMED, "partition_spec": []})
    (tmp_path / "_sharding").write_text(json.dumps({names[0]: text, names[1]: other}))
    one, two = read_shardings(MetadataFiles(locate(tmp_path))).values()
    assert one.device_mesh is two.device_mesh
    (tmp_path / "none").mkdir()
    assert read_shardings(MetadataFiles(locate(tmp_path / "none"))) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"shape": [4]},
            "the mesh's shape [4] needs 1 different axis names, but they are ['data', 'model']",
        ),
        ({"axis_names": ["data", "data"]}, "needs 2 different axis names"),
        ({"axis_names": [1, 2]}, "an axis name should be of type str, but is 1"),
        (
            {"shape": [0, 2]},
            "the mesh's shape should contain numbers from 1 to 2^62, but is [0, 2]",
        ),
        ({"shape": [-4, 2]}, "should contain numbers from 1"),
        ({"shape": [1 << 40, 2]}, "a mesh of [1099511627776, 2] has more than 1,048,576 devices"),
        (
            {"partition_spec": ["x"]},
            "should use each of the mesh's axes (data, model) at most once, but uses ['x']",
        ),
        ({"partition_spec": ["data", ["data"]]}, "at most once, but uses ['data', 'data']"),
        ({"partition_spec": [3]}, "an entry of partition_spec should be of type list, but is 3"),
        ({"partition_spec": None}, "partition_spec should be of type list, but is None"),
        ({"axis_types": [1, 2]}, "an axis type should be of type str, but is 1"),
        ({"device_mesh": [0]}, "device_mesh should be of type dict, but is [0]"),
        ({"device_mesh": {}}, "device_mesh should be of type list, but is None"),
        (devices([0, 1, 2, 3]), "has 1 entries where an axis has 4"),
        (devices(*[[0, 1, 2]] * 4), "has 3 entries where an axis has 2"),
        ({"device_mesh": {"mesh": [[0, 1]] * 4}}, "a device should be of type dict, but is 0"),
        (
            devices(["0", 1], [2, 3], [4, 5], [6, 7]),
            "a device's id should be of type int, but is '0'",
        ),
    ],
)
def test_what_contradicts_itself(changes, message):
    with pytest.raises(CorruptError) as caught:
        parse(**changes)
    assert str(caught.value).startswith("_sharding, the sharding of 'x': ")
    assert message in str(caught.value)


@pytest.mark.parametrize("first", [[0, 2], [-1, 0], [1 << 31, 0]])
def test_device_ids_that_no_mesh_can_have(first):
    with pytest.raises(CorruptError) as caught:
        parse(**devices(first, [2, 3], [4, 5], [6, 7]))
    assert (
        "the sharding of 'x' makes no sense: the mesh (data=4, model=2) needs 8 different device ids, whole "
        f"numbers from 0, one for each of its places; found 8: {first[0]}, {first[1]}, 2, 3, 4, 5, 6, 7"
    ) in str(caught.value)


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
        read_shardings(MetadataFiles(locate(tmp_path)))
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
            open_orbax(locate(root).view())


def test_names_as_orbax_0_4_1_wrote_them(tmp_path):
    """Later the key is the base64 of the name; a name may look like base64, and what it decodes to is then no name."""
    text = json.dumps(NAMED)
    encoded = base64.urlsafe_b64encode(b"d.e").decode()
    document = {"a.b": text, "step": text, "empty": "", encoded: text}
    (tmp_path / "_sharding").write_text(json.dumps(document))
    files = MetadataFiles(locate(tmp_path))
    found = read_shardings(files, {"a.b", "step", "empty", "d.e"})
    assert sorted(found) == ["a.b", "d.e", "step"]
    with pytest.raises(
        CorruptError, match=r"the key 'a\.b' should be the base64 of an array's name, but is not"
    ):
        read_shardings(files, {"step"})
