"""Select, drop, rename and cast: which leaves are kept, what they are called, what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import PlanError
from reshard.layout.changes import Changes
from reshard.layout.dtypes import DTYPES
from reshard.layout.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.transforms import Rewrite, kind_of, rewrites

NAMES = ["params/dense/kernel", "params/dense/bias", "opt/mu/kernel", "opt/count", "note"]
DTYPE_OF = {
    "params/dense/kernel": "float32", "params/dense/bias": "bfloat16", "opt/mu/kernel": "float32",
    "opt/count": "int32",
}  # fmt: skip


def tensor(name: str, dtype: str) -> TensorSpec:
    return TensorSpec(name, (2,), dtype, Grid.whole((2,)))


def rewritten(names=NAMES, dtypes=DTYPE_OF, keys=(), **changes):
    tensors = {n: tensor(n, dtypes[n]) for n in names if n in dtypes}
    return rewrites(Changes(**changes), names, tensors, keys)


def refused(*texts, **arguments):
    with pytest.raises(PlanError) as caught:
        rewritten(**arguments)
    for text in texts:
        assert text in str(caught.value)


def test_without_rules_everything_is_kept_in_order():
    assert rewritten() == tuple(Rewrite(n, n) for n in NAMES)


def test_select_keeps_what_any_pattern_finds_and_drop_takes_from_that():
    kept = rewritten(select=("kernel", "^note$"), drop=("^opt/",))
    assert [r.source for r in kept] == ["params/dense/kernel", "note"]


def test_drop_alone():
    assert [r.source for r in rewritten(drop=("^opt/",))] == [*NAMES[:2], "note"]


def test_the_first_rename_that_matches_counts_and_may_use_groups():
    rules = ((r"^params/(\w+)/(\w+)", r"model/\2/\1"), ("kernel", "weight"))
    names = [r.target for r in rewritten(rename=rules)]
    assert names == ["model/kernel/dense", "model/bias/dense", "opt/mu/weight", *NAMES[3:]]


def test_a_rename_replaces_the_first_match_only():
    names = ["a/a"]
    (only,) = rewritten(names=names, dtypes={"a/a": "int8"}, rename=(("a", "b"),))
    assert only.target == "b/a"


def test_names_may_be_exchanged():
    names, dtypes = ["a", "b"], {"a": "int8", "b": "int8"}
    kept = rewritten(names=names, dtypes=dtypes, rename=(("^a$", "b"), ("^b$", "a")))
    assert [r.target for r in kept] == ["b", "a"]


def test_rules_see_the_sources_names_whatever_they_are_renamed_to():
    kept = rewritten(rename=(("^params/", "model/"),), cast=(("^params/.*kernel", "bfloat16"),))
    assert kept[0] == Rewrite("params/dense/kernel", "model/dense/kernel", "bfloat16")


def test_the_first_cast_that_matches_counts_and_leaves_no_tensors_alone():
    kept = rewritten(cast=(("bias", "float16"), ("dense|note", "float8_e4m3fn")))
    assert [r.dtype for r in kept] == ["float8_e4m3fn", "float16", None, None, None]


def test_a_cast_to_the_same_dtype_is_none():
    assert [r.dtype for r in rewritten(cast=(("params", "float32"),))][:2] == [None, "float32"]


@pytest.mark.parametrize("pattern", ["opt/count", "^opt/count$", "^opt/count", re.escape("opt/count")])  # fmt: skip
def test_another_kind_when_asked_for_by_name(pattern):
    assert rewritten(cast=((pattern, "float32"),))[3].dtype == "float32"


@pytest.mark.parametrize("pattern", ["count", "opt/coun", ".", "opt/.ount"])
def test_another_kind_when_not_asked_for_by_name(pattern):
    refused(
        "'opt/count' of dtype int32: int to float is done only when asked for by name",
        "add cast 'opt/count=float32' before it",
        cast=(("kernel|bias", "float32"), (pattern, "float32")),
    )


def test_the_remedy_that_the_refusal_names_works():
    kept = rewritten(cast=(("opt/count", "float32"), (".", "float32")))
    assert [r.dtype for r in kept] == [None, "float32", None, "float32", None]


def test_complex_numbers_lose_no_part_even_by_name():
    refused(
        "'c' of dtype complex64: the imaginary part would be lost",
        names=["c"], dtypes={"c": "complex64"}, cast=(("^c$", "float32"),),
    )  # fmt: skip
    (wider,) = rewritten(names=["c"], dtypes={"c": "complex64"}, cast=(("c", "complex128"),))
    assert wider.dtype == "complex128"


def test_prng_keys_are_never_cast():
    refused(
        "matches 'k', which is a PRNG key: its bits have no numeric meaning; narrow the pattern",
        names=["k"], dtypes={"k": "uint32"}, keys=("k",), cast=(("^k$", "uint32"),),
    )  # fmt: skip


def test_a_rule_is_idle_if_only_what_was_left_out_matches():
    refused("drop 'params' matches none of the 2 names", select=("note|count",), drop=("params",))
    refused("cast 'note' matches none of the 4 names", cast=(("note", "int8"),))
    refused("rename 'mu' matches none of the 4 names", drop=("mu",), rename=(("mu", "m"),))


def test_a_refusal_shows_at_most_five_names():
    names = [f"n{i}" for i in range(9)]
    refused(
        "matches none of the 9 names it could apply to (n0, n1, n2, n3, n4, …)",
        names=names, dtypes=dict.fromkeys(names, "int8"), select=("x",),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["select", "drop", "rename", "cast"])
def test_patterns_that_are_none(kind):
    rule = "*x" if kind in ("select", "drop") else ("*x", "int8")
    refused(
        f"{kind} '*x' is no regular expression: nothing to repeat at position 0; escape special",
        **{kind: (rule,)},
    )


@pytest.mark.parametrize("to", ["", "/", "a//b", "a/", "/a", ".", "..", "a/../b", "a/./b", "a\0b"])
def test_names_that_are_no_names(to):
    refused(f"'note' would be renamed to {to!r}, which is no usable name", rename=(("^note$", to),))


@pytest.mark.parametrize("to", [r"\1", r"\g<x>", "\\"])
def test_replacements_that_cannot_be_made(to):
    refused("the replacement cannot be made", "has 0 groups", rename=(("^note$", to),))


def test_a_leaf_below_a_leaf():
    refused("would be written as 'note/x', but 'note' is a leaf itself", rename=(("opt/count", "note/x"),))  # fmt: skip
    refused("'note' is a leaf itself", rename=(("opt/count", "note/x/y"),))


def test_a_leaf_renamed_to_where_others_lie():
    text = "'opt/mu/kernel' would be written as 'opt/mu/kernel', but 'opt/mu' is a leaf itself (now 'note')"
    refused(text, rename=(("^note$", "opt/mu"),))


def test_nothing_left_is_refused_unless_there_was_nothing():
    refused("select and drop rules keep none of the 4 tensors; loosen them", select=("note",))
    assert rewritten(names=["note"], dtypes={}) == (Rewrite("note", "note"),)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("bool", "bool"), ("int4", "int"), ("uint64", "int"), ("bfloat16", "float"),
     ("float8_e4m3fn", "float"), ("complex64", "complex")],
)  # fmt: skip
def test_kinds(dtype, kind):
    assert kind_of(dtype) == kind


@given(
    st.lists(st.text("ab/", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    st.sampled_from(["a", "b", "ab", "^a", "/"]),
    st.sampled_from(["", "c", "a/b", r"\g<0>c", "../x"]),
)
def test_whatever_is_renamed_targets_are_unique_usable_and_complete(names, pattern, to):
    names = [n for n in names if all(n.split("/"))] or ["a"]
    try:
        kept = rewritten(names=names, dtypes=dict.fromkeys(names, "int8"), rename=((pattern, to),))
    except PlanError:
        return
    assert [r.source for r in kept] == names
    targets = [r.target for r in kept]
    assert len(set(targets)) == len(targets)
    assert all(part not in ("", ".", "..") for t in targets for part in t.split("/"))


@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(DTYPES)))
def test_a_cast_by_pattern_never_changes_the_kind(source, target):
    try:
        (kept,) = rewritten(names=["xy"], dtypes={"xy": source}, cast=(("x", target),))
    except PlanError:
        assert kind_of(source) != kind_of(target)
    else:
        assert kind_of(source) == kind_of(target)
        assert kept.dtype == (None if source == target else target)
