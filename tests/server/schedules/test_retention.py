"""The last outputs are kept, and nothing is removed but older outputs of the same schedule."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reshard_server.db.schedules import outputs as schedule_outputs
from reshard_server.schedules.outputs import output_stamp

from reshard.storage.local import transaction
from reshard.storage.location import locate
from tests.server.schedules.bench import Bench, write_output, write_step


@pytest.fixture
def run(bench: Bench) -> Path:
    folder = bench.data / "run"
    folder.mkdir()
    return folder


def convert(bench: Bench, run: Path, *steps: int) -> None:
    for step in steps:
        write_step(run, step)
        bench.tick()
        bench.end(str(step))
        bench.settle()


def outputs(bench: Bench, folder: str = "out") -> list[str]:
    """All entries, hidden or not."""
    return sorted(p.name for p in (bench.data / folder).iterdir())


def test_the_oldest_steps_are_removed(bench: Bench, run: Path) -> None:
    bench.put(keep=2)
    convert(bench, run, 1, 2)
    assert outputs(bench) == ["1", "2"]
    convert(bench, run, 3, 10)
    assert outputs(bench) == ["10", "3"]


def test_by_step_and_not_by_time(bench: Bench, run: Path) -> None:
    bench.put(keep=1)
    convert(bench, run, 5, 4)
    assert outputs(bench) == ["5"]


def test_each_target_by_itself(bench: Bench, run: Path) -> None:
    targets = [{"target": "data/a/{step}"}, {"target": "data/b/{step}"}]
    bench.put(keep=1, targets=targets)
    convert(bench, run, 1, 2)
    assert (outputs(bench, "a"), outputs(bench, "b")) == (["2"], ["2"])


def test_files_are_removed_too(bench: Bench, run: Path) -> None:
    """But not one that somebody changed."""
    bench.put(keep=1, targets=[{"target": "data/out/{step}.weights.h5", "to": "keras"}])
    convert(bench, run, 1)
    (bench.data / "out" / "1.weights.h5").write_text("somebody's, in its place")
    convert(bench, run, 2, 3)
    assert outputs(bench) == ["1.weights.h5", "3.weights.h5"]


def test_without_keep_all_stay(bench: Bench, run: Path) -> None:
    bench.put()
    convert(bench, run, 1, 2, 3)
    assert outputs(bench) == ["1", "2", "3"]


def test_only_what_this_schedule_made(bench: Bench, run: Path) -> None:
    write_output(bench.data / "out" / "0", "somebody's")
    bench.put(keep=1)
    convert(bench, run, 1)
    shutil.rmtree(bench.data / "out" / "1")
    write_output(bench.data / "out" / "1", "somebody's, in its place")
    convert(bench, run, 2, 3)
    assert outputs(bench) == ["0", "1", "3"]


def test_only_what_succeeded(bench: Bench, run: Path) -> None:
    bench.put(keep=1)
    write_step(run, 1)
    bench.tick()
    write_output(bench.data / "out" / "1", "was there before")
    bench.end("1", "failed")
    bench.settle()
    convert(bench, run, 2, 3)
    assert outputs(bench) == ["1", "3"]


def test_an_output_that_somebody_removed_does_not_count(bench: Bench, run: Path) -> None:
    bench.put(keep=2)
    convert(bench, run, 1, 2, 3)
    shutil.rmtree(bench.data / "out" / "3")
    convert(bench, run, 4)
    assert outputs(bench) == ["2", "4"]


def test_one_target_that_is_replaced_stays(bench: Bench, run: Path) -> None:
    bench.put(keep=1, targets=[{"target": "data/out/newest", "overwrite": True}])
    convert(bench, run, 1, 2, 3)
    assert outputs(bench) == ["newest"]


def test_outputs_of_another_template_stay(bench: Bench, run: Path) -> None:
    bench.put(keep=1)
    convert(bench, run, 1)
    bench.put(keep=1, targets=[{"target": "data/out/new-{step}"}])
    convert(bench, run, 2, 3)
    assert outputs(bench) == ["1", "new-3"]


def test_outputs_of_the_clock_and_of_steps_are_not_compared(bench: Bench, run: Path) -> None:
    targets = [{"target": "data/out/{time}"}]
    bench.put(keep=1, targets=targets)
    convert(bench, run, 1)
    [first] = outputs(bench)
    clock = {"cron": "* * * * *", "source": "data/run"}
    bench.put(keep=1, targets=targets, when=clock, now=bench.now)
    for _ in range(2):
        bench.now += 60
        bench.tick()
        bench.end(bench.runs()[-1].key)
        bench.settle()
    assert len(outputs(bench)) == 2
    assert first in outputs(bench)


@pytest.mark.parametrize("where", ["before the rename", "behind the rename", "half removed"])
def test_a_removal_is_finished_by_the_next_server(
    bench: Bench, run: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(keep=1)
    convert(bench, run, 1)

    def die(folder: Path) -> None:
        if where == "before the rename":
            raise KeyboardInterrupt
        if folder.exists():
            if where == "half removed":
                (folder / "chunk").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "remove_tree", die)
        with pytest.raises(KeyboardInterrupt):
            convert(bench, run, 2)
    left = outputs(bench)
    assert len(left) == 2
    assert (left == ["1", "2"]) == (where == "before the rename")
    assert [o.target for o in schedule_outputs.being_removed(bench.db)] == ["data/out/1"]
    bench.settle(bench.process("next"))
    assert outputs(bench) == ["2"]
    assert schedule_outputs.being_removed(bench.db) == []


def test_what_took_its_place_at_the_last_moment_stays(
    bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(keep=1)
    convert(bench, run, 1)
    rename = Path.rename

    def replace_and_rename(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        shutil.rmtree(path)
        write_output(path, "new")
        return rename(path, target)

    write_step(run, 2)
    bench.tick()
    bench.end("2")
    monkeypatch.setattr(Path, "rename", replace_and_rename)
    bench.settle()
    assert outputs(bench) == ["1", "2"]
    assert (bench.data / "out" / "1" / "slices.json").read_text() == "new"


def test_not_without_the_right_to_write(bench: Bench, run: Path) -> None:
    bench.put(keep=1)
    convert(bench, run, 1)
    write_step(run, 2)
    bench.tick()
    bench.end("2")
    bench.settle(bench.without_tokens(ann={"write": frozenset({"other"})}))
    assert outputs(bench) == ["1", "2"]


def test_real_outputs_are_known_by_their_record(tmp_path: Path) -> None:
    import numpy as np

    import reshard

    reshard.save(tmp_path / "a", {"w": np.arange(64.0)})
    reshard.convert(tmp_path / "a", tmp_path / "b")
    first = output_stamp(locate(tmp_path / "b"))
    assert first is not None
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    assert output_stamp(locate(tmp_path / "c")) != first
    reshard.convert(tmp_path / "a", tmp_path / "b", cast=[(".", "float32")], overwrite=True)
    assert output_stamp(locate(tmp_path / "b")) not in (None, first)
