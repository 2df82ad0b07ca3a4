"""Select, drop, rename and cast: which leaves are kept, their names, and the refusals."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import PlanError
from reshard.geometry.dtypes import DTYPES, STORED_DTYPES
from reshard.geometry.grid import Grid
from reshard.layout.changes import Changes, kind_of
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.rules import Rewrite, check_rules, rewrites

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


def test_rules_match_the_names_of_the_source():
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
    refused(
        f"'note' would be renamed to {to!r}, which is not a usable name", rename=(("^note$", to),)
    )


@pytest.mark.parametrize("to", [r"\1", r"\g<x>", "\\"])
def test_replacements_that_cannot_be_made(to):
    refused("the replacement cannot be made", "has 0 groups", rename=(("^note$", to),))


def test_a_leaf_below_a_leaf():
    refused("would be written as 'note/x', but 'note' is a leaf itself", rename=(("opt/count", "note/x"),))  # fmt: skip
    refused("'note' is a leaf itself", rename=(("opt/count", "note/x/y"),))


def test_a_leaf_renamed_into_a_subtree():
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
def test_renamed_paths_are_unique_usable_and_complete(names, pattern, to):
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


OF_EVERY_KIND = {
    "w32": "float32", "w64": "float64", "w16": "bfloat16", "w8": "float8_e5m2", "w4": "float4_e2m1fn",
    "count": "int32", "bits": "uint8", "on": "bool", "z": "complex64", "key": "uint32",
}  # fmt: skip


def cast_to(*rules, dtypes=OF_EVERY_KIND, keys=("key",)):
    """The dtypes that these rules give, of what they change."""
    kept = rewritten(names=list(dtypes), dtypes=dtypes, keys=keys, cast=rules)
    return {r.source: r.dtype for r in kept if r.dtype}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([("float", "bfloat16")], dict.fromkeys(("w32", "w64", "w8", "w4"), "bfloat16")),
        ([("float32", "bfloat16")], {"w32": "bfloat16"}),
        ([("bfloat16", "float32")], {"w16": "float32"}),
        ([("int", "int64")], {"count": "int64", "bits": "int64"}),
        ([("int32", "int64")], {"count": "int64"}),
        ([("complex", "complex128")], {"z": "complex128"}),
        ([("bool", "bool")], {}),
        ([("w", "float32"), ("float", "bfloat16")], dict.fromkeys(("w64", "w16", "w8", "w4"), "float32")),
        ([("^w8$", "float8_e5m2"), ("float", "float16")], dict.fromkeys(("w32", "w64", "w16", "w4"), "float16")),
        ([("float64", "float32"), ("float", "float64")], {"w64": "float32", **dict.fromkeys(("w32", "w16", "w8", "w4"), "float64")}),
    ],
)  # fmt: skip
def test_a_cast_by_dtype_takes_every_tensor_of_it(rules, expected):
    assert cast_to(*rules) == expected


def test_a_cast_by_a_dtype_that_nothing_has_is_idle():
    refused(
        "cast uint32=int64: none of the 10 tensors is uint32 (their dtypes: bfloat16, bool, complex64, "
        "float32, float4_e2m1fn, float64, float8_e5m2, int32, uint8; PRNG keys are never cast); correct or "
        "remove it, or write '(uint32)' to search the names for the word",
        names=list(OF_EVERY_KIND), dtypes=OF_EVERY_KIND, keys=("key",), cast=(("uint32", "int64"),),
    )  # fmt: skip


def test_the_dtype_that_a_tensor_has_is_no_idle_rule():
    assert cast_to(("float", "bfloat16"), dtypes={"a": "bfloat16"}) == {}


@pytest.mark.parametrize("pattern", ["(float)", "^float$", "[f]loat", "floa"])
def test_a_name_that_is_a_dtypes_word_is_searched_otherwise(pattern):
    dtypes = {"float": "float32", "int": "float32", "other": "float32"}
    assert cast_to((pattern, "bfloat16"), dtypes=dtypes) == {"float": "bfloat16"}


def test_a_cast_by_dtype_changes_no_kind():
    refused(
        "cast int=float32 takes 'count' of dtype int32: int to float is done only when asked for by name; name the "
        "tensors that you mean, such as cast 'count=float32', in place of it",
        names=["count"], dtypes={"count": "int32"}, cast=(("int", "float32"),),
    )  # fmt: skip
    refused(
        "such as cast '^int$=float32', in place of it",
        names=["int"], dtypes={"int": "int32"}, cast=(("int", "float32"),),
    )  # fmt: skip
    assert cast_to(("^int$", "float32"), dtypes={"int": "int32"}) == {"int": "float32"}
    refused(
        "cast complex=float32 takes 'z' of dtype complex64: the imaginary part would be lost",
        names=["z"], dtypes={"z": "complex64"}, cast=(("complex", "float32"),),
    )  # fmt: skip


def test_refusals_of_patterns_name_the_rule_that_leaves_the_others_out():
    remedy = "or write 'float=bfloat16' for every float tensor and no other"
    refused("int to float is done only when asked for by name", remedy, cast=((".", "bfloat16"),))
    refused(
        "a PRNG key", remedy,
        names=["k"], dtypes={"k": "uint32"}, keys=("k",), cast=((".", "bfloat16"),),
    )  # fmt: skip
    found = [r.dtype for r in rewritten(cast=(("float", "bfloat16"),))]
    assert found == ["bfloat16", None, "bfloat16", None, None]


def test_saturating_casts():
    kept = rewritten(cast=(("float", "float8_e4m3fn:saturate"),))
    name = "params/dense/kernel"
    assert kept[0] == Rewrite(name, name, "float8_e4m3fn", saturate=True)
    assert kept[3] == Rewrite("opt/count", "opt/count")
    refused(
        "cast 'float'='int8:saturate': only floating dtypes saturate; leave ':saturate' out",
        cast=(("float", "int8:saturate"),),
    )
    for wrong in ("float8_e4m3fn:", "float8_e4m3fn:clip", ":saturate", "float8"):
        refused(f"cast 'float'={wrong!r}: no such dtype", cast=(("float", wrong),))
    refused("cast 'count'=float16:saturate matches 'opt/count'", cast=(("count", "float16:saturate"),))  # fmt: skip


@pytest.mark.parametrize("dtype", ["uint2", "uint4", "float8_e4m3"])
def test_what_no_checkpoint_stores_is_neither_offered_nor_made(dtype):
    offered = ", ".join(STORED_DTYPES)
    with pytest.raises(PlanError) as caught:
        check_rules(Changes(cast=(("x", dtype),)))
    assert f"no checkpoint stores {dtype}; expected one of: {offered}" in str(caught.value)
    refused(f"expected one of: {offered} (floating", cast=(("x", "x"),))
    assert dtype in DTYPES
    assert dtype not in STORED_DTYPES
