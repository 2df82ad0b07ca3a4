"""Comparing checkpoints tensor by tensor: equal, different, and in what."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file

import reshard
from reshard.cli.app import run
from reshard.engine.limits import Limits
from reshard.engine.read_digests import tensor_digests
from reshard.verification.compare import compare_recorded, compare_stored
from tests.engine.stores import RAW, RAW_CRC, ZSTD, Store, tensor
from tests.orbax_trees import save_modes, save_pytree, small_tree
from tests.verification.slice_records import rewrite

LIMITS = Limits(64 << 20, 2)


@pytest.fixture
def pair(tmp_path):
    """The same two tensors in other chunks and another codec."""
    a, b = Store(tmp_path / "a", "A"), Store(tmp_path / "b", "B")
    for name in ("v", "w"):
        values = np.random.default_rng(ord(name)).normal(size=(12, 9)).astype(np.float32)
        a.add(tensor(name, (12, 9), (5, 9)), values, ZSTD)
        b.add(tensor(name, (12, 9), (12, 2)), values, RAW)
    return a, b


def verdicts(found):
    return {v.name: (v.status, v.detail) for v in found.tensors}


def change(store, name, **members):
    tensor_ = store.tensors[name]
    store.tensors[name] = replace(tensor_, **members)


def test_other_chunks_and_codecs_are_equal(pair):
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found) == {"v": ("equal", ""), "w": ("equal", "")}
    assert (found.a, found.b, found.differences) == ("A", "B", 0)
    assert all(t.digest_a == t.digest_b is not None for t in found.tensors)


def test_a_single_bit_is_a_difference(pair):
    data = bytearray(pair[1].path.read_bytes())
    data[0] ^= 1
    pair[1].path.write_bytes(bytes(data))
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found) == {"v": ("different", "the stored bits differ"), "w": ("equal", "")}
    assert found.differences == 1


def test_what_one_side_lacks_is_named(pair):
    del pair[0].tensors["v"], pair[1].tensors["w"]
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found) == {
        "w": ("only in A", "B has no tensor 'w'"),
        "v": ("only in B", "A has no tensor 'v'"),
    }
    assert found.differences == 2


@pytest.mark.parametrize(
    ("members", "detail"),
    [
        ({"spec": tensor("v", (9, 12), (9, 2))}, "shape [12, 9] in A, [9, 12] in B"),
        ({"spec": tensor("v", (12, 9), (12, 2), "int32")}, "dtype float32 in A, int32 in B"),
        ({"is_key": True}, "a PRNG key in B only"),
    ],
)
def test_what_is_unlike_is_not_read(pair, members, detail):
    change(pair[1], "v", **members)
    found = compare_stored(*pair, LIMITS)
    assert verdicts(found)["v"] == ("different", detail)
    assert found.tensors[0].digest_a is None


def test_a_checkpoint_is_compared_with_its_own_record(pair):
    store = pair[0]
    change(store, "v", digest=tensor_digests(store, LIMITS)["v"])
    found = compare_recorded(store, LIMITS)
    assert verdicts(found) == {
        "v": ("recorded", ""),
        "w": ("not recorded", "no digest was recorded when it was written"),
    }
    assert (found.b, found.differences) == (None, 0)


def test_bytes_that_changed_since_they_were_recorded_are_a_difference(pair):
    change(pair[0], "v", digest="0123456789abcdef")
    found = compare_recorded(pair[0], LIMITS)
    assert verdicts(found)["v"] == (
        "different",
        "the stored bits differ from those recorded when it was written",
    )
    assert (found.tensors[0].digest_b, found.differences) == ("0123456789abcdef", 1)


def test_what_cannot_be_read_hides_nothing_else(pair):
    """Every tensor gets its verdict; the damaged one says which chunk of which side."""
    pair[1].path.write_bytes(pair[1].path.read_bytes()[:-200])
    found = verdicts(compare_stored(*pair, LIMITS))
    assert found["v"] == ("equal", "")
    assert found["w"][0] == "damaged"
    assert found["w"][1].startswith("B: tensor 'w', chunk [0, ")
    alone = verdicts(compare_recorded(pair[1], LIMITS))
    assert (alone["v"][0], alone["w"][0]) == ("not recorded", "damaged")


def test_a_side_that_changed_since_it_was_recorded_is_damaged_even_where_both_agree(pair):
    change(pair[0], "v", digest="0123456789abcdef")
    assert verdicts(compare_stored(*pair, LIMITS))["v"] == (
        "damaged",
        "A: the stored bits differ from those recorded when it was written (0123456789abcdef)",
    )


def test_checksums_of_chunks_find_damage_where_no_digest_was_recorded(tmp_path):
    store = Store(tmp_path / "a", "A")
    store.add(tensor("v", (5, 5), (2, 3)), np.ones((5, 5), np.float32), RAW_CRC)
    assert verdicts(compare_recorded(store, LIMITS))["v"][0] == "checksum"


BASE = {"w": np.ones(4, np.float32), "name": "model-a", "none": None, "e": {}, "l": []}
CHANGES = {
    "another string": ({"name": "model-b"}, {"name": ("different", "'model-a'", "'model-b'")}),
    "no string": ({"name": ...}, {"name": ("only in A", "'model-a'", None)}),
    "no None": ({"none": ...}, {"none": ("only in A", "None", None)}),
    "no empty dict": ({"e": ...}, {"e": ("only in A", "Dict", None)}),
    "another container": ({"e": []}, {"e": ("different", "Dict", "List")}),
    "one more": ({"more": None}, {"more": ("only in B", None, "None")}),
    "an array for a string": (
        {"name": np.zeros(2, np.int8)},
        {"name": ("different", "'model-a'", "int8 of shape [2]")},
    ),
    "a string for an array": ({"w": "w"}, {"w": ("different", "float32 of shape [4]", "'w'")}),
    "a number for None": ({"none": 3}, {"none": ("different", "None", "int64 of shape []")}),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_pytree(tmp_path_factory.mktemp("base") / "a", BASE)


def changed(path, change):
    tree = {**BASE, "v": np.zeros(1), **change}
    return save_pytree(path, {name: leaf for name, leaf in tree.items() if leaf is not ...})


def unlike(leaves):
    return {x.name: (x.status, x.a, x.b) for x in leaves if x.is_difference}


@pytest.mark.parametrize("change, expected", CHANGES.values(), ids=CHANGES)
def test_verify_and_diff_find_the_same(tmp_path, change, expected):
    a, b = changed(tmp_path / "a", {}), changed(tmp_path / "b", change)
    verified, compared = reshard.verify(a, b), reshard.diff(a, b)
    assert unlike(verified.leaves) == unlike(compared.leaves.values()) == expected
    assert set(verified.leaves) == set(compared.leaves.values())
    assert (verified.differences, compared.differences) == (1, 1)
    assert {t.status for t in verified.tensors} == {"equal"}
    assert reshard.verify(b, a).differences == reshard.diff(b, a).differences == 1


@pytest.mark.parametrize("save", [s for _, s in save_modes()], ids=[i for i, _ in save_modes()])
def test_no_form_of_a_checkpoint_changes_other_leaves(save, tmp_path):
    tree = {**small_tree(), "nothing": None, "dict": {}, "list": [], "tuple": ()}
    a, b = save(tmp_path / "a", tree), tmp_path / "b"
    reshard.convert(a, b, ocdbt=True)
    found = reshard.verify(a, b)
    assert found.differences == 0
    assert {x.name.rpartition("/")[2] for x in found.leaves} >= {"nothing", "dict", "list"}
    assert {x.status for x in found.leaves} == {"equal"}


def test_the_commands(base, tmp_path, capsys):
    same = save_pytree(tmp_path / "same", BASE)
    other = save_pytree(tmp_path / "b", {**BASE, "name": "model-b", "none": np.zeros(2, np.int8)})
    assert run(["verify", str(base), str(same)]) == run(["diff", str(base), str(same)]) == 0
    out = capsys.readouterr().out
    assert f"equal: 1 of 1 tensor and 4 other leaves; A = {base}" in " ".join(out.split())
    assert "equal: 1 tensor and 4 other leaves, bit for bit" in out
    tables = []
    for command in ("verify", "diff"):
        assert run([command, str(base), str(other)]) == 3
        tables.append(capsys.readouterr().out.split("\n\n")[0].strip())
        assert run([command, str(base), str(other), "--json"]) == 3
        document = json.loads(capsys.readouterr().out)
        assert (document["equal"], document["differences"]) == (False, 2)
        assert document["leaves"][2] == {
            "name": "name", "status": "different", "a": "'model-a'", "b": "'model-b'", "source": "name"
        }  # fmt: skip
    assert tables[0] == tables[1]
    assert [line.split() for line in tables[0].splitlines()[-2:]] == [
        ["name", "'model-a'", "'model-b'"],
        ["none", "None", "int8", "of", "shape", "[2]"],
    ]
    assert run(["verify", str(base), str(other)]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "different: 0 of 1 tensor, 2 of 4 other leaves; A = " in out


def test_strings_that_begin_alike_are_shown_where_they_differ(tmp_path, capsys):
    texts = ["a long name of some model, version 1", "a long name of some model, version 2"]
    a, b = (save_pytree(tmp_path / t[-1], {**BASE, "name": t}) for t in texts)
    assert run(["verify", str(a), str(b)]) == 3
    assert "name        …ion 1'  …ion 2'" in capsys.readouterr().out


RULES = {
    "select": ["^w$", "^name$", "^none$", "^e$"],
    "drop": ["^none$"],
    "rename": [("^name$", "meta/name"), ("^w$", "model/w")],
}


def test_leaves_follow_the_recorded_rules(base, tmp_path):
    b = tmp_path / "b"
    reshard.convert(base, b, **RULES)
    found = reshard.verify(base, b)
    assert (found.differences, found.rules and found.rules.from_) == (0, "recorded")
    assert {(x.source, x.name, x.status) for x in found.leaves} == {
        ("name", "meta/name", "equal"), ("e", "e", "equal"),
    }  # fmt: skip
    other = save_pytree(tmp_path / "other", {**BASE, "name": "model-b", "none": 3, "l": "l"})
    found = reshard.verify(other, b, **RULES)
    assert unlike(found.leaves) == {"meta/name": ("different", "'model-b'", "'model-a'")}


def test_another_source_of_the_same_tensors_differs_in_its_string(base, tmp_path):
    reshard.convert(base, tmp_path / "b", **RULES)
    other = save_pytree(tmp_path / "other", {**BASE, "name": "model-b", "none": ()})
    found = reshard.verify(other, tmp_path / "b")
    assert unlike(found.leaves) == {"meta/name": ("different", "'model-b'", "'model-a'")}
    assert found.differences == 1
    assert repr(found).endswith("LeafDiff('meta/name': different, 'model-b' in A, 'model-a' in B)")


def test_a_leaf_that_took_the_place_of_another_is_found(base, tmp_path):
    """A tensor of B is no partner of a leaf that has its name in A, but another one by the rules."""
    reshard.convert(base, tmp_path / "b", rename=[("^name$", "text"), ("^w$", "name")])
    assert reshard.verify(base, tmp_path / "b").differences == 0
    found = reshard.verify(base, tmp_path / "b", rename=[("^name$", "text")])
    assert {t.name: t.status for t in found.tensors} == {"w": "only in A", "name": "only in B"}


def test_an_older_record_tells_nothing_of_other_leaves(base, tmp_path):
    b = tmp_path / "b"
    reshard.convert(base, b, **RULES)
    rewrite(b / "slices.json", lambda document: document["made"].pop("leaves"))
    found = reshard.verify(base, b)
    assert (found.differences, found.leaves) == (0, ())
    assert found.warnings[0] == (
        f"{str(b)!r} was made by an older reshard, which recorded its rules for tensors only: strings, None and empty "
        "containers are not compared, unless rules are given (select, drop, rename, cast)"
    )
    assert len(reshard.verify(base, b, **RULES).leaves) == 2


def test_an_older_record_without_names_in_its_rules_compares_by_name(base, tmp_path):
    b = tmp_path / "b"
    reshard.convert(base, b, cast={"float": "bfloat16"})
    rewrite(b / "slices.json", lambda document: document["made"].pop("leaves"))
    other = save_pytree(tmp_path / "other", {**BASE, "name": "model-b"})
    assert {x.status for x in reshard.verify(base, b).leaves} == {"equal"}
    assert unlike(reshard.verify(other, b).leaves).keys() == {"name"}


@pytest.mark.parametrize("leaves", [{}, {"meta/name": "e", "e": "name"}, {"meta/name": "gone"}])
def test_a_false_record_of_leaves_is_a_difference(base, tmp_path, leaves):
    b = tmp_path / "b"
    reshard.convert(base, b, **RULES)
    rewrite(b / "slices.json", lambda document: document["made"].update(leaves=leaves))
    assert unlike(reshard.verify(base, b).leaves)


def test_a_record_of_leaves_that_makes_no_sense_is_refused(base, tmp_path):
    b = tmp_path / "b"
    reshard.convert(base, b, **RULES)
    rewrite(b / "slices.json", lambda document: document["made"].update(leaves={"a": 1}))
    found = reshard.verify(base, b)
    text = "made has other leaves whose name in the source is no text"
    assert text in "".join(f.detail for f in found.files)


def test_a_conversion_to_safetensors_records_that_leaves_were_dropped(base, tmp_path):
    drop = ["^name$", "^none$", "^e$", "^l$"]
    reshard.convert(base, tmp_path / "st", to="safetensors", drop=drop)
    found = reshard.verify(base, tmp_path / "st")
    assert (found.differences, found.leaves) == (0, ())


def test_a_format_of_tensors_only_lacks_no_leaf(base, tmp_path, capsys):
    file = tmp_path / "m.safetensors"
    save_file({"w": BASE["w"]}, file)
    for found in (reshard.verify(base, file), reshard.diff(base, file)):
        leaves = found.leaves.values() if isinstance(found.leaves, dict) else found.leaves
        assert {x.status for x in leaves} == {"no place in B"}
        assert found.differences == 0
        assert found.warnings[0] == (
            f"strings, None and empty containers of {str(base)!r} are not compared, since the format of {str(file)!r} "
            "holds tensors only: 'e', 'l', 'name', 'none'"
        )
    found = reshard.verify(file, base)
    assert {x.status for x in found.leaves} == {"no place in A"}
    for command in ("verify", "diff"):
        assert run([command, str(base), str(file)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "are not compared, since the format of" in shown
        assert "equal: 1" in shown
        assert "other leaves" not in shown
        assert run([command, str(base), str(file), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["warnings"]) >= 1
