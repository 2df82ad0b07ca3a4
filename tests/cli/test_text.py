from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.cli.text import (
    chunks_text,
    common_name,
    count_text,
    duration_text,
    encoding_text,
    grouped,
    groups_of,
    layout_text,
    mesh_text,
    parts_text,
    rate_text,
    rule_words,
    safe,
    shape_text,
    some_text,
)
from reshard.formats.contents import Encoding, StoredTensor
from reshard.geometry.grid import Grid
from reshard.inspection.checkpoint_info import TensorInfo
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.verification.reports import AppliedRules
from tests.cli.specimens import SERVED, TRAINED, spec


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("params/größe", "params/größe"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u2028b", "a\\u2028b"),
        ("a\udc80b", "a\\udc80b"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_names_cannot_steer_a_terminal(name: str, shown: str) -> None:
    assert safe(name) == shown


@given(st.text())
def test_no_control_character_survives(name: str) -> None:
    shown = safe(name)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode("utf-8")


def test_messages_keep_their_line_breaks() -> None:
    assert safe("one\ntwo\x07", keep="\n") == "one\ntwo\\x07"


def test_shapes_and_parts() -> None:
    assert shape_text((2048, 8192)) == "2048×8192"
    assert shape_text(()) == "scalar"
    assert parts_text(Grid.regular((16, 8), (4, 4))) == "8 of 4×4"
    assert parts_text(Grid((10,), ((0, 4, 7, 10),))) == "3 of ≤ 4"
    assert parts_text(Grid.whole((3, 3))) == "whole"
    assert parts_text(Grid.whole((0, 3))) == "none"


def test_chunks_are_shown_with_their_padding() -> None:
    assert chunks_text((10,), 3, (4,), (4,)) == "3 of 4"
    assert chunks_text((10,), 3, None, (4,)) == "3 of ≤ 4"
    assert chunks_text((10,), 1, (16,), (10,)) == "1 of 16"
    assert chunks_text((10,), 1, (10,), (10,)) == "whole"
    assert chunks_text((0,), 0, (4,), (0,)) == "none"


def test_encodings() -> None:
    assert encoded(Encoding("zstd", 3, True)) == "zstd-3 + crc32c"
    assert encoded(Encoding()) == "raw"
    assert encoded(Encoding(gathered="in ranges")) == "raw pieces"
    assert encoded(Encoding("tensorstore", spec="{}")) == "other codecs"
    assert encoded(Encoding(axis_order=(1, 0))) == "raw, axes [1, 0]"
    assert encoded(Encoding("zlib", 4, axis_order=(2, 0, 1))) == "zlib-4, shuffled"


def encoded(encoding: Encoding) -> str:
    stored = StoredTensor(spec("a"), encoding, b"", may_be_missing=False)
    return encoding_text(TensorInfo.of(stored))


def test_meshes_and_axes() -> None:
    assert mesh_text(TRAINED) == "data=4, model=2"
    assert layout_text(TensorLayout((("data", "model"), None), TRAINED)) == "[[data, model], null]"
    assert layout_text(TensorLayout((None, None), SERVED)) == "replicated"
    assert layout_text(None) == "–"
    assert mesh_text(DeviceMesh((2,), ("a\x1b",))) == "a\\x1b=2"


def test_counts_rates_and_times() -> None:
    assert (count_text(1, "task"), count_text(2000, "task")) == ("1 task", "2,000 tasks")
    assert rate_text(3 << 20, 2.0) == "1.50 MiB/s"
    assert rate_text(1, 0.0) == "–"
    assert list(map(duration_text, (0.44, 12.3, 200, 7500))) == [
        "0.4 s", "12 s", "3 min 20 s", "2 h 5 min",
    ]  # fmt: skip
    assert some_text(["a", "b"]) == "a, b"
    assert some_text(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["a/0/w", "a/1/w", "a/2/w"], "a/{0…2}/w"),
        (["a/0/w", "a/1/w"], "a/{0,1}/w"),
        (["layer_9/k", "layer_10/k", "layer_11/k"], "layer_{9…11}/k"),
        (["a/0/w1", "a/0/w2", "a/1/w1", "a/1/w2"], "a/{0,1}/w{1,2}"),
        (["only/3"], "only/3"),
        (["x/" + "9" * 6000, "x/1"], "x/{1," + "9" * 6000 + "}"),
    ],
)
def test_one_name_for_many(names: list[str], common: str) -> None:
    assert common_name(names) == common


def test_tensors_alike_share_a_row_and_others_do_not() -> None:
    items = [("a/0", 1), ("b/0", 1), ("a/1", 1), ("a/2", 2)]
    groups = grouped(items, lambda i: i[0], lambda i: i[1])
    assert [(g.name, g.count) for g in groups] == [("a/{0,1}", 2), ("b/0", 1), ("a/2", 1)]
    assert [g.name for g in groups_of(items, lambda i: i[0], lambda i: i[1], True)] == [
        "a/0",
        "b/0",
        "a/1",
        "a/2",
    ]


@given(st.lists(st.text("a/0129٣", max_size=6), unique=True))
def test_grouping_loses_no_member(names: list[str]) -> None:
    groups = grouped(names, str, len)
    assert sorted(m for g in groups for m in g.members) == sorted(names)


def test_rules_are_told_without_their_origin() -> None:
    rules = AppliedRules(select=("^x$",), cast=(("float", "bfloat16"),), from_="recorded")
    assert rule_words(rules) == ["select ^x$", "cast float=bfloat16"]
