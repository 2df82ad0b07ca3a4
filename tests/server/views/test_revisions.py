"""Revisions of views: each finished step under an id that means the same bytes, as long as its source is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.errors.problems import ProblemError
from reshard_server.views import recorded
from reshard_server.views.revisions import commit_of

import reshard
from tests.server.postgres import Postgres
from tests.server.served import Served
from tests.server.views.run import (
    FILE,
    MAP,
    caller,
    commit,
    file_of,
    listed,
    put,
    read,
    refused,
    revisions,
    save_step,
    views_of,
)

GONE = "is not there any more, since its source was removed or changed; take main"


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request looks at the source."""
    monkeypatch.setattr(recorded, "LOOK_SECONDS", -1.0)


def steps(served: Served, **query: Any) -> list[int | None]:
    return [one["step"] for one in revisions(served, **query)]


def test_main_is_the_newest_finished_step(served: Served, run: Path) -> None:
    put(served, step="latest", map=MAP, drop=["bias"])
    assert refused(listed(served)) == (
        404,
        "data/run has no finished checkpoint yet, so that the view 'v' has no revision; ask again later",
    )
    assert revisions(served) == []
    first = save_step(run, 9)
    old = commit(served)
    assert read(served) == file_of(first, map=MAP, drop=["bias"])
    second = save_step(run, 10)
    new = commit(served)
    assert new != old and read(served) == file_of(second, map=MAP, drop=["bias"])
    assert read(served, old) == file_of(first, map=MAP, drop=["bias"])
    [one] = revisions(served)
    assert (one["commit"], one["step"], one["is_open"]) == (new, 10, True)
    assert all(len(each) == 40 and set(each) <= set("0123456789abcdef") for each in (old, new))


def test_each_finished_step_is_a_revision(served: Served, run: Path) -> None:
    put(served, step="each")
    made = {step: save_step(run, step) for step in (1, 2, 3)}
    found = revisions(served)
    assert [one["step"] for one in found] == [3, 2, 1]
    assert steps(served, page_size=2) == [3, 2]
    assert steps(served, before=2) == [1]
    for one in found:
        assert read(served, one["commit"]) == file_of(made[one["step"]])
    assert commit(served) == found[0]["commit"]


def test_a_step_or_a_checkpoint_by_itself(served: Served, run: Path) -> None:
    made = save_step(run, 2)
    save_step(run, 3)
    put(served, step=2)
    put(served, "w", source="data/run/2")
    assert (steps(served), steps(served, name="w")) == ([2], [None])
    assert read(served) == read(served, name="w") == file_of(made)
    assert commit(served) != commit(served, name="w"), "an id has the view's name in it"
    put(served, step=7)
    assert refused(listed(served))[0] == 404
    put(served, "w", source="data/none")
    assert refused(listed(served, name="w"))[0] == 404


def test_an_item_of_each_step(served: Served, run: Path) -> None:
    for step in (1, 2):
        (run / str(step)).mkdir()
        made = save_step(run / str(step), step)
        made.rename(made.with_name("model"))
        (run / str(step) / "_CHECKPOINT_METADATA").write_text("{}")
    put(served, step="each", item="model")
    assert steps(served) == [2, 1]
    assert read(served) == file_of(run / "2" / "model")
    shutil.rmtree(run / "2" / "model")
    (run / "2" / "other").mkdir()
    assert steps(served) == [1], "a step without the item has no view"
    status, detail = refused(listed(served))
    assert status == 409 and "data/run/2 has no item that is a tree" in detail


def test_an_item_that_leads_out_of_the_root_is_as_if_it_were_not_there(served: Served, run: Path, tmp_path: Path) -> None:  # fmt: skip
    outside = save_step(tmp_path, 1)
    (run / "1").mkdir()
    (run / "1" / "_CHECKPOINT_METADATA").write_text("{}")
    (run / "1" / "model").symlink_to(outside)
    put(served, step="each", item="model")
    assert refused(listed(served))[0] in (404, 409)
    assert str(tmp_path) not in listed(served).text


def test_a_step_without_its_mark_is_never_shown(served: Served, run: Path) -> None:
    put(served, step="each")
    save_step(run, 1)
    for name in ("2.orbax-checkpoint-tmp-7", "3.partial_save"):
        save_step(run, 2).rename(run / name)
    (run / "4").mkdir()
    (run / "4" / "model-00001-of-00002.safetensors").write_bytes(b"begun")
    assert steps(served) == [1]


def test_a_step_that_is_removed_is_gone(served: Served, run: Path) -> None:
    put(served, step="latest")
    save_step(run, 1)
    first = save_step(run, 2)
    old = commit(served)
    assert read(served, old)
    shutil.rmtree(first)
    assert refused(listed(served, old)) == (410, f"the revision {old} of the view 'v' {GONE}")
    assert steps(served) == [1]
    assert read(served) == file_of(run / "1")


def test_a_step_that_is_written_again_is_another_revision(served: Served, run: Path) -> None:
    put(served, step="latest")
    before = save_step(run, 1)
    old, content = commit(served), read(served)
    shutil.rmtree(before)
    after = save_step(run, 1, number=5)
    assert refused(listed(served, old))[0] == 410
    new = commit(served)
    assert new != old and read(served, new) == file_of(after) != content


def test_bytes_of_two_states_are_never_mixed(served: Served, run: Path) -> None:
    """The file was found before its step was written again, and is read after."""
    put(served, step="latest")
    before = save_step(run, 1)
    views = views_of(served)
    found = served.portal.call(views.find, caller("ann"), "v")
    for file in sorted(before.rglob("*")):
        if file.is_file():
            file.write_bytes(file.read_bytes())
    arguments = (caller("ann"), found, FILE, 0, 10_000, 200, {})
    with pytest.raises(ProblemError) as changed:
        served.portal.call(views.send, *arguments)
    assert (changed.value.kind.status, changed.value.kind.slug) == (409, "source-changed")
    assert changed.value.detail.startswith(
        "data/run/1 was changed since the view of it was planned"
    )
    shutil.rmtree(run)
    with pytest.raises(ProblemError) as gone:
        served.portal.call(views.send, *arguments)
    assert (gone.value.kind.status, gone.value.detail) == (
        410,
        "data/run/1 is not there any more; what was planned of it cannot be read",
    )
    assert served.app.state.services.streams.open == 0


def test_ids_that_never_were_are_told_from_those_that_are_gone(served: Served, run: Path) -> None:
    put(served, step="latest")
    put(served, "w", step="latest")
    save_step(run, 1)
    other = commit(served, name="w")
    for never in ("0" * 40, other, "x", "main@1", commit(served)[:39], commit(served).upper()):
        status, detail = refused(listed(served, never))
        assert (status, detail) == (
            404,
            f"the view 'v' has no revision {never!r}; take main, or an id of /v1/views/v/revisions",
        )
    assert refused(listed(served, commit_of("v", "a" * 28)))[0] == 410


def test_ids_of_earlier_versions_answer(served: Served, run: Path) -> None:
    made = save_step(run, 1)
    put(served, step="latest")
    old = commit(served)
    put(served, step="latest", cast=[["float", "bfloat16"]])
    assert commit(served) != old
    assert read(served, old) == file_of(made)
    for number in range(recorded.MOST_VERSIONS - 2):
        put(served, step="latest", file_bytes=1000 + number)
    assert read(served, old) == file_of(made)
    put(served, step="latest", file_bytes=900)
    assert refused(listed(served, old))[0] == 410
    served.ask("DELETE", "/v1/views/v")
    assert refused(listed(served, old))[0] == 404


def test_another_server_knows_ids_without_a_record(
    serve: Callable[..., Served], postgres: Postgres, run: Path, tmp_path: Path
) -> None:
    made = save_step(run, 2)
    first = serve(database_url=postgres.new_database())
    put(first, step="latest")
    old = commit(first)
    for step in (1, 3):
        save_step(run, step)
    second = serve(
        database_url=first.app.state.services.settings.database_url, state=tmp_path / "second"
    )
    assert read(second, old) == file_of(made)


def test_rights_are_those_for_the_version_that_an_id_is_of(served: Served, run: Path, tmp_path: Path) -> None:  # fmt: skip
    secret = save_step(tmp_path / "other", 1, number=7)
    save_step(run, 1)
    put(served, who="bob", source="other/1")
    old = commit_as_bob(served)
    put(served, who="bob", step="latest")
    assert read(served, old, who="bob") == file_of(secret)
    assert refused(listed(served, old, who="ann"))[0] == 410
    with pytest.raises(ProblemError):
        read(served, old, who="ann")


def test_rights_hold_within_a_look_too(served: Served, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(recorded, "LOOK_SECONDS", 1000.0)
    save_step(tmp_path / "other", 1, number=7)
    save_step(run, 1)
    put(served, who="bob", source="other/1")
    old = commit_as_bob(served)
    put(served, who="bob", step="latest")
    assert read(served, old, who="bob") == read(served, old, who="bob")
    assert refused(listed(served, old, who="ann"))[0] == 410


def commit_as_bob(served: Served) -> str:
    found: str = listed(served, who="bob").json()["commit"]
    return found


def test_a_source_that_cannot_give_the_view(served: Served, run: Path) -> None:
    save_step(run, 1)
    for rules, said in (
        ({"step": 1, "map": {"map": [{"from": "none", "to": "w", "shape": "a -> a"}]}}, "none"),
        ({"step": 1, "to": "tensorflow"}, "hold checksums of all of their tensors"),
        ({"step": 1, "identity": "compute"}, "identity is 'compute', but of a view nothing is read before it is asked for"),
        ({}, "data/run is a training run's folder with step 1; choose one with step=N or step='latest', or name one of them: data/run/1"),
    ):  # fmt: skip
        assert put(served, **rules).status_code == 201
        status, detail = refused(listed(served))
        assert status == 409 and said in detail, detail
        assert listed(served).json()["type"] == "urn:reshard:problem:view"
    put(served, step=1, drop=["bias"])
    assert listed(served).status_code == 200, "what failed is not kept"


def test_the_setting_is_named_where_memory_is_short(
    serve: Callable[..., Served], run: Path
) -> None:
    small = serve(stream_memory=8 << 20)
    wide = np.zeros((1, 4 << 20), np.float32)
    reshard.save(run / "1", {"w": wide}, compression="blosc")
    put(small, step=1)
    status, detail = refused(listed(small))
    assert status == 409 and detail.endswith("(this server's setting stream_memory)"), detail
