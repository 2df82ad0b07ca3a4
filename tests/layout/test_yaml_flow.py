from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reshard.layout.layout_text import parse_yaml
from reshard.layout.yaml_flow import flow

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["null", "Yes", "on", "y", "~", "", " ", "1", "1e3", "0x1", "- a", "#", "a: b", "it's", '"', "\\", "\x85", "\n"]
)  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_is_written_is_read_back(value):
    text = flow(value)
    assert "\n" not in text
    assert parse_yaml(f"a: {text}\n", "here").data == {"a": value}


def test_words_need_no_quotes():
    assert flow({"axes": [None, "model", ["x", "no"]]}) == "{axes: [null, model, [x, 'no']]}"
