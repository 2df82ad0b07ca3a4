"""Codec chains that stock Orbax does not choose: TensorStore writes, the test decodes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reshard.errors import FormatError
from reshard.formats.orbax import item_tensors
from reshard.formats.orbax.reader import open_orbax
from reshard.storage.location import locate
from tests.equal import assert_same
from tests.formats.orbax.by_hand import LITTLE, sharded, write_item, write_tree, zarr2, zarr3
from tests.formats.orbax.decode import read_tensor

ARRAY = np.arange(7 * 10, dtype=np.float32).reshape(7, 10)
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}

DECODED = {
    "zarr2-raw": (zarr2((4, 4)), "none"),
    "zarr2-zstd": (zarr2((4, 4), compressor={"id": "zstd", "level": 3}), "zstd"),
    "zarr2-gzip": (zarr2((4, 4), compressor={"id": "gzip", "level": 2}), "gzip"),
    "zarr2-blosc": (
        zarr2((4, 4), compressor={"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 2}),
        "blosc",
    ),
    "zarr2-slashes": (zarr2((4, 4), dimension_separator="/"), "none"),
    "zarr3-raw": (zarr3((4, 4)), "none"),
    "zarr3-crc": (zarr3((4, 4), "bytes", "crc32c"), "none"),
    "zarr3-gzip": (zarr3((4, 4), "bytes", {"name": "gzip", "configuration": {"level": 1}}), "gzip"),
    "zarr3-blosc-crc": (
        zarr3((4, 4), "bytes", {"name": "blosc", "configuration": BLOSC}, "crc32c"), "blosc",
    ),
    "zarr3-zstd-crc": (
        zarr3((4, 4), "bytes", {"name": "zstd", "configuration": {"level": 1}}, "crc32c"), "zstd",
    ),
    "zarr3-v2-keys": (zarr3((4, 4), chunk_key_encoding={"name": "v2"}), "none"),
    "zarr3-dots": (
        zarr3((4, 4), chunk_key_encoding={"name": "default", "configuration": {"separator": "."}}),
        "none",
    ),
    "zarr3-shard": (zarr3((4, 6), sharded((2, 3), "bytes", "crc32c")), "none"),
    "zarr3-shard-start": (zarr3((4, 6), sharded((2, 3), index_location="start")), "none"),
    "zarr2-columns": (zarr2((4, 4), order="F"), "none"),
    "zarr2-columns-zstd": (zarr2((4, 4), order="F", compressor={"id": "zstd", "level": 3}), "zstd"),
    "zarr3-transpose": (zarr3((4, 4), TURNED, "bytes"), "none"),
    "zarr3-transpose-twice": (zarr3((4, 4), TURNED, TURNED, "bytes"), "none"),
    "zarr3-transpose-crc": (zarr3((4, 4), TURNED, "bytes", "crc32c"), "none"),
    "zarr3-shard-transpose": (
        zarr3((4, 6), sharded((2, 3), TURNED, "bytes", index_codecs=[LITTLE])), "none",
    ),
    "zarr3-shard-unchecked": (zarr3((4, 6), sharded((2, 2), index_codecs=[LITTLE])), "none"),
}  # fmt: skip

LEFT_TO_TENSORSTORE = {
    "zarr2-columns-big": zarr2((4, 4), order="F", dtype=">f4"),
    "zarr2-big": zarr2((4, 4), dtype=">f4"),
    "zarr2-zlib": zarr2((4, 4), compressor={"id": "zlib", "level": 1}),
    "zarr2-bz2": zarr2((4, 4), compressor={"id": "bz2", "level": 1}),
    "zarr3-transpose-big": zarr3((4, 4), TURNED, BIG),
    "zarr3-big": zarr3((4, 4), BIG),
    "zarr3-nested-shards": zarr3((8, 8), sharded((4, 4), sharded((2, 2)))),
    "zarr3-shard-big": zarr3((4, 4), sharded((2, 2), BIG)),
    "zarr3-twice-compressed": zarr3(
        (4, 4), "bytes", {"name": "gzip", "configuration": {"level": 1}},
        {"name": "zstd", "configuration": {"level": 1}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("ocdbt", [False, True], ids=["plain", "ocdbt"])
@pytest.mark.parametrize("case", DECODED)
def test_chains_that_are_decoded(case, ocdbt, tmp_path):
    metadata, compressor = DECODED[case]
    reader = open_orbax(
        locate(write_item(tmp_path / "c", {"x": (ARRAY, metadata)}, ocdbt=ocdbt)).view()
    )
    encoding = reader.tensors["x"].encoding
    assert encoding.compressor == compressor
    assert encoding.checksum == ("crc" in case or case == "zarr3-shard")
    assert bool(encoding.spec) == (compressor == "blosc")
    is_turned = ("columns" in case or "transpose" in case) and "twice" not in case
    assert encoding.axis_order == ((1, 0) if is_turned else ())
    assert_same(read_tensor(reader, "x"), ARRAY)


def test_column_order_of_one_dimension_is_row_order(tmp_path):
    path = _patched(tmp_path, ".zarray", zarr2((3,)), array=ARRAY[0], order="F")
    reader = open_orbax(locate(path).view())
    assert reader.tensors["x"].encoding.compressor == "none"
    assert_same(read_tensor(reader, "x"), ARRAY[0])


@pytest.mark.parametrize("ocdbt", [False, True], ids=["plain", "ocdbt"])
@pytest.mark.parametrize("case", LEFT_TO_TENSORSTORE)
def test_chains_that_are_left_to_tensorstore(case, ocdbt, tmp_path):
    arrays = {"x": (ARRAY, LEFT_TO_TENSORSTORE[case])}
    reader = open_orbax(locate(write_item(tmp_path / "c", arrays, ocdbt=ocdbt)).view())
    tensor = reader.tensors["x"]
    assert tensor.encoding.compressor == "tensorstore"
    assert tensor.spec.dtype == "float32"
    assert_same(read_tensor(reader, "x"), ARRAY)
    assert reader.locate("x", (0, 0)).length > 0


def test_shard_larger_than_the_array_with_missing_inner_chunks(tmp_path):
    metadata = zarr3((8, 12), sharded((2, 3)), fill_value=2.5, data_type="float32")
    reader = open_orbax(
        locate(
            write_item(
                tmp_path / "c", {"x": (ARRAY, metadata)}, store_array_data_equal_to_fill_value=False
            )
        ).view()
    )
    assert reader.tensors["x"].fill == np.float32(2.5).tobytes()
    assert reader.tensors["x"].spec.storage.parts == (4, 4)
    assert_same(read_tensor(reader, "x"), ARRAY)


def test_scalars_and_zero_size_arrays(tmp_path):
    arrays = {
        "scalar2": (np.array(3, np.int16), zarr2(())),
        "scalar3": (np.array(4, np.int16), zarr3(())),
        "zero2": (np.zeros((0, 3), np.int16), zarr2((1, 3))),
        "zero3": (np.zeros((3, 0), np.int16), zarr3((3, 1))),
    }
    reader = open_orbax(locate(write_item(tmp_path / "c", arrays)).view())
    for name, (array, _) in arrays.items():
        assert_same(read_tensor(reader, name), array, name)
    assert reader.tensors["zero2"].spec.storage.count == 0


def _patched(tmp_path, file_name, metadata, array=ARRAY, **changes):
    """An array whose metadata file was changed after it was written."""
    write_item(tmp_path / "c", {"x": (array, metadata)})
    path = tmp_path / "c" / "x" / file_name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return str(tmp_path / "c")


REFUSED = {
    "filters": (
        ".zarray", zarr2((4, 4)), {"filters": [{"id": "delta"}]},
        "tensor 'x', x/.zarray: zarr 2 filters ([{'id': 'delta'}]) are not supported",
    ),
    "compressor": (
        ".zarray", zarr2((4, 4)), {"compressor": {"id": "lzma"}},
        "tensor 'x', x/.zarray: its codecs are not supported (TensorStore: ",
    ),
    "codec": (
        "zarr.json", zarr3((4, 4)), {"codecs": [LITTLE, {"name": "pcodec"}]},
        "supported are none, zstd, gzip and blosc, each with or without crc32c",
    ),
    "dtype2": (
        ".zarray", zarr2((4, 4)), {"dtype": "<U4"},
        "tensor 'x', x/.zarray: the dtype '<U4' is not supported; supported are bool, int2",
    ),
    "dtype3": (
        "zarr.json", zarr3((4, 4)), {"data_type": {"name": "struct"}},
        "the dtype {'name': 'struct'} is not supported",
    ),
    "grid": (
        "zarr.json", zarr3((4, 4)), {"chunk_grid": {"name": "rectilinear"}},
        "the chunk grid 'rectilinear' is not supported; supported is 'regular'",
    ),
    "keys": (
        "zarr.json", zarr3((4, 4)), {"chunk_key_encoding": {"name": "hashed"}},
        "the chunk key encoding 'hashed' is not supported; supported are 'default' and 'v2'",
    ),
    "rank": (
        ".zarray", zarr2((4, 4)), {"shape": [1] * 40, "chunks": [1] * 40},
        "40 dimensions are too many; at most 32 are read",
    ),
    "size": (
        ".zarray", zarr2((4, 4)), {"shape": [1 << 40, 1 << 40], "chunks": [1 << 40, 1 << 40]},
        "the tensor of shape [1099511627776, 1099511627776] would take more than 2^62 bytes",
    ),
    "astronomical": (
        ".zarray", zarr2((4, 4)), {"shape": [1 << 62] * 32, "chunks": [1] * 32},
        "the tensor of shape [4611686018427387904, 4611",
    ),
    "beyond 64 bits": (
        ".zarray", zarr2((4, 4)), {"shape": [10**4000, 1]}, "should contain numbers from 0 to 2^62, but is [a number of 13,288 bits",
    ),
    "chunk": (
        ".zarray", zarr2((4, 4)), {"chunks": [1 << 62, 1 << 62]}, "no storage holds that",
    ),
    "chunks": (
        ".zarray", zarr2((4, 4)), {"shape": [1 << 40, 1], "chunks": [1, 1]},
        "shape [1099511627776, 1] in chunks of [1, 1] makes more than 4,194,304 chunks",
    ),
    "negative": (
        ".zarray", zarr2((4, 4)), {"shape": [-1, 4]},
        "shape should contain numbers from 0 to 2^62, but is [-1, 4]",
    ),
    "zero chunk": (
        ".zarray", zarr2((4, 4)), {"chunks": [0, 4]},
        "chunks should contain numbers from 1 to 2^62, but is [0, 4]",
    ),
    "ranks": (
        ".zarray", zarr2((4, 4)), {"chunks": [4]},
        "shape [7, 10] and chunk shape [4] should have the same number of dimensions",
    ),
    "shards": (
        "zarr.json", zarr3((4, 4)), {"codecs": [sharded((3, 3))]},
        "shards of shape [4, 4] should divide into inner chunks, but those have shape [3, 3]",
    ),
    "index location": (
        "zarr.json", zarr3((4, 4)), {"codecs": [sharded((2, 2), index_location="middle")]},
        "index_location should be 'start' or 'end', but is 'middle'",
    ),
    "no codecs": (
        "zarr.json", zarr3((4, 4)), {"codecs": []}, "codecs should name at least 'bytes'",
    ),
    "separator": (
        ".zarray", zarr2((4, 4)), {"dimension_separator": "../"},
        "the separator should be '/' or '.', but is '../'",
    ),
    "version": (
        "zarr.json", zarr3((4, 4)), {"zarr_format": 4}, "zarr_format should be 3, but is 4",
    ),
    "node": (
        "zarr.json", zarr3((4, 4)), {"node_type": "group"}, "node_type should be 'array', but is 'group'",
    ),
    "order": (
        ".zarray", zarr2((4, 4)), {"order": "Z"}, "order should be 'C' or 'F', but is 'Z'",
    ),
    "fill": (
        ".zarray", zarr2((4, 4)), {"fill_value": "zero"},
        "fill_value should be an element of float32, but is 'zero'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, tmp_path):
    file_name, metadata, changes, message = REFUSED[case]
    with pytest.raises(FormatError) as caught:
        open_orbax(locate(_patched(tmp_path, file_name, metadata, **changes)).view())
    assert message in str(caught.value)
    assert "tensor 'x'" in str(caught.value)


def test_too_many_cuts_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(item_tensors, "MAX_CUTS", 100)
    arrays = {f"x{n}": (np.zeros(n, np.int8), zarr2((1,))) for n in (40, 50, 60)}
    with pytest.raises(
        FormatError, match="up to 'x50' the tensors are cut in more than 100 places"
    ):
        open_orbax(
            locate(write_item(tmp_path / "c", {k: arrays[k] for k in ("x60", "x50")})).view()
        )
    monkeypatch.setattr(item_tensors, "MAX_CUTS", 200)
    same = {f"y{i}": arrays["x40"] for i in range(6)}
    assert len(open_orbax(locate(write_item(tmp_path / "d", same)).view()).tensors) == 6


def test_metadata_file_of_absurd_size(tmp_path):
    write_tree_with_file(tmp_path / "c", b" " * (2 << 20))
    with pytest.raises(FormatError, match="an array's metadata of 2,097,152 bytes is not read"):
        open_orbax(locate(tmp_path / "c").view())


def write_tree_with_file(directory, data):
    (directory / "x").mkdir(parents=True)
    (directory / "x" / ".zarray").write_bytes(data)
    write_tree(directory, [["x"]])
