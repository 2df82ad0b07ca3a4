"""Files of views are read by several clients at once: planned once, kept open, counted, and within the limits of a token."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.errors.problems import ProblemError
from reshard_server.views import recorded
from reshard_server.views.byte_stream import ByteStream
from reshard_server.views.catalogue import ServedView
from reshard_server.views.loads import SECONDS, Loads
from reshard_server.views.recorded import CheckpointView

import reshard
from tests.server.served import Served
from tests.server.views.run import (
    FILE,
    caller,
    commit,
    file_of,
    listed,
    put,
    read,
    revisions,
    save_step,
    views_of,
)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The source of each view that is planned, which takes a tenth of a second."""
    found: list[str] = []

    class Slow(CheckpointView):
        def __init__(self, *asked: Any) -> None:
            time.sleep(0.1)
            super().__init__(*asked)
            found.append(self.source)

    monkeypatch.setattr(recorded, "CheckpointView", Slow)
    yield found


def found(served: Served, revision: str = "main", who: str = "ann") -> ServedView:
    return served.portal.call(views_of(served).find, caller(who), "v", revision)


def stream(served: Served, view: ServedView, who: str = "ann", stop: int = 1 << 30) -> ByteStream:
    nbytes = min(stop, view.view.files[FILE].nbytes)
    views = views_of(served)
    return served.portal.call(views.send, caller(who), view, FILE, 0, nbytes, 206, {"ETag": "x"})


def loads(served: Served, who: str = "ann") -> list[tuple[str, int, bool]]:
    answer = served.ask("GET", "/v1/views/v/loads", who).json()["loads"]
    return [(one["token"], one["streams"], one["bytes_per_second"] > 0) for one in answer]


def test_clients_that_come_together_plan_once(served: Served, run: Path, planned: list[str]) -> None:  # fmt: skip
    save_step(run, 1)
    put(served, step="latest")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda who: listed(served, who=who), ["ann", "bob", "eve"] * 4))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1 and len(planned) == 1
    assert [one["is_open"] for one in revisions(served)] == [True]
    [file] = answers[0].json()["files"]
    assert (file["path"], file["nbytes"]) == (FILE, len(read(served)))
    assert len(planned) == 1


def test_clients_that_come_together_look_once(
    served: Served, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "LOOK_SECONDS", -1.0)
    save_step(run, 1)
    put(served, step="latest")
    looks: list[str] = []

    def look(serving: Any, who: Any, *more: Any) -> Any:
        looks.append(who.name)
        time.sleep(0.2)
        return recorded_found(serving, who, *more)

    recorded_found = recorded._found
    monkeypatch.setattr(recorded, "_found", look)

    async def together() -> None:
        asked = [views_of(served).revision(caller(who), "v") for who in ["ann", "bob"] * 8]
        await asyncio.gather(*asked)

    served.portal.call(together)
    assert sorted(looks) == ["ann", "bob"]
    served.portal.call(together)
    assert len(looks) == 4 and not views_of(served)._looks


def test_a_refusal_reaches_all_that_wait_and_is_not_kept(served: Served, run: Path) -> None:
    save_step(run, 1)
    put(served, step=1, select=["none"])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: listed(served), range(4)))
    assert {answer.status_code for answer in answers} == {409}
    assert len({answer.json()["detail"] for answer in answers}) == 1
    assert len(views_of(served).opened) == 0


def test_a_view_that_makes_room_is_closed_when_its_streams_have_ended(
    serve: Callable[..., Served], run: Path, tmp_path: Path, planned: list[str]
) -> None:
    served = serve(open_views=1)
    made = {step: save_step(run, step) for step in (1, 2)}
    put(served, step="each", config="data/model")
    (tmp_path / "data" / "model").mkdir()
    (tmp_path / "data" / "model" / "config.json").write_text('{"model_type": "none"}')
    new, old = (one["commit"] for one in revisions(served))
    held = found(served, old)
    running = stream(served, held)
    folder = Path(held.view._folder.name)
    assert folder.exists()
    del held
    commit(served, new)
    assert [len(views_of(served).opened), len(planned)] == [1, 2]
    assert folder.exists(), "a stream has it"
    options = {"config": tmp_path / "data" / "model"}
    assert b"".join(running.pieces) == file_of(made[1], **options)
    running.give_back()
    del running
    gc.collect()
    assert not folder.exists()
    assert read(served, old) == file_of(made[1], **options) and len(planned) == 3


def test_streams_of_a_token_are_limited(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(streams_per_token=1, streams=2)
    save_step(tmp_path / "data" / "run", 1)
    put(served, step="latest")
    view = found(served)
    running = stream(served, view)
    with pytest.raises(ProblemError) as refused:
        stream(served, view)
    assert refused.value.kind.status == 429
    assert refused.value.detail.startswith("1 streams are open by the token 'ann', the most that one token may have")  # fmt: skip
    other = stream(served, view, "bob")
    for each in (running, other):
        each.give_back()
    stream(served, view).give_back()
    assert served.app.state.services.streams.open == 0


def test_an_answer_has_its_status_and_headers(served: Served, run: Path) -> None:
    save_step(run, 1)
    put(served, step="latest")
    part = stream(served, found(served), stop=8)
    assert (part.status_code, part.headers["etag"]) == (206, "x")
    assert b"".join(part.pieces) == read(served)[:8]
    part.give_back()
    empty = stream(served, found(served), stop=0)
    assert list(empty.pieces) == []
    empty.give_back()


def test_who_reads_a_view_is_told(served: Served, run: Path) -> None:
    reshard.save(run / "1", {"w": np.arange(1 << 20, dtype=np.float32)})
    put(served, step="latest")
    assert loads(served) == []
    running = stream(served, found(served))
    first = next(running.pieces)
    assert loads(served, "root") == [("ann", 1, True)]
    assert loads(served, "eve") == [], "others are for admins"
    read(served, who="eve")
    assert loads(served, "root") == [("ann", 1, True), ("eve", 0, True)]
    assert loads(served, "eve") == [("eve", 0, True)]
    rest = b"".join(running.pieces)
    running.give_back()
    del running
    gc.collect()
    assert loads(served) == [("ann", 0, True)]
    value = served.app.state.services.metrics.registry.get_sample_value
    assert value("reshard_view_bytes_total") == 2 * (len(first) + len(rest))
    assert value("reshard_views_open") == 1


def test_a_rate_is_that_of_the_last_ten_seconds() -> None:
    now, counted = [0.0], [0]

    def count(nbytes: int) -> None:
        counted[0] += nbytes

    kept = Loads(count, lambda: now[0])
    view = ServedView("v", "c" * 40, None, 0.0)  # type: ignore[arg-type]
    pieces = kept.counted(view, "ann", iter([bytes(100)] * 40))
    for second in range(20):
        now[0] = float(second)
        next(pieces)
    assert kept.of("v") == [("ann", 1, 100.0)] and kept.of("w") == []
    now[0] += 4.5
    assert kept.of("v") == [("ann", 1, 60.0)]
    now[0] += SECONDS
    assert kept.of("v") == [("ann", 1, 0.0)]
    pieces.close()
    assert (kept.of("v"), counted) == ([], [2000])


def test_an_ending_server_begins_no_stream(served: Served, run: Path) -> None:
    save_step(run, 1)
    put(served, step="latest")
    view = found(served)
    served.portal.call(served.app.state.drain.started.set)
    with pytest.raises(ProblemError, match="this server is ending and accepts no new work"):
        stream(served, view)


@pytest.mark.parametrize("name", ["", "v@1", "a\0", "\ud800", "../v", "x" * 200, "v/"])
def test_names_that_no_view_has(served: Served, run: Path, name: str) -> None:
    save_step(run, 1)
    put(served, step="latest")
    with pytest.raises(ProblemError) as refused:
        served.portal.call(views_of(served).find, caller("ann"), name)
    assert refused.value.kind.status == 404


def test_names_are_those_of_views_that_the_caller_may_read(served: Served) -> None:
    for name, who, source in (("b", "ann", "data/x"), ("a", "ann", "data/y"), ("c", "bob", "other/x")):  # fmt: skip
        put(served, name, who, source=source)
    views = views_of(served)
    assert served.portal.call(views.names, caller("ann")) == ["a", "b"]
    assert served.portal.call(views.names, caller("bob")) == ["a", "b", "c"]
