"""JSON from strangers, whole and member by member."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import CorruptError, FormatError, StorageError
from reshard.formats.safe_json import MAX_JSON_DEPTH, JsonCursor, json_value, read_bytes, read_json
from reshard.storage.location import locate

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def by_cursor(data: bytes):
    """The value, taken apart to the last by a cursor."""
    cursor = JsonCursor(data, "here")
    value = _taken(cursor)
    cursor.finish()
    return value


def _taken(cursor):
    character = cursor._text[cursor._at : cursor._at + 1]
    if character == "{":
        return {key: _taken(cursor) for key in cursor.members()}
    if character == "[":
        return [_taken(cursor) for _ in cursor.elements()]
    return cursor.value()


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_both_agree_with_the_standard_library(value, indent, ascii_only):
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert json_value(data, "here") == json.loads(data) == by_cursor(data)


@given(st.text('[]{},:"\\ 1a\n', max_size=30))
def test_both_refuse_what_the_standard_library_refuses(text):
    data = text.encode()
    try:
        expected = json.loads(text)
    except ValueError:
        for read in (lambda d: json_value(d, "here"), by_cursor):
            with pytest.raises(
                CorruptError, match=r"here, line \d+, column \d+: expected JSON, found"
            ):
                read(data)
    else:
        assert json_value(data, "here") == by_cursor(data) == expected


@pytest.mark.parametrize("read", [lambda d: json_value(d, "f.json"), by_cursor])
@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_depth_is_refused_before_parsing(read, bracket):
    deep = bracket * 1_000_000
    with pytest.raises(
        FormatError, match=f"nests 1000000 levels deep; expected at most {MAX_JSON_DEPTH}; restore"
    ):
        read(deep)


def test_brackets_in_strings_do_not_count():
    value = ["[" * 500, '\\"[' * 500, {"{" * 200: "\\"}]
    assert json_value(json.dumps(value).encode(), "here") == value
    assert json_value(b"[" * 64 + b"]" * 64, "here") is not None


def test_errors_name_file_line_and_column(tmp_path):
    path = tmp_path / "_METADATA"
    path.write_text('{\n "a": 1,\n "b": oops}')
    with pytest.raises(CorruptError) as caught:
        read_json(locate(path))
    assert str(caught.value) == (
        f"{path}, line 3, column 7: expected JSON, found: Expecting value; the file is damaged or was "
        "cut short; restore it from a copy"
    )
    path.write_bytes(b'{\n"a": "\xff"}')
    with pytest.raises(
        CorruptError, match=r"line 2, column 7: expected JSON, found: bytes that are not UTF-8"
    ):
        read_json(locate(path))
    path.write_bytes(b"1" * 10_000)
    with pytest.raises(CorruptError, match=r"line 1, column 1: .*4300 digits"):
        read_json(locate(path))
    with pytest.raises(CorruptError, match=r"4300 digits"):
        by_cursor(b"1" * 10_000)
    with pytest.raises(CorruptError, match="found: more text after the end"):
        by_cursor(b"1 1")
    with pytest.raises(CorruptError, match=re.escape("found: the end in place of ',' or '}'")):
        by_cursor(b'{"a": 1')


def test_files_that_are_not_read(tmp_path):
    big = tmp_path / "big"
    big.write_bytes(b" " * 1001)
    with pytest.raises(
        FormatError, match="has 1,001 bytes, but at most 1,000 bytes of metadata are read"
    ):
        read_bytes(locate(big), 1000)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="should be a plain file with metadata, but is not"):
        read_bytes(locate(tmp_path / "pipe"))
    with pytest.raises(StorageError, match=r"cannot read .*/missing': No such file or directory"):
        read_bytes(locate(tmp_path / "missing"))
    with pytest.raises(FormatError, match="should be a plain file"):
        read_bytes(locate(tmp_path))
