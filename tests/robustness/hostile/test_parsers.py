"""Every parser of foreign bytes under random damage: it answers, or refuses with an error of this project."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import random
import struct
import zlib
from pathlib import Path

import numcodecs.blosc
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError, LayoutError, ReshardError
from reshard.formats.codecs import open_stream
from reshard.formats.contents import Encoding, Extent
from reshard.formats.ocdbt.index import OcdbtIndex
from reshard.formats.orbax.aggregate_file import read_aggregate
from reshard.formats.orbax.aggregate_tree import read_tree
from reshard.formats.orbax.container import read_container
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.orbax.tree_metadata import (
    read_ext_metadata,
    read_shardings,
    read_strings,
    read_tree_metadata,
)
from reshard.formats.safe_json import JsonCursor, json_value
from reshard.formats.slices.parse import parse_slices
from reshard.formats.zarr.metadata import ShardIndexing, parse_zarr
from reshard.formats.zarr.values import read_shard_index
from reshard.geometry.sizes import parse_bytes
from reshard.layout.device_mesh import parse_mesh
from reshard.layout.read_layout import load_layout
from reshard.storage.location import locate
from tests.robustness.hostile.damage_codecs import damage_chunk
from tests.robustness.hostile.damage_json import damage_json, hostile_value, sealed
from tests.robustness.hostile.damage_ocdbt import damage_bytes, damage_database

SEEDS = st.integers(0, 2**32)


@contextlib.contextmanager
def only_ours():
    """Errors of this project are fine; any other is what the test looks for."""
    with contextlib.suppress(ReshardError):
        yield


def damaged(seed: int, document: object) -> bytes:
    rng = random.Random(seed)
    data = json.dumps(damage_json(rng, document)).encode("utf-8", "surrogatepass")
    return damage_bytes(rng, data, 1) if rng.random() < 0.3 else data


@given(st.binary(max_size=60) | st.text('[]{}":,\\ 1eE-.truefalsn', max_size=60).map(str.encode))
def test_json_is_what_the_library_reads_or_refused(data):
    try:
        expected = json.loads(data.decode())
    except (ValueError, RecursionError):
        expected = None
    for parse in (lambda: json_value(data, "it"), lambda: read_by_cursor(data)):
        try:
            found = parse()
        except (CorruptError, FormatError):
            assert expected is None or b"\0" in data or data.lstrip() != data
        else:
            assert repr(found) == repr(expected)


def read_by_cursor(data):
    cursor = JsonCursor(data, "it")
    value = cursor.value()
    cursor.finish()
    return value


@given(SEEDS)
def test_tree_metadata(specimens, tmp_path, seed):
    source = specimens / random.Random(seed).choice(("rich", "plain-zarr3", "ours"))
    (tmp_path / "_METADATA").write_bytes(
        damaged(seed, json.loads((source / "_METADATA").read_bytes()))
    )
    (tmp_path / "_strings.json").write_bytes(damaged(seed, {"name": "a string"}))
    with only_ours():
        files = MetadataFiles(locate(tmp_path))
        tree = read_tree_metadata(files, "_METADATA")
        read_strings(files, tree.leaves)


@given(SEEDS)
def test_values_that_are_kept_in_the_tree(specimens, tmp_path, seed):
    rng = random.Random(seed)
    for name in ("old-msgpack", "old-placeholders", "old-both"):
        data = (specimens / name / "checkpoint").read_bytes()
        (tmp_path / "checkpoint").write_bytes(damage_bytes(rng, data, rng.choice((1, 1, 3))))
        with only_ours():
            read_aggregate(locate(tmp_path))
    (tmp_path / "_METADATA").write_bytes((specimens / "old-both" / "_METADATA").read_bytes())
    with only_ours():
        read_tree(MetadataFiles(locate(tmp_path)))
    (tmp_path / "_METADATA").unlink()


@given(SEEDS)
def test_sharding_and_array_metadatas(specimens, tmp_path, seed):
    document = json.loads((specimens / "raw-zarr3" / "_sharding").read_bytes())
    key = random.Random(seed).choice(sorted(document))
    document[key] = damaged(seed, json.loads(document[key])).decode("utf-8", "replace")
    (tmp_path / "_sharding").write_text(json.dumps(document))
    with only_ours():
        read_shardings(MetadataFiles(locate(tmp_path)))
    (tmp_path / "array_metadatas").mkdir(exist_ok=True)
    record = json.loads((specimens / "raw-zarr3" / "array_metadatas" / "process_0").read_bytes())
    (tmp_path / "array_metadatas" / "process_0").write_bytes(damaged(seed, record))
    with only_ours():
        read_ext_metadata(MetadataFiles(locate(tmp_path)), {"key", "x"})


@given(SEEDS)
def test_checkpoint_metadata(specimens, tmp_path, seed):
    record = json.loads((specimens / "items" / "_CHECKPOINT_METADATA").read_bytes())
    (tmp_path / "_CHECKPOINT_METADATA").write_bytes(damaged(seed, record))
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "_METADATA").touch()
    with only_ours():
        read_container(MetadataFiles(locate(tmp_path)))


@given(
    SEEDS,
    st.sampled_from(
        [("raw-zarr2", ".zarray"), ("plain-zarr3", "zarr.json"), ("ours-blosc", "zarr.json")]
    ),
)
def test_array_metadata(specimens, seed, which):
    form, name = which
    document = json.loads((specimens / form / "params.kernel" / name).read_bytes())
    with only_ours():
        array = parse_zarr(damaged(seed, document), name, "it")
        assert len(array.shape) == len(array.chunk_shape) <= 32
        assert math.prod(array.shape) <= 1 << 62


@given(SEEDS)
def test_slice_metadata_with_a_right_digest(specimens, seed):
    rng = random.Random(seed)
    document = json.loads((specimens / "ours" / "slices.json").read_bytes())
    digest = document.pop("crc64nvme")
    data = json.dumps(
        {**damage_json(rng, document), "crc64nvme": digest}
        if isinstance(document, dict)
        else document
    )
    with only_ours():
        parse_slices(sealed(data.encode() + b"\n"), "slices.json")


@given(SEEDS, st.sampled_from(["ocdbt-zarr2", "ocdbt-zarr3", "half-merged"]))
def test_databases_whose_checksums_are_right(specimens, tmp_path_factory, seed, form):
    import shutil

    directory = Path(shutil.copytree(specimens / form, tmp_path_factory.mktemp("db") / "x"))
    rng = random.Random(seed)
    damage_database(rng, directory if rng.random() < 0.5 else directory / "ocdbt.process_0")
    for databases in ([directory], [directory / "ocdbt.process_0"]):
        with only_ours():
            index = OcdbtIndex([locate(d).view() for d in databases])
            index.find("params.kernel/.zarray", "it")
            index.find("table/0.0", "it")
    shutil.rmtree(directory)


@given(
    st.binary(max_size=80), st.lists(st.integers(1, 6), max_size=3), st.booleans(), st.booleans()
)
def test_shard_index(data, parts, at_end, checksum):
    indexing = ShardIndexing(tuple(parts), at_end, checksum)
    with only_ours():
        table = read_shard_index(Extent("it", 0, len(data), data), indexing, "it")
        assert len(table) == 16 * math.prod(parts)


RAW = bytes(range(256)) * 40
ENCODED = {
    "zstd": zstandard.ZstdCompressor(3).compress(RAW),
    "gzip": gzip.compress(RAW),
    "blosc": numcodecs.blosc.compress(RAW, b"lz4", 5, 1),
}
ENCODED_AS = {"zlib": ("gzip", zlib.compress(RAW)), **{k: (k, v) for k, v in ENCODED.items()}}


@given(SEEDS, st.sampled_from(sorted(ENCODED_AS)), st.booleans())
def test_codecs_give_the_bytes_or_refuse(seed, name, checksum):
    compressor, data = ENCODED_AS[name]
    data = damage_chunk(random.Random(seed), data)
    spec = '{"cname": "lz4"}' if compressor == "blosc" else ""
    out = bytearray(len(RAW))
    with only_ours():
        encoding = Encoding(compressor, None, checksum, spec)
        stream = open_stream(encoding, Extent("it", 0, len(data), data), len(RAW), "it")
        with contextlib.closing(stream):
            stream.readinto(memoryview(out))
            stream.close_checked()


@pytest.mark.parametrize("name", ["zstd", "gzip"])
@pytest.mark.parametrize("extra", [b"x", b"\0" * 9, "itself", "empty"])
def test_what_follows_a_frame_is_refused(name, extra):
    data = ENCODED[name]
    empty = {"zstd": struct.pack("<II", 0x184D2A50, 0), "gzip": gzip.compress(b"")}[name]
    data += {"itself": data, "empty": empty}.get(extra, extra) if isinstance(extra, str) else extra
    stream = open_stream(Encoding(name), Extent("it", 0, len(data), data), len(RAW), "it")
    stream.readinto(memoryview(bytearray(len(RAW))))
    with pytest.raises(CorruptError, match="bytes follow the end of its"):
        stream.close_checked()


LAYOUT = {
    "mesh": {"axes": ["data", "model"], "shape": [4, 2]},
    "rules": [{"match": "kernel", "axes": [["data", "model"], None]}],
    "partitions": [{"match": "table", "max_size": "64MiB", "axis": 0, "max_shards": 3}],
    "unmatched": "replicate", "select": ["a"], "rename": [{"match": "a", "to": "b"}],
    "cast": [{"match": "a", "dtype": "bfloat16"}],
}  # fmt: skip


@given(SEEDS, st.sampled_from(["l.json", "l.yaml"]))
def test_layout_files(tmp_path, seed, name):
    rng = random.Random(seed)
    data = damaged(seed, json.loads(json.dumps(LAYOUT)))
    if name.endswith("yaml") and rng.random() < 0.5:
        data = _as_yaml(rng, data)
    (tmp_path / name).write_bytes(data)
    with only_ours():
        load_layout(tmp_path / name)


def _as_yaml(rng, data):
    tricks = (
        b"&a [*a]", b"!!python/object:os.system x", b"1:59:59", b"<<: {}", b"2001-01-01", b"0x_", b"0b_", b".nan", b"=",
        b"!!binary aaa", b"? a\n: b", b"---\n---\n", b"%YAML 9.9\n---\n", b"- - - - -", b"|\n  x", b"1e999", b"0o9", b"08",
    )  # fmt: skip
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(tricks) + data[at:]


@given(
    st.text(max_size=30)
    | st.from_regex(r"[0-9]{1,30}(\.[0-9]{0,12})? ?[kKmMgGtTpPeEiIbB]{0,4}", fullmatch=True)
)
def test_sizes(text):
    with contextlib.suppress(LayoutError):
        assert 0 <= parse_bytes(text) <= 1 << 63


@given(st.text(max_size=30) | st.from_regex(r"([a-z]{0,3}=-?[0-9]{0,25},?){0,5}", fullmatch=True))
def test_meshes_of_the_command_line(text):
    with contextlib.suppress(LayoutError):
        assert parse_mesh(text).size <= 1 << 20


@given(SEEDS)
def test_any_value_as_a_field(seed):
    """What is replaced most: every field of an array's metadata by every hostile value."""
    rng = random.Random(seed)
    base = {
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<f4", "compressor": None, "fill_value": 0,
        "filters": None, "order": "C",
    }  # fmt: skip
    key = rng.choice(sorted(base))
    data = json.dumps({**base, key: hostile_value(rng)}).encode("utf-8", "surrogatepass")
    with only_ours():
        parse_zarr(data, ".zarray", "it")
