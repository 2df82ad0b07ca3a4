"""Merged rules: exact for any names, and few for the trees that people have."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.inspection.starter_layout import MergedRule, merged_rules
from tests.layout.tensor_names import NAMES

AXES = st.sampled_from(
    [(), ("model",), (None, "model"), ("data", "model"), (("data", "model"), None)]
)


def matching(rules: list[MergedRule], name: str) -> list[MergedRule]:
    return [rule for rule in rules if re.search(rule.match, name)]


@given(st.dictionaries(NAMES, AXES, max_size=25))
def test_each_name_is_matched_by_the_one_rule_that_has_its_axes(tree):
    rules = merged_rules(tree)
    for name, axes in tree.items():
        found = matching(rules, name)
        while axes and axes[-1] is None:
            axes = axes[:-1]
        assert [rule.axes for rule in found] == ([axes] if axes else [])
        assert not found or name in found[0].names
    covered = [name for rule in rules for name in rule.names]
    assert len(covered) == len(set(covered))


def layers(count: int, below: str = "") -> dict[str, tuple]:
    tree = {f"{below}embed": ("model",), f"{below}norm/scale": ()}
    for i in range(count):
        at = f"{below}layers/{i}"
        for name in ("query", "key", "value"):
            tree[f"{at}/attn/{name}/kernel"] = (None, "model")
            tree[f"{at}/attn/{name}/bias"] = ("model",)
        tree[f"{at}/attn/out/kernel"] = ("model", None)
        tree[f"{at}/attn/out/bias"] = ()
        tree[f"{at}/norm/scale"] = ()
    return tree


def test_layers_and_moments_share_rules():
    tree = layers(32, "params/") | layers(32, "opt_state/0/mu/") | layers(32, "opt_state/0/nu/")
    assert {r.match: r.axes for r in merged_rules(tree)} == {
        "(^|/)(key|query|value)/kernel$": (None, "model"),
        "(^|/)out/kernel$": ("model",),
        "(^|/)(key|query|value)/bias$": ("model",),
        "(^|/)embed$": ("model",),
    }


def test_numbers_count_where_they_decide():
    tree = {f"layers_{i}/w": ("model",) if i < 3 else ("data",) for i in range(12)}
    assert {r.match: r.axes for r in merged_rules(tree)} == {
        "(^|/)layers_(0|1|2)/w$": ("model",),
        "(^|/)layers_(3|4|5|6|7|8|9|10|11)/w$": ("data",),
    }


def test_names_of_hugging_face_have_parts_between_dots():
    tree = {"model.embed_tokens.weight": ("model",), "model.norm.weight": ()}
    for layer in range(12):
        at = f"model.layers.{layer}"
        tree |= {f"{at}.self_attn.{n}_proj.weight": ("model",) for n in "qkv"}
        tree[f"{at}.self_attn.o_proj.weight"] = (None, "model")
        tree[f"{at}.input_layernorm.weight"] = ()
        for expert in range(8):
            moe = f"{at}.block_sparse_moe.experts.{expert}"
            tree |= {f"{moe}.w1.weight": ("model",), f"{moe}.w3.weight": ("model",)}
            tree[f"{moe}.w2.weight"] = (None, "model")
    assert {r.match: r.axes for r in merged_rules(tree)} == {
        r"(^|\.)(embed_tokens|k_proj|q_proj|v_proj)\.weight$": ("model",),
        r"(^|\.)o_proj\.weight$": (None, "model"),
        r"(^|\.)w(1|3)\.weight$": ("model",),
        r"(^|\.)w2\.weight$": (None, "model"),
    }


@pytest.mark.parametrize("name", ["a.b", "w+", "(x)", "a|b", "^a$", "c\\d", "[0]", "é/ü", "a b"])
def test_what_regular_expressions_take_for_their_own_is_escaped(name):
    tree = {name: ("model",), "aXb": (), "ww": (), "x": (), "a": (), "c1": ()}
    (rule,) = merged_rules(tree)
    assert rule.names == (name,)
    assert [other for other in tree if re.search(rule.match, other)] == [name]


def test_a_name_that_others_end_with_is_taken_whole():
    tree = {"kernel": ("model",), "a/kernel": (), "b/kernel": ("data",)}
    assert {r.match: r.axes for r in merged_rules(tree)} == {
        "^kernel$": ("model",),
        "(^|/)b/kernel$": ("data",),
    }
