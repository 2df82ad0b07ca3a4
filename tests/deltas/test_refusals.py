"""What deltas refuse: memory that is too little, a target that another run has begun, a base that was not theirs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.deltas import make_delta
from tests.delta_layout import CHECKSUMS, bytes_of, changed, stored, write_delta, write_full

LIKE = {"a": np.arange(600, dtype="f4"), "b": np.arange(9, dtype="i4")}
INDEX = "model.safetensors.index.json"


def versions(folder: Path) -> tuple[Path, Path]:
    """Two full versions."""
    state = bytes_of(LIKE)
    return write_full(folder / "v0", state, LIKE), write_full(folder / "v1", changed(state, 0.1, 1), LIKE)  # fmt: skip


@pytest.mark.parametrize(("memory", "workers"), [("64MiB", 16), ("16MiB", 4), ("20MiB", 8)])
def test_fewer_threads_compress_where_memory_is_small(
    memory: str, workers: int, tmp_path: Path
) -> None:
    old, new = versions(tmp_path)
    report = reshard.delta(old, new, tmp_path / "weight_v000001", max_memory=memory, workers=workers)  # fmt: skip
    assert set(report.tensors) == {"a", "b"}


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    old, new = versions(tmp_path)
    with pytest.raises(
        reshard.MemoryBudgetError,
        match=r"to compare and compress takes 5\.00 MiB beside what is open, but max_memory is 4\.00 MiB; allow \d+MiB",
    ) as caught:
        reshard.delta(old, new, tmp_path / "weight_v000001", max_memory="4MiB")
    assert caught.value.smallest_bytes is not None
    assert not list(tmp_path.glob("*weight*"))
    reshard.delta(old, new, tmp_path / "weight_v000001", max_memory=caught.value.smallest_bytes)


_KILLED = """
import os, sys, reshard

reshard.convert(*sys.argv[1:], progress=lambda now: now.moved_bytes and os._exit(9))
"""


def test_what_an_interrupted_conversion_left_is_kept(tmp_path: Path) -> None:
    old, new = versions(tmp_path)
    target = tmp_path / "weight_v000001"

    subprocess.run([sys.executable, "-c", _KILLED, str(new), str(target)], check=False)
    (left,) = tmp_path.glob(".weight_v000001*partial")
    with pytest.raises(
        reshard.ResumeError, match="was interrupted, and what it did was kept; run it again"
    ):
        reshard.delta(old, new, target)
    assert left.exists()
    reshard.convert(new, target)
    assert not left.exists()


def test_nothing_is_left_where_the_file_of_payloads_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str | None) -> None:
        raise reshard.StorageError("no room")

    old, new = versions(tmp_path)
    monkeypatch.setattr(make_delta, "Spool", refuse)
    with pytest.raises(reshard.StorageError, match="no room"):
        reshard.delta(old, new, tmp_path / "weight_v000001")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v0", "v1"]


def without_index(folder: Path) -> Path:
    write_delta(folder, 3, bytes_of(LIKE), changed(bytes_of(LIKE), 0.1, 3))
    (folder / "weight_v000003" / INDEX).unlink()
    return folder / "weight_v000003"


def test_payloads_without_their_index_are_no_model(tmp_path: Path) -> None:
    place = without_index(tmp_path)
    with pytest.raises(
        reshard.IncompleteCheckpointError,
        match="holds the payloads of a delta, but its index, which is written last, is missing",
    ):
        reshard.convert(place, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_payloads_without_their_index_take_no_version_away(tmp_path: Path) -> None:
    state = bytes_of(LIKE)
    write_full(tmp_path / "weight_v000000", state, LIKE)
    write_delta(tmp_path, 1, state, changed(state, 0.1, 1))
    without_index(tmp_path)
    *_, last = reshard.inspect_versions(tmp_path)
    assert (last.kind, last.problem) == ("unfinished", "it is not finished")
    assert reshard.clean_versions(tmp_path, 1).removed == ()
    assert len(list(tmp_path.glob("weight*"))) == 3


def test_a_delta_on_a_damaged_version_says_so(tmp_path: Path) -> None:
    state = bytes_of(LIKE)
    write_full(tmp_path / "weight_v000000", state, LIKE)
    for number in (1, 2):
        after = changed(state, 0.1, number)
        write_delta(tmp_path, number, state, after)
        state = after
    (tmp_path / "weight_v000001" / INDEX).write_text("{")
    found = {one.version: one for one in reshard.inspect_versions(tmp_path)}
    assert found["000002"].problem == "the version 000001 cannot be used"


A, B = LIKE["a"], LIKE["b"]


@pytest.mark.parametrize(
    ("base", "text"),
    [
        ({"a": A}, "the delta records 'b', which it does not have"),
        ({"a": A, "b": B, "c": B}, "it has 'c', which the delta does not record"),
        ({"a": A.reshape(60, 10), "b": B}, r"'a' is F32 of shape \[60, 10\], but the delta records F32 of shape \[600\]"),
        ({"a": A.view("i4"), "b": B}, r"'a' is I32 of shape \[600\], but the delta records F32 of shape \[600\]"),
    ],
)  # fmt: skip
def test_a_base_of_other_tensors_is_refused(
    base: dict[str, np.ndarray], text: str, tmp_path: Path
) -> None:
    changed_only = LIKE | {"a": A + 1}  # so that the delta names no payload of b
    old = write_full(tmp_path / "v0", bytes_of(LIKE), LIKE)
    new = write_full(tmp_path / "v1", bytes_of(changed_only), LIKE)
    delta = tmp_path / "weight_v000001"
    reshard.delta(old, new, delta)
    other = write_full(tmp_path / "other", bytes_of(base), base)
    with pytest.raises(reshard.VerificationError, match=f"is not the base of .*{text}"):
        reshard.apply(other, [delta], tmp_path / "out")


def test_a_delta_without_checksums_behind_one_with_them_leaves_nothing_unchecked(
    tmp_path: Path,
) -> None:
    """``b``, which neither changes, is compared with what the first records."""
    first = LIKE | {"a": A + 1}
    old = write_full(tmp_path / "v0", bytes_of(LIKE), LIKE)
    new = write_full(tmp_path / "v1", bytes_of(first), LIKE)
    one = tmp_path / "weight_v000001"
    reshard.delta(old, new, one)
    two = write_delta(tmp_path, 2, bytes_of(first), bytes_of(LIKE | {"a": A + 2}))
    report = reshard.apply(old, [one, two], tmp_path / "out")
    assert not any("as they are" in warning for warning in report.warnings)
    shutil.rmtree(tmp_path / "out")
    wrong = write_full(tmp_path / "wrong", bytes_of(LIKE | {"b": B + 1}), LIKE)
    with pytest.raises(reshard.VerificationError, match="'b'"):
        reshard.apply(wrong, [one, two], tmp_path / "out")


def test_the_index_of_one_version_with_the_files_of_another(tmp_path: Path) -> None:
    """As two writers of a bucket could leave it, one of which came late: both have the same names."""
    old, new = versions(tmp_path)
    other = write_full(tmp_path / "v2", changed(bytes_of(LIKE), 0.1, 2), LIKE)
    places = [tmp_path / name / "weight_v000001" for name in ("one", "two")]
    for place, source in zip(places, (new, other), strict=True):
        reshard.delta(old, source, place)
    shutil.copy(places[1] / INDEX, places[0] / INDEX)
    made, listed = (CHECKSUMS["xxh3-128"](stored(one)["a"]) for one in (new, other))
    with pytest.raises(reshard.CorruptError) as error:
        reshard.apply(old, [places[0]], tmp_path / "out")
    assert str(error.value) == (
        f"{places[0]}/model-00000-of-00001.safetensors: the payload of 'a' has the checksum {made}, but the index lists {listed}: they are of two "
        "versions, or one of them is damaged; restore the folder from a copy, or publish a full version"
    )


def test_a_name_that_is_no_text_is_damage(tmp_path: Path) -> None:
    old, new = versions(tmp_path)
    place = tmp_path / "weight_v000001"
    reshard.delta(old, new, place)
    document = json.loads((place / INDEX).read_text())
    tensors = document["metadata"]["tensors"]
    tensors["\ud800"] = tensors["a"]
    (place / INDEX).write_text(json.dumps(document))
    with pytest.raises(reshard.CorruptError, match=r"the name '\\ud800' in metadata\.tensors is no text"):  # fmt: skip
        reshard.apply(old, [place], tmp_path / "out")
    (found,) = reshard.inspect_versions(place)
    assert found.kind == "damaged"


SCALED = {
    "w": np.arange(64, dtype=np.uint8).reshape(8, 8).view(ml_dtypes.float8_e4m3fn),
    "w_scale_inv": np.ones((1, 1), "f4"),
}
"""A quantised pair, as Hugging Face stores it."""


@pytest.mark.parametrize("lost", SCALED)
def test_half_a_quantised_pair_is_refused(lost: str, tmp_path: Path) -> None:
    changed_pair = {name: array.copy() for name, array in SCALED.items()}
    changed_pair["w"].view("u1")[3, 3] ^= 1
    changed_pair["w_scale_inv"][:] = 2
    half = {name: array for name, array in SCALED.items() if name != lost}
    old, new, less = (
        write_full(tmp_path / name, bytes_of(one), one)
        for name, one in (("old", SCALED), ("new", changed_pair), ("half", half))
    )
    with pytest.raises(
        reshard.PlanError, match=f"{old} has '{lost}', which {less} does not give; a delta changes"
    ):
        reshard.delta(old, less, tmp_path / "weight_v000001")
    with pytest.raises(
        reshard.PlanError, match=f"{less} has no '{lost}', which {new} gives; a delta changes"
    ):
        reshard.delta(less, new, tmp_path / "weight_v000001")
    by_another = write_delta(tmp_path, 1, bytes_of(SCALED), bytes_of(changed_pair))
    with pytest.raises(
        reshard.VerificationError,
        match=f"{by_another} changes '{lost}', which {less} does not have: it is not the base",
    ):
        reshard.apply(less, [by_another], tmp_path / "served")
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "half",
        "new",
        "old",
        "weight_v000001",
    ]
