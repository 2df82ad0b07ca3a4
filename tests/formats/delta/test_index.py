"""The index of a delta: every refusal by its text, and that it is read as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from reshard.errors import CorruptError, FormatError
from reshard.formats.delta.index import (
    DeltaIndex,
    ListedTensor,
    parse_index,
    render_index,
    tensors_digest,
)
from reshard.formats.delta.index_values import checksum_of

DIGEST = checksum_of("adler32", b"abcd")
LISTED = {
    "b": ListedTensor("F4", (2, 4), "00000001"),
    "ä": ListedTensor("BF16", (2,), DIGEST),
    "a": ListedTensor("F32", (), "00000002"),
}
INDEX = DeltaIndex(
    "000007", "000006", "xor", "adler32", {"ä": "model-00000-of-00001.safetensors"}, DIGEST,
    tensors_digest("adler32", LISTED), 12, LISTED, {"ä": 2}, "ab" * 32, "cd" * 32,
)  # fmt: skip


def test_it_is_read_as_it_is_written() -> None:
    assert parse_index(render_index(INDEX), "index") == INDEX


def test_the_digest_of_the_tensors_is_of_lines_of_json() -> None:
    lines = '["a","F32",[],"00000002"]\n["b","F4",[2,4],"00000001"]\n["ä","BF16",[2],"%s"]\n'
    assert tensors_digest("adler32", LISTED) == checksum_of("adler32", (lines % DIGEST).encode())


def test_an_index_without_what_this_project_adds() -> None:
    metadata = {"version": "000001", "base_version": "000000", "delta_encoding": "overwrite", "compression_format": "zstd", "checksum_format": "blake3"}  # fmt: skip
    text = json.dumps({"metadata": metadata, "weight_map": {}}).encode()
    assert parse_index(text, "index") == DeltaIndex("000001", "000000", "overwrite", "blake3", {})


def _metadata(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["metadata"].__setitem__(key, value)


def _file(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["weight_map"].__setitem__("ä", name)


DTYPES = "BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, C64, F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, F4, F6_E2M3, F6_E3M2"
REMEDY = "; restore the folder from a copy, or publish a full version"
AN_ID = "; expected the id of a version, such as 000007 or v7: the name of a folder, of 200 bytes at most; rename the version where it is written"
NEWER = "; a newer program may have written it: publish a full version, or choose another encoding there"


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (_metadata("version", True), CorruptError, "index: metadata.version should be of type str, but is True"),
        (_metadata("version", "../x"), FormatError, f"index: metadata.version is '../x'{AN_ID}"),
        (_metadata("version", ".."), FormatError, f"index: metadata.version is '..'{AN_ID}"),
        (_metadata("version", ""), FormatError, f"index: metadata.version is ''{AN_ID}"),
        (_metadata("version", "a\n"), FormatError, f"index: metadata.version is 'a\\n'{AN_ID}"),
        (_metadata("base_version", "é" * 101), FormatError, f"index: metadata.base_version is '{'é' * 76}...{AN_ID}"),
        (_metadata("base_version", 7), CorruptError, f"index: its version 000007 should be later than its base_version 000007{REMEDY}"),
        (_metadata("base_version", "000007"), CorruptError, f"index: its version 000007 should be later than its base_version 000007{REMEDY}"),
        (_metadata("delta_encoding", "sparse"), FormatError, f"index: metadata.delta_encoding is 'sparse'; expected xor or overwrite{NEWER}"),
        (_metadata("compression_format", "lz4"), FormatError, f"index: metadata.compression_format is 'lz4'; expected zstd{NEWER}"),
        (_metadata("checksum_format", "md5"), FormatError, f"index: metadata.checksum_format is 'md5'; expected xxh3-128 or blake3 or adler32{NEWER}"),
        (_metadata("base_digest", "12"), CorruptError, f"index: metadata.base_digest is '12'; expected 8 hex digits of adler32{REMEDY}"),
        (_metadata("target_digest", "00000000"), CorruptError, f"index: its target_digest is 00000000, but its tensors give {INDEX.target_digest}{REMEDY}"),
        (_metadata("base_identity", 5), CorruptError, "index: metadata.base_identity should be of type str, but is 5"),
        (_metadata("target_identity", "0" * 63), CorruptError, f"index: metadata.target_identity is '{'0' * 63}'; expected 64 hex digits, the root of an identity{REMEDY}"),
        (_metadata("total_size", -1), CorruptError, "index: metadata.total_size should contain numbers from 0 to 2^62, but is [-1]"),
        (_metadata("tensors", []), CorruptError, "index: metadata.tensors should be of type dict, but is []"),
        (_metadata("tensors", {"a": ["F32", []]}), CorruptError, f"index: metadata.tensors['a'] should be dtype, shape and checksum, but is ['F32', []]{REMEDY}"),
        (_metadata("tensors", {"a": ["F32", [-1], DIGEST]}), CorruptError, "index: the shape of metadata.tensors['a'] should contain numbers from 0 to 2^62, but is [-1]"),
        (_metadata("tensors", {"a": ["F3", [1], DIGEST]}), FormatError, f"index: metadata.tensors['a'] has the dtype 'F3'; expected one of: {DTYPES}"),
        (_metadata("tensors", {"a": ["F32", [1] * 33, DIGEST]}), FormatError, "index: the shape of metadata.tensors['a'] has 33 dimensions; expected 32 at most"),
        (_metadata("tensors", {"a": ["U8", [1 << 40] * 2, DIGEST]}), CorruptError, f"index: its tensors up to 'a' have more than 2^62 bytes{REMEDY}"),
        (_metadata("total_size", 13), CorruptError, f"index: its total_size is 13, but its tensors have 12 bytes{REMEDY}"),
        (_metadata("changed", {"ä": 3}), CorruptError, f"index: 3 elements of 'ä' should have changed, but it has 2{REMEDY}"),
        (_file("../x"), CorruptError, f"index: the file of 'ä' is '../x'; expected the name of a file in its folder{REMEDY}"),
        (_file("..\\x"), CorruptError, f"index: the file of 'ä' is '..\\\\x'; expected the name of a file in its folder{REMEDY}"),
        (_file("\ud800"), CorruptError, f"index: the file of 'ä' is '\\ud800'; expected the name of a file in its folder{REMEDY}"),
        (_file("a\0b"), CorruptError, f"index: the file of 'ä' is 'a\\x00b'; expected the name of a file in its folder{REMEDY}"),
        (lambda document: document["weight_map"].update({"\ud800": "x"}), CorruptError, f"index: the name '\\ud800' in weight_map is no text{REMEDY}"),
        (lambda document: document["weight_map"].update(z="x"), CorruptError, f"index: weight_map names 'z', which is not among its tensors{REMEDY}"),
        (lambda document: document.update(weight_map=[]), CorruptError, "index: weight_map should be of type dict, but is []"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    change: Callable[[dict[str, Any]], None], kind: type[Exception], text: str
) -> None:
    document = json.loads(render_index(INDEX))
    change(document)
    with pytest.raises(kind) as error:
        parse_index(json.dumps(document).encode(), "index")
    assert (type(error.value), str(error.value)) == (kind, text)
