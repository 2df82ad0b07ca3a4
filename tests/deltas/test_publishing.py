"""When a delta appears, under which number, and on which version it may stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

import reshard
from reshard.api.deltas import apply, delta
from reshard.errors import PlanError, TargetExistsError, VerificationError
from reshard.formats.delta.read_delta import open_delta
from reshard.storage.location import locate
from tests.delta_layout import (
    stored,
)
from tests.deltas.weights import array, save, stepped


def test_two_writers_of_one_version(tmp_path: Path) -> None:
    """The second is refused while the first is at work, and nothing half-done is there."""
    place = save(tmp_path / "old", {"a": array((8,), "float32")})
    target, said = tmp_path / "weight_v000001", []

    def again(_: reshard.Progress) -> None:
        with pytest.raises(reshard.TargetBusyError) as error:
            delta(place, place, target)
        said.append(str(error.value))
        assert not target.exists()

    delta(place, place, target, progress=again)
    assert said
    assert str(target) in said[0]
    assert target.exists()


def test_the_name_of_the_target_says_its_version(tmp_path: Path) -> None:
    place = save(tmp_path / "old", {"a": array((8,), "float32")})
    with pytest.raises(PlanError) as error:
        delta(place, place, tmp_path / "v7")
    assert str(error.value) == (
        f"the target '{tmp_path / 'v7'}' should have the name of a version, weight_v and a number of six digits, or more where it needs them, by which receivers find it; name it "
        "such as weight_v000007"
    )


def test_a_version_is_never_written_twice(tmp_path: Path) -> None:
    place = save(tmp_path / "old", {"a": array((8,), "float32")})
    target = tmp_path / "weight_v000001"
    delta(place, place, target)
    assert json.loads((target / "model.safetensors.index.json").read_text())["weight_map"] == {}
    with pytest.raises(
        TargetExistsError,
        match=r"weight_v000001.*exists already and was left untouched, since receivers may have read it; publish the next version",
    ):
        delta(place, place, target)
    apply(place, [target], tmp_path / "served")
    assert stored(tmp_path / "served") == stored(place)


def test_the_version_of_old_is_what_it_says(tmp_path: Path) -> None:
    place = save(tmp_path / "weight_v000003", {"a": array((8,), "float32")})
    assert delta(place, place, tmp_path / "weight_v000007").base_version == "000003"
    with pytest.raises(PlanError) as refused:
        delta(place, place, tmp_path / "weight_v000008", base_version=5)
    assert str(refused.value) == (
        f"the old checkpoint {str(place)!r} is the version 000003, as its index or its folder's name says, but base_version is 5; leave "
        "base_version out, or give the old checkpoint that is meant"
    )


def test_a_call_that_may_have_published_compares_instead(tmp_path: Path) -> None:
    old = {"w": array((64, 8), "float32"), "v": array((8,), "bfloat16")}
    sides = save(tmp_path / "old", old), save(tmp_path / "new", stepped(old, 0.1, 2))
    target = tmp_path / "weight_v000001"
    made = delta(*sides, target, again=True)
    index = (target / "model.safetensors.index.json").read_bytes()
    same = delta(*sides, target, again=True)
    assert (same.tensors, same.stored_bytes) == (made.tensors, made.stored_bytes)
    assert (target / "model.safetensors.index.json").read_bytes() == index
    other = save(tmp_path / "other", stepped(old, 0.1, 3))
    with pytest.raises(TargetExistsError) as refused:
        delta(sides[0], other, target, again=True)
    assert str(refused.value) == (
        f"the version {str(target)!r} exists already, but is another one than {str(sides[0])!r} and {str(other)!r} give; publish the next version"
    )


def test_nothing_is_published_where_the_caller_may_not(tmp_path: Path) -> None:
    old = {"w": array((64, 8), "float32")}
    sides = save(tmp_path / "old", old), save(tmp_path / "new", stepped(old, 0.1, 2))
    target = tmp_path / "weight_v000001"
    asked: list[str] = []

    def refuse(place: str) -> None:
        asked.append(place)
        raise RuntimeError("another process has the job")

    with pytest.raises(RuntimeError):
        delta(*sides, target, before_publish=refuse)
    assert (asked, target.exists()) == ([str(target)], False)
    delta(*sides, target)


def test_an_old_that_is_not_the_version_before_is_refused(tmp_path: Path) -> None:
    steps = [save(tmp_path / str(n), {"w": array((64, 8), "float32")}) for n in range(4)]
    published = tmp_path / "published"
    delta(steps[0], steps[1], published / "weight_v000001")
    with pytest.raises(VerificationError) as refused:
        delta(steps[2], steps[3], published / "weight_v000002")
    first = open_delta(locate(str(published / "weight_v000001"))).index
    said = str(refused.value)
    assert said.startswith("the old checkpoint gives the digest ")
    assert (
        f"records {first.target_digest} for the version 000001: it is not what that version was made of"
        in said
    )
    assert sorted(p.name for p in published.iterdir()) == ["weight_v000001"]
    delta(steps[1], steps[3], published / "weight_v000002")


def test_an_old_that_is_not_the_full_version_before_is_refused(tmp_path: Path) -> None:
    """OLD is a step to which the rules are applied; the full version was made of another one."""
    rules = {"map": {"map": [{"from": "w", "to": "up.weight", "shape": "i o -> o i"}]}}
    start = array((8, 6), "float32")
    for step in (1, 2, 3):
        reshard.save(tmp_path / "run" / str(step), {"w": stepped({"w": start}, 0.1, step)["w"]})
    full, target = tmp_path / "weight_v000000", tmp_path / "weight_v000001"
    reshard.convert(tmp_path / "run" / "1", full, to="safetensors", map=rules["map"])
    with pytest.raises(VerificationError) as refused:
        delta(tmp_path / "run" / "2", tmp_path / "run" / "3", target, map=rules["map"])
    given, there = (
        reshard.inspect(one).tensors[name].digest for one, name in ((tmp_path / "run" / "2", "w"), (full, "up.weight"))
    )  # fmt: skip
    assert given != there
    said = str(refused.value)
    assert said.startswith(f"of 'up.weight' the old checkpoint '{tmp_path / 'run' / '2'}' gives ")
    assert said.endswith(
        f", but {full}, on which the delta would stand, has {there} (digests as reshard fingerprint records them): it is not that version; give "
        "that version itself, or the step that it was made of with the same rules, or publish a full version"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "weight_v000000"]
    made = delta(tmp_path / "run" / "1", tmp_path / "run" / "3", target, map=rules["map"])
    assert made.warnings == ()
    assert reshard.verify(full, deltas=[target]).differences == 0


def test_a_full_version_before_without_digests_is_not_compared(tmp_path: Path) -> None:
    start = {"w": array((8, 6), "float32")}
    full = save(tmp_path / "weight_v000000", start)
    old, new = save(tmp_path / "old", start), save(tmp_path / "new", stepped(start, 0.1, 1))
    assert delta(old, new, tmp_path / "weight_v000001").warnings == (
        f"{full} records no digests of 1 of its 1 tensors, so that they were not compared with the old checkpoint; give that folder as the old "
        "one, or record digests (reshard fingerprint)",
    )
    assert delta(full, new, tmp_path / "weight_v000002", base_version=0).warnings == ()


def test_metadata_that_changes_is_named(tmp_path: Path) -> None:
    """A delta changes tensors alone."""
    start = {"w": array((8, 6), "float32")}
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    save_file(start, old, {"alpha": "8", "kept": "1", "gone": "1"})
    save_file(stepped(start, 0.1, 1), new, {"alpha": "16", "kept": "1"})
    assert delta(old, new, tmp_path / "weight_v000001").warnings == (
        "'alpha' in the metadata of the new checkpoint is not as in the old one, and a delta has no place for it: receivers keep the old metadata; "
        "publish a full version where they read it (reshard convert)",
    )
    assert delta(new, new, tmp_path / "weight_v000002").warnings == ()


def test_a_full_version_before_with_other_tensors_is_refused(tmp_path: Path) -> None:
    start = {"w": array((8, 6), "float32")}
    save(tmp_path / "weight_v000000", {**start, "more": array((3,), "int32")})
    reshard.fingerprint(tmp_path / "weight_v000000")
    old, new = save(tmp_path / "old", start), save(tmp_path / "new", stepped(start, 0.1, 1))
    with pytest.raises(VerificationError, match=r"^of 'more' the old checkpoint '.*/old' gives nothing, but .*/weight_v000000, on which"):  # fmt: skip
        delta(old, new, tmp_path / "weight_v000001")
