from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.cli.grouping import common_name, grouped, single


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
    assert [g.name for g in single(items, lambda i: i[0])] == ["a/0", "b/0", "a/1", "a/2"]


@given(st.lists(st.text("a/0129٣", max_size=6), unique=True))
def test_grouping_loses_no_member(names: list[str]) -> None:
    groups = grouped(names, str, len)
    assert sorted(m for g in groups for m in g.members) == sorted(names)
