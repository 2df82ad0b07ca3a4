"""Conversions as pages: seen by their owner, cancelled, tried again, forgotten; hostile names do no harm."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from reshard_server.db.conversions import claims, conversions
from reshard_server.pages.conversion_pages import MOST_TENSORS, PAGE_SIZE
from reshard_server.schemas.conversion import (
    OneTarget,
    SeveralTargets,
)

from tests.server.claimed import begun
from tests.server.pages.browser import Browser, at_once
from tests.server.pages.progress import PROGRESS
from tests.server.served import Served

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"


def report(tensors: int = 1, **members: Any) -> dict[str, Any]:
    tensor = {
        "source": "params/k", "target": "params/kernel", "shape": [64, 32], "source_dtype": "float32",
        "target_dtype": "bfloat16", "strategy": "whole", "nbytes": 4096, "source_digest": "00aa", "target_digest": "11bb",
        "proof": "written", "cast": {"overflows": 3, "nans": 0, "largest_relative_error": 0.004},
    }  # fmt: skip
    return {
        "command": "convert", "source": "data/a", "target": "data/b", "nbytes": 4096, "read_bytes": 8192,
        "moved_bytes": 8192, "written_bytes": 4096, "seconds": 1.5, "warnings": [], "resumed_bytes": 0,
        "already_done": False, "tensors": [{**tensor, **members}] * tensors,
    }  # fmt: skip


def test_one_that_waits(served: Served, ann: Browser) -> None:
    new = served.create(
        source="data/run/1", layout={"mesh": {"axes": ["x"], "shape": [8]}}, cast=[[".", "bfloat16"]], labels={"run": "7"}
    )  # fmt: skip
    page = ann.go(f"/conversions/{new}")
    assert page.headings[0] == (1, "Conversion to data/b")
    for words in (
        "queued",
        "data/b its own layout, mesh x=8 cast . to bfloat16",
        "Label run 7",
        "Attempts 0",
        new,
    ):
        assert words in page.text
    assert f'data-events="/v1/conversions/{new}/events"' in ann.answer.text
    assert f"/conversions/{new}/plan?target=0" in page.links
    assert {f.action for f in page.forms} == {"/sign-out", f"/conversions/{new}/cancel"}


def test_one_that_runs(served: Served, ann: Browser) -> None:
    new = served.create()
    claims.set_progress(served.db, begun(served.db, new), PROGRESS)
    page = ann.go(f"/conversions/{new}")
    for words in (
        "80 %", "Stage copying", "Moved 40.0 MiB of 50.0 MiB", "Done by an earlier attempt 10.0 MiB", "Tasks 4 of 5",
        "Rate 2.50 MiB/s", "Time left 3 min 20 s", "Tensor params/kernel", "Attempts 1",
    ):  # fmt: skip
        assert words in page.text, words
    assert (
        '<progress max="100" value="80" aria-label="Progress of the conversion">' in ann.answer.text
    )
    assert '<p id="status" role="status"></p>' in ann.answer.text
    row = ann.go("/conversions").text
    assert "data/b from data/a running 80 % 80 % 3 min 20 s left just now ann" in row
    row = ann.go("/conversions?state=running").text
    assert (
        "Target State Progress Rate Left Started data/b from data/a running 80 % 80 % 2.50 MiB/s 3 min 20 s just now"
        in row
    )


def test_one_that_succeeded(served: Served, ann: Browser) -> None:
    new = served.create()
    done = report(warnings=[])
    claims.finish(
        served.db,
        begun(served.db, new),
        "succeeded",
        result=[{**done, "warnings": ["a rule matched nothing"]}],
    )
    page = ann.go(f"/conversions/{new}")
    for words in (
        "succeeded", "Report of data/b", "a rule matched nothing", "Read 8.00 KiB", "Written 4.00 KiB", "Time 1.5 s",
        "params/kernel was params/k 64×32 float32 → bfloat16 4.00 KiB whole 00aa 11bb written overflows 3, NaN 0",
    ):  # fmt: skip
        assert words in page.text, words
    assert "data-events" not in ann.answer.text
    assert {f.action for f in page.forms} == {"/sign-out", f"/conversions/{new}/delete"}
    assert "Time left" not in page.text and "<progress" not in ann.answer.text
    assert [text for _, text in page.headings][1] == "Outcome"
    assert "Outcome 1 tensor, 4.00 KiB , are in data/b , after 0.0 s." in at_once(page.text)
    assert "/checkpoint?path=data/b" in page.links
    assert f"/new-conversion?again={new}" in page.links


def test_one_whose_target_was_finished_before(served: Served, ann: Browser) -> None:
    new = served.create()
    unknown = dict.fromkeys(
        ("source", "source_dtype", "strategy", "source_digest", "proof", "cast"), None
    )
    result = {**report(**unknown), "already_done": True}
    claims.finish(served.db, begun(served.db, new), "succeeded", result=[result])
    page = ann.go(f"/conversions/{new}")
    for words in (
        "1 tensor, 4.00 KiB , were already in data/b",
        "so nothing was written. The table lists the tensors that it records.",
        "params/kernel 64×32 bfloat16 4.00 KiB – – 11bb –",
    ):
        assert words in page.text, words
    assert "None" not in page.text


def test_a_long_report_is_cut(served: Served, ann: Browser) -> None:
    new = served.create()
    claims.finish(served.db, begun(served.db, new), "succeeded", result=[report(MOST_TENSORS + 2)])
    page = ann.go(f"/conversions/{new}")
    assert (
        f"The first {MOST_TENSORS} of {MOST_TENSORS + 2} tensors; the API's answer has all."
        in page.text
    )
    assert f"/v1/conversions/{new}" in page.links


def test_one_that_failed(served: Served, ann: Browser) -> None:
    new = served.create()
    error = {
        "title": "The storage failed",
        "detail": "no space; free some",
        "remedy": "free some",
        "status": 422,
    }
    claims.finish(served.db, begun(served.db, new), "failed", error=error)
    page = ann.go(f"/conversions/{new}")
    assert "The storage failed no space What to do: free some" in page.text
    page = ann.submit(f"/conversions/{new}/retry")
    assert (ann.path, ann.status) == (f"/conversions/{new}", 200)
    assert "queued" in page.text
    assert served.wakes == 2


def test_cancelled_and_deleted(served: Served, ann: Browser) -> None:
    new = served.create()
    ann.go(f"/conversions/{new}")
    assert "Finished work is kept beside the target; a retry resumes it." in ann.text
    page = ann.submit(f"/conversions/{new}/cancel")
    assert "cancelled" in page.text
    page = ann.submit(f"/conversions/{new}/delete")
    assert (ann.path, ann.status) == ("/conversions", 200)
    assert "There are no conversions yet. Start one" in page.text
    assert conversions.get(served.db, new) is None


def test_what_the_state_does_not_allow_is_said(served: Served, ann: Browser) -> None:
    new = served.create()
    ann.go(f"/conversions/{new}")
    claims.finish(served.db, begun(served.db, new), "succeeded", result=[report()])
    page = ann.submit(f"/conversions/{new}/cancel")
    assert ann.status == 409
    assert f"conversion {new} has succeeded already; there is nothing to cancel" in page.text


def test_several_targets(served: Served, ann: Browser) -> None:
    targets = [{"target": "data/b", "layout": "serving"}, {"target": "data/c", "mesh": "x=2"}]
    request = SeveralTargets.model_validate({"source": "data/a", "targets": targets})
    new = conversions.create(served.db, token="ann", request=request).id
    page = ann.go(f"/conversions/{new}")
    assert "Target 1 data/b layout serving Plan of target 1" in page.text
    assert "Target 2 data/c mesh x=2 Plan of target 2" in page.text
    assert "2 targets data/b and others from data/a queued" in ann.go("/conversions").text
    both = [report(), report()]
    claims.finish(served.db, begun(served.db, new), "succeeded", result=both, read_bytes=4096)
    read = "Read 4.00 KiB of the source's files, for all targets"
    page = ann.go(f"/conversions/{new}")
    assert read in page.text and page.headings[0] == (1, "Conversion to 2 targets")
    assert f"/new-conversion?again={new}&number=1" in page.links


def test_listed_by_state_and_in_pages(served: Served, ann: Browser) -> None:
    for number in range(PAGE_SIZE + 1):
        served.create(target=f"data/t{number}")
    ann.go("/conversions")
    assert "data/t30" in ann.text and " data/t0 " not in ann.text
    (older,) = [link for link in ann.page.links if "page_token" in link]
    page = ann.go(older)
    assert " data/t0 " in page.text and "data/t30" not in page.text
    assert "/conversions" in page.links
    page = ann.go("/conversions?state=succeeded")
    assert "There are no succeeded conversions." in page.text
    assert "<option selected>succeeded</option>" in ann.answer.text
    assert ann.go("/conversions?state=").headings[0] == (1, "Conversions")
    assert "page_token was not made by this server" in ann.go("/conversions?page_token=x").text
    assert ann.status == 422


def test_others_conversions_are_not_there(
    served: Served, ann: Browser, signed_in: Callable[[str], Browser]
) -> None:
    new = served.create("bob")
    for path in (f"/conversions/{new}", f"/conversions/{new}/plan"):
        ann.go(path)
        assert ann.status == 404
        assert "that this token may see" in ann.text
    assert "data/b" not in ann.go("/conversions").text
    root = signed_in("root")
    assert "bob" in root.go("/conversions").text
    assert root.go(f"/conversions/{new}").headings[0][1] == "Conversion to data/b"


def test_who_may_only_read_is_offered_no_change_and_refused_one(
    served: Served, signed_in: Callable[[str], Browser]
) -> None:
    eve = signed_in("eve")
    new = conversions.create(
        served.db, token="eve", request=OneTarget(source="data/a", target="data/b")
    ).id
    for path in (
        "/",
        "/conversions",
        f"/conversions/{new}",
        "/schedules",
        "/checkpoints?root=data",
    ):
        page = eve.go(path)
        assert eve.status == 200
        assert {f.action for f in page.forms if f.method == "post"} == {"/sign-out"}
        assert not [link for link in page.links if link.startswith("/new-")]
    key = eve.page.form("/sign-out").fields["form_key"]
    for path in (
        f"/conversions/{new}/cancel",
        f"/conversions/{new}/delete",
        "/new-conversion",
        "/schedules/s/run",
    ):
        answer = eve.send("POST", path, data={"form_key": key}, headers={"Origin": "http://test"})
        assert answer.status_code == 403, path
        assert "lacks the scope &#39;convert&#39;" in answer.text
    assert eve.send("GET", "/new-conversion").status_code == 403
    assert eve.send("GET", "/new-schedule").status_code == 403


def test_hostile_names_are_text(served: Served, ann: Browser) -> None:
    path = "data/" + HOSTILE.replace("/", "_")
    request = OneTarget.model_validate(
        {"source": path, "target": path, "labels": {HOSTILE: HOSTILE}, "select": [HOSTILE], "cast": [[HOSTILE, HOSTILE]], "mesh": HOSTILE}
    )  # fmt: skip
    one, two = (conversions.create(served.db, token="ann", request=request).id for _ in range(2))
    bad = report(
        target=HOSTILE, source=HOSTILE, strategy=HOSTILE, proof=HOSTILE, source_digest=HOSTILE
    )
    claim = begun(served.db, one)
    claims.set_progress(
        served.db, claim, PROGRESS.model_copy(update={"stage": HOSTILE, "tensor": HOSTILE})
    )
    assert "&lt;script&gt;" in ann.send("GET", f"/conversions/{one}").text
    claims.finish(
        served.db, claim, "succeeded", result=[{**bad, "warnings": [HOSTILE], "target": HOSTILE}]
    )
    error = {"title": HOSTILE, "detail": HOSTILE, "remedy": HOSTILE}
    claims.finish(served.db, begun(served.db, two), "failed", error=error)
    rules = [{"match": "<img>|<script>alert", "axes": ["x"]}]
    layout = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": rules}
    assert served.ask("PUT", "/v1/layouts/hostile", json={"layout": layout}).status_code == 201
    for page in (
        f"/conversions/{one}", f"/conversions/{two}", "/", "/conversions", f"/conversions/{one}/plan",
        f"/new-conversion?source={HOSTILE}", f"/checkpoints?root={HOSTILE}", f"/sign-in?after={HOSTILE}", f"/{HOSTILE}",
        f"/conversions/{HOSTILE}", f"/conversions?state={HOSTILE}", f"/schedules/{HOSTILE}",
        f"/conversions?label={HOSTILE}&source={HOSTILE}", "/conversions?state=failed", f"/checkpoint?path={HOSTILE}",
        f"/layouts/{HOSTILE}", f"/layouts/hostile/preview?checkpoint={HOSTILE}", "/layouts/hostile",
        f"/new-conversion?again={one}", f"/new-conversion?layout={HOSTILE}",
    ):  # fmt: skip
        text = ann.send("GET", page).text
        assert "<script>alert" not in text and "<img" not in text, page
        ann.answer.__init__(200, text=text)
        assert not [t for t in ann.page.links if "alert" in t and "onerror" in t and t[0] != "/"]
    data = {"id": HOSTILE, "form_key": ann.go("/").form("/sign-out").fields["form_key"]}
    answer = ann.send("POST", "/conversions/cancel", data=data, headers={"Origin": "http://test"})
    assert answer.status_code == 200 and "<script>alert" not in answer.text


def test_the_overview(served: Served, ann: Browser, signed_in: Callable[[str], Browser]) -> None:
    running, _, failed = (served.create(target=f"data/t{n}") for n in range(3))
    served.create("bob", target="data/of-bob")
    claims.set_progress(served.db, begun(served.db, running), PROGRESS)
    claims.finish(
        served.db, begun(served.db, failed), "failed", error={"title": "t", "detail": "d"}
    )
    hour = (datetime.now(UTC).hour + 12) % 24  # not within this minute
    body = {
        "when": {"cron": f"0 {hour} * * *", "source": "data/a"},
        "targets": [{"target": "data/o/{time}"}],
    }
    assert served.ask("PUT", "/v1/schedules/nightly", json=body).status_code == 201
    page = ann.go("/")
    for words in (
        "1 running",
        "1 queued",
        "0 succeeded",
        "1 failed",
        "nightly , next in ",
        "Version",
    ):
        assert words in page.text, words
    assert [text for _, text in page.headings] == [
        "Overview", "Running", "Waiting", "Ended last", "Schedules", "This server"
    ]  # fmt: skip
    assert "of-bob" not in page.text
    assert "2 queued" in signed_in("root").go("/").text


@pytest.mark.parametrize("path", ["/conversions/{id}:cancel", "/conversions/{id}/nothing"])
def test_what_is_no_page(served: Served, ann: Browser, path: str) -> None:
    ann.go(path.format(id=served.create()))
    assert ann.status in (404, 405)


DELTA = {
    "old": "data/published/weight_v000001",
    "new": "data/run/2",
    "target": "data/published/weight_v000002",
}
DELTA_REPORT = {
    "command": "delta", **DELTA, "version": "000002", "base_version": "000001", "encoding": "xor", "checksum": "xxh3-128",
    "all_tensors": 3, "total_bytes": 1 << 20, "stored_bytes": 2048, "base_digest": "aa11", "target_digest": "bb22", "seconds": 1.5,
    "base_identity": "", "target_identity": "", "warnings": ["say this"], "tensors": [
        {"name": HOSTILE, "dtype": "bfloat16", "shape": [64, 32], "nbytes": 4096, "elements": 2048, "changed": 2, "stored_bytes": 96,
         "file": "model-00000-of-00001.safetensors"},
    ],
}  # fmt: skip


def test_a_delta_waits_and_ends(served: Served, ann: Browser) -> None:
    made = served.ask("POST", "/v1/deltas", json={**DELTA, "or_full": True}).json()
    page = ann.go(f"/conversions/{made['id']}")
    assert page.headings[0] == (1, "Delta to data/published/weight_v000002")
    assert not [link for link in page.links if link.endswith("/plan?target=0")]
    claims.finish(served.db, begun(served.db, made["id"]), "succeeded", result=[DELTA_REPORT])
    page = ann.go(f"/conversions/{made['id']}")
    for words in (
        "1 of 3 tensors changed, 2.00 KiB for 1.00 MiB", "which stands on the version 000001", "2 of 2,048", "0.0977 %", "say this", HOSTILE,
    ):  # fmt: skip
        assert words in page.text
    assert "/versions?path=data/published/weight_v000002" in page.links
    assert "<script>" not in page.html
    assert not [link for link in page.links if "new-conversion?again" in link]
    assert "Delete the record" in page.text
    listed = ann.go("/conversions").text
    assert "from data/run/2" in listed
    assert (
        served.ask("GET", f"/v1/conversions/{made['id']}/events").text.count('"tensor_count": 1')
        == 1
    )


def test_a_delta_shows_the_checksum_that_it_gets(served: Served, ann: Browser) -> None:
    named = {**DELTA, "target": "data/published/v7", "receiver": "modelexpress", "base_version": "v6"}  # fmt: skip
    for request, shown in ((DELTA, "xor, xxh3-128"), (named, "xor, adler32"), ({**DELTA, "checksum": "blake3"}, "xor, blake3")):  # fmt: skip
        made = served.ask("POST", "/v1/deltas", json=request).json()
        assert f"Payloads {shown} " in ann.go(f"/conversions/{made['id']}").text


def test_a_delta_has_no_plan(served: Served, ann: Browser) -> None:
    made = served.ask("POST", "/v1/deltas", json=DELTA).json()
    page = ann.go(f"/conversions/{made['id']}/plan")
    assert (
        f"there is no plan of the conversion {made['id']}, which makes or applies deltas, or merges checkpoints; see its page"
        in page.text
    )


def test_deltas_over_a_source_are_shown(served: Served, ann: Browser) -> None:
    new = served.create(deltas=["data/published/weight_v000002"])
    page = ann.go(f"/conversions/{new}")
    assert "with 1 delta over it: data/published/weight_v000002" in page.text


def test_a_merge_is_shown_and_not_asked_for_again(served: Served, ann: Browser) -> None:
    new = served.create(merge={"others": ["data/c"]})
    page = ann.go(f"/conversions/{new}")
    assert "merged with 1 other checkpoint" in page.text
    assert "Convert again" not in page.text
    page = ann.go(f"/new-conversion?again={new}")
    assert f"{new} merges checkpoints, which this form cannot ask for" in page.text
