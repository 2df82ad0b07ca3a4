"""Deltas that are killed with SIGKILL while they are made or applied: nothing half-done is seen, and the next run ends alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.campaigns import every
from tests.delta_layout import apply_delta, bytes_of, changed, stored, write_full
from tests.robustness.crash.killing import Point, run_call_killed, run_call_killed_at

RNG = np.random.default_rng(3)
LIKE = {f"t{n}": RNG.integers(0, 256, 700_000 + n, dtype=np.uint8) for n in range(5)}
V0 = bytes_of(LIKE)
V1 = changed(V0, 0.02, 1)
V2 = changed(V1, 0.5, 2) | {"t0": V1["t0"]}

SPOOL = "reshard.storage.local.spool:write_all"
RENAME = "reshard.storage.local.publishing:_rename"
MAKING = [
    Point("reshard.deltas.compare:stream_windows", "before", 2),
    Point(SPOOL, "torn", 1),
    Point("reshard.deltas.make_delta:render_index", "before"),
    Point(RENAME, "after"),
]
"""Beside those before each change of a file, at which a small delta is killed below."""

APPEND = "reshard.storage.local.transaction:LocalTransaction.append"
APPLYING = [
    Point(APPEND, "after", 3),
    Point("reshard.storage.checked_lines:write_all", "torn", 3),
    Point(RENAME, "after"),
]


def versions(folder: Path) -> tuple[Path, Path, Path]:
    states = enumerate((V0, V1, V2))
    return tuple(write_full(folder / f"v{n}", state, LIKE) for n, state in states)


@pytest.mark.parametrize("point", MAKING, ids=str)
def test_a_killed_delta_is_made_anew(point: Point, tmp_path: Path) -> None:
    old, new, _ = versions(tmp_path)
    target = tmp_path / "published" / "weight_v000001"
    options = {"file_bytes": 50_000, "max_memory": "64MiB", "workers": 1}
    assert run_call_killed(point, "delta", str(old), str(new), str(target), **options) == -9
    if not target.exists():
        reshard.delta(old, new, target, **options)
        assert [one.name for one in target.parent.iterdir()] == [target.name]
    assert apply_delta(target, V0) == V1
    with pytest.raises(reshard.TargetExistsError):
        reshard.delta(old, new, target, **options)
    assert apply_delta(target, V0) == V1


@pytest.mark.parametrize("point", APPLYING, ids=str)
def test_a_killed_apply_resumes(point: Point, tmp_path: Path) -> None:
    old, middle, new = versions(tmp_path)
    deltas = [tmp_path / "weight_v000001", tmp_path / "weight_v000002"]
    reshard.delta(old, middle, deltas[0])
    reshard.delta(middle, new, deltas[1], encoding="overwrite")
    target, options = tmp_path / "served", {"max_memory": "64MiB", "workers": 1}
    names = [str(one) for one in deltas]
    assert run_call_killed(point, "apply", str(old), names, str(target), **options) == -9
    report = reshard.apply(old, deltas, target, **options)
    assert stored(target) == V2
    assert report.already_done or report.resumed_bytes >= 0
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]


SMALL = {f"t{n}": RNG.integers(0, 256, 3000 + n, dtype=np.uint8) for n in range(3)}


EVERY = {"delta": every(3), "apply": every(8)}
"""So many changes apart; each in a campaign. ``apply`` writes as ``convert`` does, which is killed at more places elsewhere."""


@pytest.mark.parametrize("what", EVERY)
def test_killed_before_every_change_of_a_file(what: str, tmp_path: Path) -> None:
    """Nothing half-done is seen, and the next run ends with the same bytes and leaves no file beside the target."""
    before = bytes_of(SMALL)
    after = changed(before, 0.1, 1)
    old, new = (write_full(tmp_path / f"v{n}", s, SMALL) for n, s in enumerate((before, after)))
    reshard.delta(old, new, tmp_path / "weight_v000001")
    target = tmp_path / "made" / "weight_v000001"
    target.parent.mkdir()
    options = {"workers": 1}
    if what == "delta":
        arguments = (str(old), str(new), str(target))
        options |= {"file_bytes": 10, "base_version": 0}
    else:
        arguments = (str(old), [str(tmp_path / "weight_v000001")], str(target))
    number, code = 0, -9
    while code == -9:
        number += EVERY[what]
        code = run_call_killed_at(number, target.parent, what, *arguments, **options)
        if code == -9 and target.exists():  # published, and killed while it cleaned up
            assert is_whole(what, target, before, after), number
            reshard.clean_versions(target.parent, 1)
        elif code == -9:
            getattr(reshard, what)(*arguments, **options)
        assert is_whole(what, target, before, after), number
        assert [one.name for one in target.parent.iterdir()] == [target.name], number
        shutil.rmtree(target)
    assert (code, number > 15) == (0, True)


def is_whole(what: str, target: Path, before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """Whether a target is what the call makes."""
    if what == "apply":
        return stored(target) == after
    return apply_delta(target, before) == after


def test_a_delta_that_changes_meanwhile_is_not_resumed(tmp_path: Path) -> None:
    old, middle, new = versions(tmp_path)
    delta, target = tmp_path / "weight_v000001", tmp_path / "served"
    reshard.delta(old, middle, delta)
    point = Point(APPEND, "after", 3)
    options = {"max_memory": "64MiB", "workers": 1}
    assert run_call_killed(point, "apply", str(old), [str(delta)], str(target), **options) == -9
    for file in delta.iterdir():
        file.unlink()
    delta.rmdir()
    reshard.delta(old, new, delta)
    with pytest.raises(reshard.ResumeError, match="the source changed since"):
        reshard.apply(old, [delta], target, **options)
    reshard.apply(old, [delta], target, restart=True, **options)
    assert stored(target) == V2
