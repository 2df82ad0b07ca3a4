"""The manifest of a delta of SkyRL: every refusal by its text, and that any bytes are read or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError
from reshard.formats.delta.index import DeltaIndex, ListedTensor
from reshard.formats.delta.read_delta import ManifestTensor, parse_manifest

FILE = "delta-rank00000-file000000.safetensors"
DIGEST = "0123456789abcdef" * 2


def document() -> dict[str, Any]:
    return {
        "version": 7, "base_version": 6, "total_uncompressed_num_bytes": 28, "total_compressed_num_bytes": 30, "payload_files": [FILE],
        "tensors": [
            {
                "name": "a", "dtype": "bfloat16", "shape": [2, 3], "uncompressed_num_bytes": 12, "compressed_num_bytes": 14,
                "payload_file": FILE, "payload_key": "k", "checksum": DIGEST, "checksum_algorithm": "xxh3-128",
            },
            {
                "name": "ä", "dtype": "torch.float32", "shape": [4], "uncompressed_num_bytes": 16, "compressed_num_bytes": 16,
                "payload_file": FILE, "payload_key": "ä", "checksum": DIGEST,
            },
        ],
    }  # fmt: skip


def test_what_it_says() -> None:
    found = parse_manifest(json.dumps(document()).encode(), "manifest")
    assert found.index == DeltaIndex("000007", "000006", "xor", "xxh3-128", {"a": FILE, "ä": FILE})
    assert found.files == (FILE,)
    assert found.tensors == {
        "a": ManifestTensor(ListedTensor("BF16", (2, 3), DIGEST), FILE, "k", 12, 14),
        "ä": ManifestTensor(ListedTensor("F32", (4,), DIGEST), FILE, "ä", 16, 16),
    }


def test_a_version_that_changes_nothing() -> None:
    none = {"version": 1, "base_version": 0, "tensors": [], "payload_files": []}
    totals = {"total_uncompressed_num_bytes": 0, "total_compressed_num_bytes": 0}
    found = parse_manifest(json.dumps({**none, **totals}).encode(), "manifest")
    assert found.index == DeltaIndex("000001", "000000", "xor", "xxh3-128", {})


Change = Callable[[dict[str, Any]], Any]


def _set(key: str, value: Any) -> Change:
    return lambda document: document.__setitem__(key, value)


def _of_a(key: str, value: Any) -> Change:
    return lambda document: document["tensors"][0].__setitem__(key, value)


def _without(key: str) -> Change:
    return lambda document: document["tensors"][0].pop(key)


REMEDY = "; restore the folder from a copy, or publish a full version"
BETWEEN = "should contain numbers from 0 to 2^62, but is"


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (_set("version", "7"), CorruptError, "an entry of version should be of type int, but is '7'"),
        (_set("version", True), CorruptError, "an entry of version should be of type int, but is True"),
        (_set("version", 10**15), CorruptError, f"its version is {10**15}; expected a number below {10**15}{REMEDY}"),
        (_set("base_version", -1), CorruptError, f"base_version {BETWEEN} [-1]"),
        (_set("base_version", 7), CorruptError, f"its version 7 should be later than its base_version 7{REMEDY}"),
        (_set("payload_files", FILE), CorruptError, f"payload_files should be of type list, but is '{FILE}'"),
        (_set("payload_files", [3]), CorruptError, "an entry of payload_files should be of type str, but is 3"),
        (_set("payload_files", ["../x"]), CorruptError, f"an entry of payload_files is '../x'; expected the name of a file in its folder{REMEDY}"),
        (_set("payload_files", [FILE, FILE]), CorruptError, f"payload_files names a file twice{REMEDY}"),
        (_set("payload_files", []), CorruptError, f"payload_file of 'a' is '{FILE}', which payload_files does not name{REMEDY}"),
        (_set("tensors", {}), CorruptError, "tensors should be of type list, but is {}"),
        (_set("tensors", [1]), CorruptError, "an entry of tensors should be of type dict, but is 1"),
        (_set("total_uncompressed_num_bytes", 27), CorruptError, f"total_uncompressed_num_bytes is 27, but that of its tensors together is 28{REMEDY}"),
        (_set("total_compressed_num_bytes", 31), CorruptError, f"total_compressed_num_bytes is 31, but that of its tensors together is 30{REMEDY}"),
        (_set("total_compressed_num_bytes", "30"), CorruptError, "an entry of total_compressed_num_bytes should be of type int, but is '30'"),
        (_of_a("name", 1), CorruptError, "the name of a tensor should be of type str, but is 1"),
        (_of_a("name", "\ud800"), CorruptError, f"the name '\\ud800' of a tensor is no text{REMEDY}"),
        (_of_a("name", "ä"), CorruptError, f"'ä' is there twice{REMEDY}"),
        (_of_a("dtype", 1), CorruptError, "dtype of 'a' should be of type str, but is 1"),
        (_of_a("dtype", "qint8"), FormatError, "dtype of 'a' is 'qint8'; expected a dtype of torch that safetensors files have, such as bfloat16"),
        (_of_a("shape", 6), CorruptError, "shape of 'a' should be of type list, but is 6"),
        (_of_a("shape", [2, -3]), CorruptError, f"shape of 'a' {BETWEEN} [2, -3]"),
        (_of_a("shape", [1] * 33), FormatError, "shape of 'a' has 33 dimensions; expected 32 at most"),
        (_of_a("shape", [2, 4]), CorruptError, f"uncompressed_num_bytes of 'a' is 12, but bfloat16 of shape [2, 4] has 16 bytes{REMEDY}"),
        (_of_a("uncompressed_num_bytes", 12.0), CorruptError, "an entry of uncompressed_num_bytes of 'a' should be of type int, but is 12.0"),
        (_of_a("compressed_num_bytes", -1), CorruptError, f"compressed_num_bytes of 'a' {BETWEEN} [-1]"),
        (_of_a("payload_file", None), CorruptError, "payload_file of 'a' should be of type str, but is None"),
        (_of_a("payload_file", "a/b"), CorruptError, f"payload_file of 'a' is 'a/b'; expected the name of a file in its folder{REMEDY}"),
        (_of_a("payload_key", None), CorruptError, "payload_key of 'a' should be of type str, but is None"),
        (_of_a("payload_key", "ä"), CorruptError, f"'a' and 'ä' have one payload{REMEDY}"),
        (_of_a("checksum", DIGEST[1:]), CorruptError, f"checksum of 'a' is '{DIGEST[1:]}'; expected 32 hex digits of xxh3-128{REMEDY}"),
        (_without("checksum"), CorruptError, "checksum of 'a' should be of type str, but is None"),
        (_of_a("checksum_algorithm", 1), CorruptError, "checksum_algorithm of 'a' should be of type str, but is 1"),
        (_of_a("checksum_algorithm", "sha256"), FormatError, "checksum_algorithm of 'a' is 'sha256'; expected xxh3-128; another version of SkyRL may have written it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(change: Change, kind: type[Exception], text: str) -> None:
    changed = document()
    change(changed)
    with pytest.raises(kind) as error:
        parse_manifest(json.dumps(changed).encode(), "manifest")
    assert (type(error.value), str(error.value)) == (kind, f"manifest: {text}")


def test_it_is_json_of_an_object() -> None:
    with pytest.raises(CorruptError) as error:
        parse_manifest(b"[]", "manifest")
    assert str(error.value) == "manifest: the manifest should be of type dict, but is []"
    with pytest.raises(CorruptError) as error:
        parse_manifest(b'{"version": 7', "manifest")
    assert str(error.value).startswith("manifest, line 1, column 14: expected JSON")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)


@given(
    path=st.sampled_from([(key,) for key in document()] + [("tensors", 0, key) for key in document()["tensors"][0]]),
    value=JSON | st.integers(-(1 << 70), 1 << 70),
)  # fmt: skip
def test_any_value_in_any_place_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    changed = document()
    inside: Any = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    try:
        found = parse_manifest(json.dumps(changed).encode(), "manifest")
    except (CorruptError, FormatError) as error:
        assert str(error).startswith("manifest: ")
        assert len(str(error)) < 700
    else:
        assert set(found.tensors) == {one["name"] for one in changed["tensors"]}


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_any_byte_in_any_place_is_read_or_refused(place: int, value: int) -> None:
    data = bytearray(json.dumps(document()).encode())
    data[place % len(data)] = value
    try:
        parse_manifest(bytes(data), "manifest")
    except (CorruptError, FormatError) as error:
        assert str(error).startswith("manifest")
