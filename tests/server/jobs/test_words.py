"""Reports during and after a conversion: the rate, and paths in the client's own words."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from reshard_server.schemas.conversion import (
    OneTarget,
    SeveralTargets,
    TargetRequest,
)
from reshard_server.worker.convert import ProgressThrottle
from reshard_server.worker.wording import HIDDEN, RootNames, Wording

from reshard.engine.progress import Progress
from reshard.storage.local.store import LOCAL
from reshard.storage.location import Location, locate

REQUEST = OneTarget(source="data/a", target="scratch/b")


def progress(moved: int, resumed: int = 0, **more: Any) -> Progress:
    return Progress(moved, 100, moved // 10, 10, "w" * 900, resumed_bytes=resumed, **more)


class Clock:
    """Goes on by a second each time it is read."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_the_rate_leaves_out_what_an_earlier_attempt_moved() -> None:
    told: list[dict[str, Any]] = []
    pace = ProgressThrottle(told.append, Clock())
    pace(progress(60, 60))
    pace(progress(70, 60))
    assert told[0]["bytes_per_second"] is None
    assert told[0]["seconds_left"] is None
    assert told[1]["bytes_per_second"] == 10
    assert told[1]["seconds_left"] == 3
    assert told[1]["resumed_bytes"] == 60
    assert len(told[1]["tensor"]) == 450


def test_it_tells_at_most_twice_a_second_and_every_new_stage() -> None:
    told: list[dict[str, Any]] = []
    times = iter([0.0, 0.1, 0.2, 0.6, 0.7])
    pace = ProgressThrottle(told.append, lambda: next(times))
    for moved in (10, 20, 30, 40):
        pace(progress(moved))
    pace(progress(100, stage="syncing"))
    assert [(t["moved_bytes"], t["stage"]) for t in told] == [
        (10, "copying"),
        (40, "copying"),
        (100, "syncing"),
    ]


def test_folders_of_this_machine_are_named_as_clients_know_them(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    roots = {"data": locate(tmp_path / "link"), "deep": locate(tmp_path / "real" / "x")}
    wording = Wording.of(roots, REQUEST)
    text = f"{tmp_path}/link/a and '{tmp_path}/real/b' and {tmp_path}/real/x/c"
    assert wording.text(text) == "data/a and 'data/b' and data/x/c"  # nobody learns of "deep"
    deeper = REQUEST.model_copy(update={"target": "deep/y"})
    assert Wording.of(roots, deeper).text(text) == "data/a and 'data/b' and deep/c"
    problem = wording.problem({"detail": f"no {tmp_path}/link/a", "status": 422})
    assert problem == {"detail": "no data/a", "status": 422}


def test_reports_name_what_was_asked_for() -> None:
    request = SeveralTargets(
        source="data/a", targets=(TargetRequest(target="x/b"), TargetRequest(target="x/c"))
    )
    wording = Wording.of({}, request)
    reports = [{"source": "/s", "target": "/t", "warnings": ["w"], "seconds": 1}] * 2
    assert [(r["source"], r["target"], r["seconds"]) for r in wording.reports(reports)] == [
        ("data/a", "x/b", 1),
        ("data/a", "x/c", 1),
    ]


def test_a_root_is_named_wherever_its_folder_is_said(tmp_path: Path) -> None:
    names = RootNames.of({"data": locate(tmp_path), "inner": locate(tmp_path / "run")})
    for said, told in (
        (f"{tmp_path}/a is gone", "data/a is gone"),
        (f"cannot make '{tmp_path}'; look", "cannot make 'data'; look"),
        (f"{tmp_path}", "data"),
        (f"at {tmp_path}.", "at data."),
        (f"{tmp_path}/run/7", "inner/7"),
        (f"{tmp_path}/runs/7", "data/runs/7"),
        (f"{tmp_path}base/x is gone", f"{HIDDEN} is gone"),
        (f"/mnt{tmp_path}/x", f"/mnt{HIDDEN}"),
        (f"file://{tmp_path}/a", "file://data/a"),
        ("params/data", "params/data"),
    ):
        assert names.text(said) == told


ODD = '/srv/it\'s "odd" \\ %2f ü\n[x]'


@pytest.mark.parametrize(
    "spelled",
    [
        ODD + "/a",
        repr(ODD + "/a"),
        repr(ODD + "/a").replace("ü", r"\xc3\xbc"),
        repr(ODD + "/a").replace("ü", r"\303\274"),
        ascii(ODD + "/a"),
        json.dumps(ODD + "/a"),
        json.dumps(ODD + "/a", ensure_ascii=False),
        "file://" + quote(ODD + "/a"),
        "file://" + quote(ODD + "/a", safe="/'!()[]"),
        html.escape(ODD + "/a"),
        f"{Path(ODD) / 'a'}",
    ],
)
def test_a_folder_is_known_however_it_is_written(spelled: str) -> None:
    for names, told in (
        (RootNames.of({"data": Location(LOCAL, ODD)}), "data/a"),
        (RootNames.of({"data": Location(LOCAL, ODD)}).only("other/a"), HIDDEN),
    ):
        found = names.text(f"cannot open {spelled}: no")
        assert "odd" not in found and "srv" not in found
        assert told in found and found.startswith("cannot open ")


def test_other_roots_have_no_names(tmp_path: Path) -> None:
    roots = {
        "data": locate(tmp_path / "data"),
        "secret": locate(tmp_path / "data" / "inner"),
        "far": locate(tmp_path / "f"),
    }
    names = RootNames.of(roots, tmp_path / "state").only("data/a")
    text = f"{tmp_path}/data/inner/x, {tmp_path}/f/y and {tmp_path}/state/z; {tmp_path}/data2"
    assert names.text(text) == f"data/inner/x, {HIDDEN} and {HIDDEN}; {HIDDEN}"


def test_a_problems_members_are_told_alike(tmp_path: Path) -> None:
    place = f"{tmp_path}/a"
    given = {
        "detail": place,
        "remedy": place,
        "field": "/source",
        "errors": [{"detail": place, "n": 1}],
    }
    assert RootNames.of({"data": locate(tmp_path)}).problem(given) == {
        "detail": "data/a", "remedy": "data/a", "field": "/source", "errors": [{"detail": "data/a", "n": 1}],
    }  # fmt: skip


def test_an_answer_keeps_the_names_of_tensors(tmp_path: Path) -> None:
    names = RootNames.of({"data": locate(tmp_path)})
    place = f"{tmp_path}/a"
    found = names.answer(
        {"uri": place, "n": 1, "warnings": [place], "tensors": [{"name": place, "detail": place}]}
    )
    assert found == {
        "uri": "data/a", "n": 1, "warnings": ["data/a"], "tensors": [{"name": place, "detail": "data/a"}],
    }  # fmt: skip
