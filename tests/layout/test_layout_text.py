from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import LayoutError, StorageError
from reshard.layout.layout_text import MAX_BYTES, flow, parse_json, parse_yaml, read_document


def test_data_and_lines() -> None:
    document = parse_yaml(
        "# a comment\nmesh:\n  axes: [a]\nrules:\n- match: x\n- {match: y}\n", "l.yaml"
    )
    assert document.data == {"mesh": {"axes": ["a"]}, "rules": [{"match": "x"}, {"match": "y"}]}
    assert document.place(("rules", 1)) == "l.yaml:6"
    assert document.place(("rules", 1, "match")) == "l.yaml:6"
    assert document.place(("nothing",)) == "l.yaml"


def test_plain_values() -> None:
    document = parse_yaml('[null, ~, true, 3, 4.5, "5", text, -1]', "l")
    assert document.data == [None, None, True, 3, 4.5, "5", "text", -1]
    assert parse_yaml("", "l").data is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [", "l.yaml:3?.*not YAML: "),
        ("a: \x00", "l.yaml: not YAML: unacceptable character"),
        ("a: &x [1]\nb: *x", r"l.yaml:2: aliases \(\*x\) are refused; write the part out"),
        ("a: 1\nb: !!python/object:os.system {}", r"l.yaml:2: tags \(tag:yaml.org,2002:python/object:os.system\) are refused"),
        ("!!int abc", "l.yaml:1: tags"),
        ("a: 1\nb: 2\na: 3", "l.yaml:3: key 'a' appears twice; keep one"),
        ("a: {b: 1, b: 1}", "l.yaml:1: key 'b' appears twice"),
        ("on: 1", "l.yaml:1: a key must be a string, not 'on'; quote it"),
        ("1: 1", "l.yaml:1: a key must be a string, not '1'"),
        ("<<: {a: 1}", "l.yaml:1: a key must be a string, not '<<'"),
        ("? [a]\n: 1", "l.yaml:1: a key must be a string, not a list or a mapping"),
        ("a: 2001-99-99", "l.yaml:1: '2001-99-99' is not a value; quote it if it is text"),
        ("a: =", "l.yaml:1: '=' is not a value"),
        ("a: " + "9" * 5000, "l.yaml:1: '9{40}'... has too many digits"),
        ("a: 1\n---\nb: 2", "l.yaml:2: not YAML: .*another document"),
        ("a:\n " + "[" * 17 + "]" * 17, "l.yaml:2: nested deeper than 16 levels; a layout file needs 5"),
    ],
)  # fmt: skip
def test_yaml_refusals(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=f"^{message}"):
        parse_yaml(text, "l.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b"}', "l.json:2: not JSON: Expecting ':' delimiter at column 5"),
        ("", "l.json:1: not JSON"),
        ('{"a": 1, "a": 2}', "l.json: key 'a' appears twice in one object; keep one"),
        ('{"a": NaN}', "l.json: NaN is not a JSON number"),
        ('{"a": -Infinity}', "l.json: -Infinity is not a JSON number"),
        ("9" * 5000, "l.json: a number has too many digits"),
        ("[" * 17 + "1" + "]" * 17, "l.json: nested deeper than 16 levels"),
        ("[" * 100_000, "l.json: nested deeper than 16 levels"),
    ],
)
def test_json_refusals(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=f"^{message}"):
        parse_json(text, "l.json")


def test_hostile_texts_are_refused_soon() -> None:
    began = time.process_time()
    for part in ("[", "{a: ", "- ", "? ", '"', "&a [", "!"):
        with pytest.raises(LayoutError):
            parse_yaml(part * (MAX_BYTES // len(part)), "l")
    assert time.process_time() - began < 5


@given(st.text(max_size=60))
def test_any_text_gives_data_or_a_layout_error(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        try:
            parse(text, "l")
        except LayoutError as error:
            assert str(error).startswith("l")


def test_files_are_read_by_their_name(tmp_path: Path) -> None:
    for name, text in (("l.yaml", "a: [b, null]"), ("l.json", '\ufeff{"a": ["b", null]}')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_document(tmp_path / name).data == {"a": ["b", None]}
    assert read_document(tmp_path / "l.yaml").place(("a",)) == f"{tmp_path}/l.yaml:1"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"layout file '.*none.yaml' cannot be read: No such file"
    ):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        read_document(tmp_path)
    with pytest.raises(StorageError, match="cannot be read: embedded null byte"):
        read_document("l\0.yaml")


def test_files_too_large_or_not_text(tmp_path: Path) -> None:
    path = tmp_path / "l.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(LayoutError, match=r"l.yaml: a layout file may have at most 4 MiB"):
        read_document(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(LayoutError, match=r"l.yaml: not UTF-8 text, at byte 3"):
        read_document(path)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["null", "Yes", "on", "y", "~", "", " ", "1", "1e3", "0x1", "- a", "#", "a: b", "it's", '"', "\\", "\x85", "\n"]
)  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_flow_is_read_back(value: object) -> None:
    text = flow(value)
    assert "\n" not in text
    assert parse_yaml(f"a: {text}\n", "here").data == {"a": value}


def test_words_need_no_quotes() -> None:
    assert flow({"axes": [None, "model", ["x", "no"]]}) == "{axes: [null, model, [x, 'no']]}"
