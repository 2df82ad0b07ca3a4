import json
import math
import os

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.slices.kept_metadata import KeptMetadata
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.slice_file import (
    SliceEntry,
    SliceFile,
    digest_of,
    render_slices,
    split_of,
)
from reshard.geometry.grid import Box, Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.storage.location import locate

MESH = DeviceMesh((4, 2), ("data", "model"))
DIGEST = "0123456789abcdef"
KERNEL = SliceEntry(
    ("params", "kernel"), "bfloat16", (8, 6), TensorLayout((None, "model"), MESH), parts=(1, 2),
    digest=DIGEST,
)  # fmt: skip


@st.composite
def entries(draw, number):
    shape = tuple(draw(st.lists(st.integers(0, 12), max_size=3)))
    common = {
        "path": (*draw(st.lists(st.text('ab/.é\\" ', max_size=4), max_size=2)), str(number)),
        "dtype": draw(st.sampled_from(["int4", "bfloat16", "complex64"])),
        "shape": shape,
        "digest": draw(st.sampled_from([None, DIGEST])),
        "partition": draw(st.sampled_from([None, {"axis": 0, "strategy": "fixed_shards"}])),
        "memory_kind": draw(st.sampled_from([None, "pinned_host"])),
    }
    return SliceEntry(**common, **draw(splits(shape)))


@st.composite
def splits(draw, shape):
    kind = draw(st.sampled_from(["mesh", "cuts", "slices"]))
    if kind == "mesh":
        sizes = tuple(
            draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0] or [3])) for n in shape
        )
        mesh = DeviceMesh(
            (*sizes, 2),
            (*(f"x{i}" for i in range(len(shape))), "spare"),
            axis_types=draw(st.sampled_from([None, ("Auto",) * (len(shape) + 1)])),
        )
        layout = TensorLayout(
            tuple(draw(st.sampled_from([f"x{i}", (f"x{i}",), None])) for i in range(len(shape))),
            mesh,
        )
        return {"layout": layout, "parts": layout.grid(shape).parts}
    boxes = [(draw(st.integers(0, n)), n) for n in shape]
    if kind == "slices":
        return {"slices": (Box(tuple(a for a, _ in boxes), tuple(b for _, b in boxes)),)}
    return {"cuts": tuple(tuple(sorted({0, *b})) for b in boxes)}


@st.composite
def files(draw):
    tensors = [draw(entries(i)) for i in range(draw(st.integers(0, 4)))]
    return SliceFile(
        {t.name: t for t in tensors},
        draw(st.sampled_from([{}, {"_METADATA": DIGEST}])),
        draw(st.sampled_from([None, {}, {"d/1": DIGEST, "manifest.ocdbt": DIGEST}])),
    )


@given(file=files())
def test_what_is_written_is_read(tmp_path_factory, file):
    folder = tmp_path_factory.mktemp("slices")
    data = render_slices(file)
    (folder / "slices.json").write_bytes(data)
    assert read_slices(locate(folder)) == file
    tensors = dict(reversed(file.tensors.items()))
    assert render_slices(replace(file, tensors=tensors)) == data
    for entry in file.tensors.values():
        sizes = [box.size for box in entry.boxes]
        assert entry.slices or sum(sizes) == math.prod(entry.shape)


def test_the_file_is_plain_json_with_the_words_of_the_format():
    data = render_slices(SliceFile({KERNEL.name: KERNEL}, {"_METADATA": DIGEST}))
    assert json.loads(data) == {
        "format": "reshard.slices",
        "version": 1,
        "meshes": {"m0": {"axes": ["data", "model"], "shape": [4, 2]}},
        "tensors": {
            "params/kernel": {
                "path": ["params", "kernel"], "dtype": "bfloat16", "shape": [8, 6], "mesh": "m0",
                "axes": [None, "model"], "parts": [1, 2], "crc64nvme": DIGEST,
            }
        },
        "files": {"_METADATA": DIGEST},
        "crc64nvme": f"{crc64nvme(data[: -len(DIGEST) - 3]):016x}",
    }  # fmt: skip


def test_slices_are_listed_row_major():
    assert list(KERNEL.boxes) == [Box((0, 0), (8, 3)), Box((0, 3), (8, 6))]
    loose = SliceEntry(("w",), "int8", (4,), slices=(Box((2,), (4,)), Box((0,), (2,))))
    assert list(loose.boxes) == [Box((2,), (4,)), Box((0,), (2,))]
    assert list(SliceEntry(("s",), "int8", (), parts=()).boxes) == [Box((), ())]


def test_uneven_parts_are_cuts():
    assert split_of(Grid.regular((10, 3), (4, 3))) == {"cuts": ((0, 4, 8, 10), (0, 3))}
    assert split_of(Grid.regular((0, 4), (1, 2))) == {"parts": (0, 2)}


def test_no_file_is_none(tmp_path):
    assert read_slices(locate(tmp_path)) is None


def test_what_is_no_file_is_refused_unread(tmp_path):
    (tmp_path / "slices.json").mkdir()
    with pytest.raises(FormatError, match=r"slices.json should be a plain file with metadata"):
        read_slices(locate(tmp_path))
    (tmp_path / "slices.json").rmdir()
    os.mkfifo(tmp_path / "slices.json")
    with pytest.raises(FormatError, match=r"slices.json should be a plain file with metadata"):
        read_slices(locate(tmp_path))


def test_an_unreadable_file_is_a_storage_error(tmp_path):
    (tmp_path / "slices.json").symlink_to("slices.json")
    with pytest.raises(
        StorageError, match=r"slice metadata: cannot look at .*slices.json': Too many"
    ):
        read_slices(locate(tmp_path))


def document(**changes):
    tensor = {
        "path": ["w"],
        "dtype": "int8",
        "shape": [8],
        "mesh": "m0",
        "axes": ["x"],
        "parts": [4],
    }
    tensor |= changes.pop("tensor", {})
    tensor = {k: v for k, v in tensor.items() if v is not ...}
    return {
        "format": "reshard.slices",
        "version": 1,
        "meshes": {"m0": {"axes": ["x"], "shape": [4]}},
        "tensors": {"w": tensor},
        "files": {},
    } | changes


def signed(fields):
    body = json.dumps(fields)[:-1].encode() + b', "crc64nvme": "'
    return body + digest_of(body).encode() + b'"}\n'


def test_the_damaged_documents_start_from_a_good_one(tmp_path):
    (tmp_path / "slices.json").write_bytes(signed(document()))
    assert len(list(read_slices(locate(tmp_path)).tensors["w"].boxes)) == 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"a": NaN}', "it is not JSON (found NaN)"),
        (b'{"a": 1, "a": 2}', "the same member twice"),
        (b"[]", "expected a JSON object, found list"),
        (b"{}", "expected format 'reshard.slices', found 'None'"),
        (b'{"format": "reshard.slices", "version": "1"}', "expected a version from 1 to 2, found '1'"),
        (json.dumps(document()).encode(), "its own digest (the last member) is missing"),
        (signed(document()).replace(b"int8", b"int4"), "of itself"),
        (signed(document(meshes=[])), "expected 'meshes' to be an object, found list"),
        (signed(document(meshes={"m0": 1})), "mesh 'm0' is not an object"),
        (signed(document(metadata=[])), "metadata is not an object"),
        (signed(document(metadata={"index": 1})), "expected 'index' to be an object, found int"),
        (signed(document(metadata={"header": {"a": 1}})), "metadata has a member that is no text"),
        (signed(document(metadata={"custom": {"a": "{"}})), "metadata has a text that is not JSON ('a', line 1"),
        (signed(document(metadata={"index": {"a": "[" * 99}})), "metadata has a text that is not JSON ('a' nests 99 levels deep"),
        (signed(document(meshes={"m0": {"axes": ["x"], "shape": [0]}})), "whole numbers from 1"),
        (signed(document(meshes={"m0": {"axes": ["x", "x"], "shape": [2, 2]}})), "has axes"),
        (signed(document(meshes={"m0": {"axes": ["x"], "shape": [10**12]}})), "devices"),
        (signed(document(meshes={"m0": {"axes": ["x"], "shape": [4], "axis_types": []}})), "axis types"),
        (signed(document(meshes={"m0": {"axes": ["x"], "shape": [4], "device_ids": [1]}})), "4 different device ids"),
        (signed(document(meshes={"m0": {"axes": ["x"], "shape": [4], "device_ids": "1"}})), "the device ids of mesh 'm0'"),
        (signed(document(tensors={"w": 1})), "tensor 'w' is not an object"),
        (signed(document(files={"_METADATA": "xyz"})), "file '_METADATA' has 'xyz' where 16 hex"),
        (signed(document(tensor={"path": ["v"]})), "does not join to its name"),
        (signed(document(tensor={"path": "w"})), "to be a list of strings"),
        (signed(document(tensor={"positions": [1]})), "has 1 keys, but the positions [1]"),
        (signed(document(tensor={"positions": [0, 0]})), "has 1 keys, but the positions [0, 0]"),
        (signed(document(tensor={"positions": 0})), "the positions of tensor 'w'"),
        (signed(document(tensor={"dtype": "int7"})), "unknown dtype 'int7'"),
        (signed(document(tensor={"shape": [-8]})), "whole numbers from 0"),
        (signed(document(tensor={"shape": [True]})), "whole numbers from 0"),
        (signed(document(tensor={"shape": [2**40, 2**40]})), "absurd shape"),
        (signed(document(tensor={"shape": [1] * 65})), "absurd shape"),
        (signed(document(tensor={"mesh": "m9"})), "is on the mesh 'm9'"),
        (signed(document(tensor={"axes": ["y"]})), "names the axis y"),
        (signed(document(tensor={"axes": [["x", "x"]]})), "uses a mesh axis twice"),
        (signed(document(tensor={"axes": ["x", None]})), "has 1 dimensions, but axes"),
        (signed(document(tensor={"parts": ...})), "needs one of parts, cuts and slices"),
        (signed(document(tensor={"cuts": [[0, 8]]})), "needs one of parts, cuts and slices"),
        (signed(document(tensor={"parts": [3]})), "cannot have equal parts [3]"),
        (signed(document(tensor={"parts": [0]})), "cannot have equal parts [0]"),
        (signed(document(tensor={"parts": [2]})), "has parts [2], but its axes give [4]"),
        (signed(document(tensor={"parts": ..., "cuts": [[0, 9]]})), "must rise from 0 to its size 8"),
        (signed(document(tensor={"parts": ..., "cuts": 8})), "are not a list"),
        (signed(document(tensor={"parts": ..., "slices": 8})), "are not a list"),
        (signed(document(tensor={"parts": ..., "slices": [[[4, 9]]]})), "outside its dimension of 8"),
        (signed(document(tensor={"parts": ..., "slices": [[]]})), "list of 1 [start, stop] pairs"),
        (signed(document(tensor={"partition": []})), "a partition of the wrong kind"),
        (signed(document(tensor={"memory_kind": 1})), "a memory_kind of the wrong kind"),
        (signed(document(tensor={"crc64nvme": "0123"})), "tensor 'w' has '0123' where 16 hex"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path, data, words):
    (tmp_path / "slices.json").write_bytes(data)
    with pytest.raises(CorruptError) as refusal:
        read_slices(locate(tmp_path))
    assert words in str(refusal.value)
    assert str(tmp_path / "slices.json") in str(refusal.value)
    assert "restore the file, or remove it" in str(refusal.value)


def test_huge_numbers_of_parts_are_refused_before_they_are_listed(tmp_path):
    huge = {"shape": [2**50], "parts": [2**50], "mesh": ..., "axes": ...}
    (tmp_path / "slices.json").write_bytes(signed(document(tensor=huge)))
    with pytest.raises(CorruptError, match="cannot have equal parts"):
        read_slices(locate(tmp_path))


def test_a_newer_version_says_so(tmp_path):
    (tmp_path / "slices.json").write_bytes(signed(document(version=3)))
    with pytest.raises(
        FormatError, match=r"has version 3, but this program reads versions up to 2"
    ):
        read_slices(locate(tmp_path))


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    with (tmp_path / "slices.json").open("wb") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(FormatError, match=r"1,073,741,825 bytes, more than the 1,073,741,824"):
        read_slices(locate(tmp_path))


@pytest.mark.parametrize("position", range(0, 200, 7))
def test_every_flipped_byte_is_found(tmp_path, position):
    data = bytearray(render_slices(SliceFile({KERNEL.name: KERNEL})))
    data[position] ^= 1
    (tmp_path / "slices.json").write_bytes(bytes(data))
    with pytest.raises(FormatError):
        read_slices(locate(tmp_path))


def test_texts_beside_the_tensors_come_back(tmp_path):
    kept = KeptMetadata({"a": 'é"\n'}, {"b": '{"c": [1]}'}, {"tree": "null"})
    data = render_slices(SliceFile({}, metadata=kept))
    (tmp_path / "slices.json").write_bytes(data)
    assert read_slices(locate(tmp_path)).metadata == kept
    assert b'"version": 1' in data
    assert b"metadata" not in render_slices(SliceFile({}))


def test_a_flipped_version_is_damage_and_no_newer_version(tmp_path):
    data = render_slices(SliceFile({}, {}))
    (tmp_path / "slices.json").write_bytes(data.replace(b'"version": 1', b'"version": 3'))
    with pytest.raises(CorruptError, match=r"its digest is \w+, but it records"):
        read_slices(locate(tmp_path))


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", ""])
def test_files_outside_of_the_folder_are_refused(tmp_path, name):
    (tmp_path / "slices.json").write_bytes(render_slices(SliceFile({}, {name: DIGEST}, {})))
    with pytest.raises(CorruptError, match="would be outside of its folder"):
        read_slices(locate(tmp_path))
