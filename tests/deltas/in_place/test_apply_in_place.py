"""``apply_in_place``: the folder becomes what ``apply`` makes, or stays as it was; what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

import reshard
from reshard.deltas.in_place import apply_in_place as steps
from reshard.storage.local.staging import held
from tests.checkpoint_files import files_of
from tests.delta_layout import stored, write_delta, write_full
from tests.deltas.in_place.versions import HIDDEN, INDEX, LIKE, V0, V1, V2, step, write_shards
from tests.fresh_process import run_fresh


def test_shards_become_the_last_version_and_other_files_stay(
    deltas: list[Path], tmp_path: Path
) -> None:
    base = write_shards(tmp_path / "base", V0)
    headers = {file.name: header(file) for file in base.glob("*.safetensors")}
    report = reshard.apply_in_place(base, deltas)
    assert stored(base) == V2
    assert {file.name: header(file) for file in base.glob("*.safetensors")} == headers
    assert sorted(files_of(base)) == ["config.json", *sorted(headers), INDEX]
    index = json.loads((base / INDEX).read_text())
    assert index["metadata"] == {"total_size": 5, "version": "000002"}
    assert index["more"] == 1
    assert (report.version, report.base_version) == ("000002", "000000")
    assert (report.changed_tensors, report.all_tensors) == (5, 6)
    assert report.changed_bytes == sum(a != b for n in V0 for a, b in zip(V0[n], V2[n], strict=True))  # fmt: skip
    assert report.written_bytes <= sum(map(len, V0.values()))
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def header(file: Path) -> bytes:
    data = file.read_bytes()
    return data[: 8 + int.from_bytes(data[:8], "little")]


def test_one_delta_after_the_other_and_the_same_again(deltas: list[Path], tmp_path: Path) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    reshard.apply_in_place(base, deltas[:1])
    assert stored(base) == V1
    with pytest.raises(reshard.PlanError, match="the version 000001 is given twice; give each version once, and none that the base has already"):  # fmt: skip
        reshard.apply_in_place(base, deltas)
    assert reshard.apply_in_place(base, deltas[1:]).base_version == "000001"
    assert stored(base) == V2
    before = times(base)
    again = reshard.apply_in_place(base, deltas[1:])
    assert (again.already_done, again.version, again.written_bytes) == (True, "000002", 0)
    assert times(base) == before
    with safe_open(base / "model.safetensors", "np") as opened:
        assert set(opened.keys()) == set(LIKE)


def times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def test_a_folder_that_only_says_that_it_is_the_version_is_found(
    deltas: list[Path], tmp_path: Path
) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    reshard.apply_in_place(base, deltas)
    other = {**V2, "c": bytes(len(V2["c"]))}
    shutil.copy(write_full(tmp_path / "other", other, LIKE) / "model.safetensors", base)
    with pytest.raises(reshard.VerificationError, match=r"tensor 'c'.*version 000001: its bytes"):
        reshard.apply_in_place(base, deltas)
    assert stored(base) == other


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    rates=st.lists(st.sampled_from((0.0, 0.00001, 0.01, 0.4, 1.0)), min_size=1, max_size=3),
    encoding=st.sampled_from(("xor", "overwrite")),
    checksum=st.sampled_from(("xxh3-128", "blake3", "adler32")),
)
def test_any_rate_gives_what_a_receiver_makes(
    rates: list[float], encoding: str, checksum: str, tmp_path: Path
) -> None:
    """Deltas with nothing but what the layout has, of a writer that shares no code."""
    work = tmp_path / "any"
    shutil.rmtree(work, ignore_errors=True)
    base, states = write_full(work / "base", V0, LIKE), [V0]
    for number, rate in enumerate(rates):
        states.append(step(states[-1], rate, number))
        write_delta(work, number + 1, states[-2], states[-1], encoding, checksum)
    report = reshard.apply_in_place(base, sorted(work.glob("weight_v*")), max_memory="64MiB")
    assert stored(base) == states[-1]
    assert "records no checksums of the tensors that it does not change" in report.warnings[0]


def test_records_fit_or_go(tmp_path: Path) -> None:
    values = {name: array for name, array in LIKE.items() if array.size}
    reshard.save(tmp_path / "run", values)
    base, new = tmp_path / "base", tmp_path / "new"
    reshard.convert(tmp_path / "run", base, to="safetensors", identity="compute")
    values["a"] = values["a"] ^ np.uint8(3)
    reshard.save(tmp_path / "next", values)
    reshard.convert(tmp_path / "next", new, to="safetensors")
    reshard.delta(base, new, tmp_path / "weight_v000001")
    report = reshard.apply_in_place(base, [tmp_path / "weight_v000001"])
    assert "identity.json" in report.removed
    assert not [name for name in files_of(base) if name.startswith("identity")]
    found = reshard.verify(base)
    assert not found.differences
    assert {verdict.status for verdict in found.tensors} == {"recorded"}
    assert not reshard.verify(base, new).differences


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "hard link": (
        lambda base: os.link(base / "model.safetensors", base.parent / "kept"),
        reshard.StorageError,
        r"has 2 names \(hard links\), and changing it in place would change it under all of them; copy the folder and give the copy",
    ),
    "symbolic link": (
        lambda base: (base / "model.safetensors").rename(base / "blob") and (base / "model.safetensors").symlink_to("blob"),
        reshard.StorageError,
        r"is a symbolic link, so that changing it in place may change what others read; copy the folder with its content \(cp -rL\)",
    ),
    "something of that name": (
        lambda base: (base / HIDDEN).write_text(""),
        reshard.StorageError,
        "should be a folder of reshard, but is something else; remove it, and run again",
    ),
    "weights that no change put there": (
        lambda base: (base / HIDDEN).mkdir() or (base / HIDDEN / "x.safetensors").write_text("x"),
        reshard.StorageError,
        "has x.safetensors, though no change in place is recorded there; move what you need out of that folder, remove it, and run again",
    ),
    "another base": (
        lambda base: shutil.copy(base.parent / "full/v1/model.safetensors", base),
        reshard.VerificationError,
        "so that the base is not the one that the delta was made of",
    ),
    "an unfinished conversion": (
        lambda base: interrupted_conversion(base),
        reshard.ResumeError,
        r"another run to '.*base' was interrupted, and what it did was kept; run it again to resume it, or remove what it left \(reshard clean",
    ),
}  # fmt: skip


def interrupted_conversion(base: Path) -> None:
    """What a conversion to the folder left, before the folder was there."""
    kept = base.rename(base.parent / "kept")
    run_fresh(_KILLED, str(base.parent / "full/v1"), str(base))
    kept.rename(base)


_KILLED = """
    import os, sys, reshard
    reshard.convert(*sys.argv[1:], progress=lambda now: now.moved_bytes and os._exit(0))
"""


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_changes_nothing(what: str, deltas: list[Path], tmp_path: Path) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    prepare, kind, text = REFUSED[what]
    prepare(base)
    before = files_of(base)
    with pytest.raises(kind, match=text):
        reshard.apply_in_place(base, deltas)
    assert files_of(base) == before


def test_other_places_are_refused(deltas: list[Path], tmp_path: Path) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    with pytest.raises(reshard.PlanError, match="is in a bucket, where no file can be changed in place; give a local folder, or name a target"):  # fmt: skip
        reshard.apply_in_place("gs://bucket/base", deltas)
    with pytest.raises(reshard.PlanError, match="is no folder, but what is changed in place is a local folder of safetensors files"):  # fmt: skip
        reshard.apply_in_place(base / "model.safetensors", deltas)
    with pytest.raises(reshard.PlanError, match="is not there, but what is changed in place"):
        reshard.apply_in_place(tmp_path / "nothing", deltas)
    with pytest.raises(reshard.StorageError, match=r"is inside the source|is the source itself"):
        reshard.apply_in_place(deltas[0], deltas)
    published = base.rename(tmp_path / "weight_v000000")
    with pytest.raises(reshard.PlanError, match="has the name of a published version, weight_v000000, which never changes"):  # fmt: skip
        reshard.apply_in_place(published, deltas)
    with pytest.raises(reshard.PlanError, match="expected a list with the folder of each delta"):
        reshard.apply_in_place(published, [])
    assert stored(published) == V0


def test_a_record_in_the_header_is_refused(deltas: list[Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    reshard.convert(tmp_path / "full/v0", base / "model.safetensors", to="safetensors")
    with pytest.raises(reshard.FormatError, match="records the digests of its tensors in its header, which would not fit any more; apply the deltas to a target"):  # fmt: skip
        reshard.apply_in_place(base, deltas)
    assert stored(base) == V0


def test_a_link_to_the_folder_is_followed(deltas: list[Path], tmp_path: Path) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    (tmp_path / "current").symlink_to("base")
    reshard.apply_in_place(tmp_path / "current", deltas)
    assert (tmp_path / "current").is_symlink()
    assert stored(base) == V2


def test_two_at_once_are_refused(deltas: list[Path], tmp_path: Path) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    with held(base), pytest.raises(reshard.TargetBusyError, match=r"is writing .*base' now"):
        reshard.apply_in_place(base, deltas)
    assert stored(base) == V0


def test_a_base_that_changes_while_it_is_read_is_left(
    deltas: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_full(tmp_path / "base", V0, LIKE)
    real = steps.write_plan

    def touched(*arguments: Any) -> None:
        real(*arguments)
        os.utime(base / "model.safetensors", ns=(5, 5))

    monkeypatch.setattr(steps, "write_plan", touched)
    with pytest.raises(reshard.SourceChangedError, match="changed while they were read; nothing was changed here; run again"):  # fmt: skip
        reshard.apply_in_place(base, deltas)
    assert files_of(base).keys() == {"model.safetensors"}
    assert stored(base) == V0


_FRESH = """
    import sys
    import reshard
    base, delta = sys.argv[1:]
    reshard.apply_in_place(base, [delta], max_memory="32MiB", workers=2)
"""


def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    old = {"large": rng.integers(0, 256, (24, 4 << 20), dtype=np.uint8)}
    for name in ("base", "new"):
        (tmp_path / name).mkdir()
        save_file(old, tmp_path / name / "model.safetensors")
        old["large"].reshape(-1)[::40] += 1
    reshard.delta(tmp_path / "base", tmp_path / "new", tmp_path / "weight_v000001")
    ended = run_fresh(_FRESH, str(tmp_path / "base"), str(tmp_path / "weight_v000001"))
    assert ended.peak_bytes < (32 + 128) << 20
    assert stored(tmp_path / "base") == stored(tmp_path / "new")
