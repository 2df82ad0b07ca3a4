"""Steps that a prefix names (``ckpt-7``) and those of torch's DCP (``step-7``): taken once finished, linked, published and removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.auth.local_root import REMOVED_PREFIX
from reshard_server.db.conversions import claims
from reshard_server.jobs.conversion_job import make_child_request
from reshard_server.schedules.hard_links import GoneError, link_step, links_for
from reshard_server.schedules.loop import run_now
from reshard_server.schedules.outputs import RECORDS, output_stamp
from reshard_server.worker.wording import Wording

import reshard
from reshard.storage.location import locate
from reshard.storage.targets import remove_finished
from tests.dcp_files import whole, write_dcp
from tests.server.claimed import claimed
from tests.server.schedules.bench import Bench

WEIGHTS = np.arange(60, dtype=np.float32).reshape(12, 5)
SHARDS = {"partitions": [{"match": "w", "fixed_shards": 2}]}
ENDINGS = [".data-00000-of-00002", ".data-00001-of-00002", ".index", ".slices.json"]
OF_TENSORFLOW: dict[str, Any] = {
    "when": {"directory": "data/run", "poll_seconds": 0.2, "step_prefix": "ckpt"}
}


@pytest.fixture
def run(bench: Bench) -> Path:
    folder = bench.data / "run"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("saved")
    reshard.save(made / "orbax", {"w": WEIGHTS})
    reshard.convert(made / "orbax", made / "ckpt", to="tensorflow", layout=SHARDS)
    return made / "ckpt"


def write(saved: Path, prefix: Path, *endings: str) -> None:
    """Files of a checkpoint, in the order in which they are named."""
    for ending in endings or ENDINGS:
        prefix.with_name(f"{prefix.name}{ending}").write_bytes(
            saved.with_name(f"ckpt{ending}").read_bytes()
        )


def remove(prefix: Path, *endings: str) -> None:
    for ending in endings or ENDINGS:
        prefix.with_name(f"{prefix.name}{ending}").unlink()


def go_on() -> bool:
    return False


def test_a_step_counts_once_its_index_is_there(bench: Bench, run: Path, saved: Path) -> None:
    bench.put(**OF_TENSORFLOW)
    for ending in ENDINGS[:2]:
        write(saved, run / "ckpt-7", ending)
        bench.tick()
        assert bench.told() == {}
    write(saved, run / "other-8")
    write(saved, run / "ckpt-7", ".index")
    bench.tick()
    bench.tick()
    assert bench.told() == {"7": "started"}
    found = bench.conversion("7")
    assert (found.request.source, found.request.labels["step"]) == ("data/run/ckpt-7", "7")


def test_a_step_of_torch_counts_once_its_metadata_is_there(bench: Bench, run: Path) -> None:
    when = {**OF_TENSORFLOW["when"], "step_prefix": "step"}
    bench.put(when=when)
    step = write_dcp(run / "step-20", {"w": whole(WEIGHTS)})
    metadata = (step / ".metadata").read_bytes()
    (step / ".metadata").unlink()
    bench.tick()
    assert bench.told() == {}
    (step / ".metadata").write_bytes(
        metadata
    )  # anew, so that the folder is not younger than all files
    bench.tick()
    assert bench.told() == {"20": "started"}
    assert bench.conversion("20").request.source == "data/run/step-20"
    (held,) = bench.held()
    assert reshard.is_checkpoint(held)


def test_a_deleted_step_is_read_from_its_links(bench: Bench, run: Path, saved: Path) -> None:
    bench.put(**OF_TENSORFLOW)
    write(saved, run / "ckpt-7")
    write(saved, run / "ckpt-70")
    bench.tick()
    remove(run / "ckpt-7")
    (held,) = [folder for folder in bench.held() if (folder / "ckpt-7.index").exists()]
    assert sorted(path.name for path in held.iterdir()) == [f"ckpt-7{e}" for e in ENDINGS]
    found = bench.conversion("7")
    request = make_child_request(bench.db, bench.one.settings, bench.one.roots, found, begun=False)
    assert request["source"] == f"{held}/ckpt-7"
    assert np.array_equal(reshard.restore(request["source"])["w"], WEIGHTS)
    wording = Wording.of(bench.one.settings.roots, found.request, held / "ckpt-7")
    assert wording.text(f"{held}/ckpt-7.index is wrong") == "data/run/ckpt-7.index is wrong"
    bench.end("7")
    bench.settle()
    assert held not in bench.held()


def test_a_step_by_its_number(bench: Bench, run: Path, saved: Path) -> None:
    bench.put(**{**OF_TENSORFLOW, "paused": True})
    write(saved, run / "ckpt-7")
    assert run_now(bench.one, bench.get(), 7, bench.now).outcome == "started"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (".index", "it was deleted before it could be read"),
        (".data-00001-of-00002", "some of its files were deleted while"),
    ],
)
def test_files_that_are_deleted_while_they_are_linked(
    gone: str, words: str, tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, link = tmp_path / "ckpt-7", os.link
    write(saved, prefix)
    at = links_for(locate(prefix), locate(tmp_path), "abc")
    assert at == tmp_path / ".reshard-held" / "abc" / "ckpt-7"

    def link_and_delete(source: Path, target: Path, *, follow_symlinks: bool) -> None:
        link(source, target, follow_symlinks=follow_symlinks)
        prefix.with_name(f"ckpt-7{gone}").unlink(missing_ok=True)

    monkeypatch.setattr(os, "link", link_and_delete)
    with pytest.raises(GoneError, match=words):
        link_step(prefix, at, requested=True, stopping=go_on)
    assert not at.parent.exists()


def test_a_link_among_the_files_is_not_linked(tmp_path: Path, saved: Path) -> None:
    prefix = tmp_path / "ckpt-7"
    write(saved, prefix)
    remove(prefix, ENDINGS[0])
    prefix.with_name(f"ckpt-7{ENDINGS[0]}").symlink_to(saved.with_name(f"ckpt{ENDINGS[0]}"))
    at = links_for(locate(prefix), locate(tmp_path), "abc")
    why = link_step(prefix, at, requested=True, stopping=go_on)
    assert why == f"ckpt-7{ENDINGS[0]} is neither a file nor a folder"
    assert not at.parent.exists()


def convert(bench: Bench, run: Path, saved: Path, *steps: int) -> None:
    """Each step, published as a prefix."""
    for step in steps:
        write(saved, run / f"ckpt-{step}")
        bench.tick()
        found = bench.conversion(str(step))
        target = bench.folder / found.request.model_dump()["target"]
        reshard.convert(run / f"ckpt-{step}", target, to="tensorflow")
        assert claims.finish(bench.db, claimed(bench.db, found.id), "succeeded")
        bench.settle()


def test_old_prefixes_are_removed(bench: Bench, run: Path, saved: Path) -> None:
    target = {"target": "data/out/ckpt-{step}", "to": "tensorflow"}
    bench.put(**OF_TENSORFLOW, targets=[target], keep=2)
    convert(bench, run, saved, 1, 2)
    write(saved, bench.data / "out" / "ckpt-10")  # somebody's
    write(saved, bench.data / "out" / "ckpt-1-best")
    convert(bench, run, saved, 3, 4)
    out = bench.data / "out"
    left = {path.name.partition(".")[0] for path in out.iterdir()}
    assert left == {"checkpoint", "ckpt-3", "ckpt-4", "ckpt-10", "ckpt-1-best"}
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_prefix_that_somebody_wrote_in_its_place_stays(
    bench: Bench, run: Path, saved: Path
) -> None:
    target = {"target": "data/out/ckpt-{step}", "to": "tensorflow"}
    bench.put(**OF_TENSORFLOW, targets=[target], keep=1)
    convert(bench, run, saved, 1)
    for file in list((bench.data / "out").iterdir()):
        file.unlink()
    write(saved, bench.data / "out" / "ckpt-1")
    convert(bench, run, saved, 2, 3)
    left = {path.name.partition(".")[0] for path in (bench.data / "out").iterdir()}
    assert left == {"checkpoint", "ckpt-1", "ckpt-3"}


def test_a_removal_that_was_interrupted_is_known(bench: Bench, saved: Path) -> None:
    prefix = bench.data / "ckpt-1"
    write(saved, prefix)
    known = output_stamp(locate(prefix))
    assert known is not None
    remove(prefix, ".index", ".data-00000-of-00002")
    assert output_stamp(locate(prefix)) == known
    aside = f"{REMOVED_PREFIX}1"
    assert not remove_finished(locate(prefix), "another", RECORDS, aside)
    assert remove_finished(locate(prefix), known, RECORDS, aside)
    assert not list(bench.data.iterdir())
    assert not remove_finished(locate(prefix), known, RECORDS, aside)
