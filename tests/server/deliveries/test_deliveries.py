"""Deliveries: the end of each conversion is posted to its URLs, signed, until it is received. A slow receiver delays no other."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db import deliveries
from reshard_server.db.clock import clock_of
from reshard_server.db.conversions import claims, conversions, rows
from reshard_server.db.deliveries import MOST_OF_A_CONVERSION, Tried
from reshard_server.db.tables import DELIVERIES
from reshard_server.deliveries import post
from reshard_server.schemas.conversion import OneTarget

from tests.server.claimed import begun
from tests.server.deliveries.receiver import Receiver, receiving, recently, secrets_file
from tests.server.pages.browser import Browser
from tests.server.served import Served
from tests.server.waiting import until

URL = "/v1/conversions"
LOOPBACK = ["127.0.0.0/8"]
RESULT: dict[str, Any] = {
    "command": "convert", "target": "data/b", "moved_bytes": 7, "nbytes": 7, "warnings": [], "tensors": [{"target": "w"}] * 3,
    "read_bytes": 7, "written_bytes": 7, "seconds": 1.0, "resumed_bytes": 0, "already_done": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(post, "TRY_SECONDS", 2.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def telling(serve: Callable[..., Served], tmp_path: Path) -> Served:
    """An application that may notify receivers on loopback, and ends before the receiver."""
    return serve(
        notify_secrets_file=secrets_file(tmp_path),
        notify_private=LOOPBACK,
        public_url="https://reshard.example",
    )


def ended(served: Served, *urls: str, **members: Any) -> str:
    """A conversion that has succeeded and notifies these URLs; its id."""
    new = served.create(notify=list(urls), **members)
    assert claims.finish(served.db, begun(served.db, new), "succeeded", result=[RESULT])
    return new


def told(served: Served, conversion: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = served.ask("GET", f"{URL}/{conversion}/deliveries").json()[
        "deliveries"
    ]
    return found


def settled(served: Served, conversion: str, state: str) -> dict[str, Any]:
    """The one delivery of a conversion, once it has this state."""

    def look() -> dict[str, Any] | None:
        (one,) = told(served, conversion)
        return one if one["state"] == state else None

    return until(look, 60)


def test_an_event_is_a_signed_cloud_event(telling: Served, receiver: Receiver) -> None:
    new = ended(telling, f"{receiver.url}/ok?token=a%20b", labels={"run": "7"})
    got = receiver.first("/ok?token=a%20b")
    conversion = telling.ask("GET", f"{URL}/{new}").json()
    event = got.event
    data = event.pop("data")
    revision = conversion["revision"]
    assert event == {
        "specversion": "1.0", "id": f"{new}-{revision}", "source": "https://reshard.example/v1/conversions",
        "type": "dev.reshard.conversion.succeeded", "subject": new, "time": conversion["ended_at"],
        "datacontenttype": "application/json",
    }  # fmt: skip
    (report,) = conversion["result"]
    short = {**{k: v for k, v in report.items() if k != "tensors"}, "tensor_count": 3}
    assert data == {**conversion, "result": [short], "result_url": f"{URL}/{new}"}
    assert got.headers["content-type"] == "application/cloudevents+json"
    assert got.headers["host"] == receiver.url.removeprefix("http://")
    assert got.headers["webhook-id"] == event["id"]
    assert recently(got.headers["webhook-timestamp"])
    assert got.headers["webhook-signature"].split(" ") == got.signatures()
    done = settled(telling, new, "delivered")
    assert (done["tries"], done["status"], done["error"], done["next_at"]) == (1, 204, None, None)


def test_failed_and_cancelled_ones_are_told_too(telling: Served, receiver: Receiver) -> None:
    failed = telling.create(notify=[f"{receiver.url}/ok-failed"])
    claims.finish(
        telling.db, begun(telling.db, failed), "failed", error={"title": "no", "detail": "x"}
    )
    waiting = telling.create(notify=[f"{receiver.url}/ok-waiting"])
    telling.ask("POST", f"{URL}/{waiting}:cancel")
    stopped = telling.create(notify=[f"{receiver.url}/ok-stopped"])
    claim = begun(telling.db, stopped)
    telling.ask("POST", f"{URL}/{stopped}:cancel")
    assert told(telling, stopped) == []
    claims.hand_back(telling.db, claim)
    kinds = {p: receiver.first(f"/ok-{p}").event for p in ("failed", "waiting", "stopped")}
    assert {p: event["type"].rpartition(".")[2] for p, event in kinds.items()} == {
        "failed": "failed", "waiting": "cancelled", "stopped": "cancelled",
    }  # fmt: skip
    assert kinds["failed"]["data"]["error"] == {"title": "no", "detail": "x"}


def test_a_retry_changes_no_event_that_is_under_way(telling: Served, receiver: Receiver) -> None:
    new = telling.create(notify=[f"{receiver.url}/later"])
    telling.ask("POST", f"{URL}/{new}:cancel")
    receiver.first("/later")
    conversions.requeue(telling.db, new)
    done = settled(telling, new, "delivered")
    assert (done["tries"], done["outcome"]) == (3, "cancelled")
    bodies = {one.body for one in receiver.at("/later")}
    assert {json.loads(body)["data"]["state"] for body in bodies} == {"cancelled"}
    assert len({json.loads(body)["id"] for body in bodies}) == 1
    claims.finish(telling.db, begun(telling.db, new), "failed")
    second, first = until(lambda: len(found := told(telling, new)) == 2 and found)
    assert (first["outcome"], second["outcome"]) == ("cancelled", "failed")
    assert first["event"] != second["event"]


def test_a_receiver_that_answers_500_is_tried_again(telling: Served, receiver: Receiver) -> None:
    new = ended(telling, f"{receiver.url}/later")
    done = settled(telling, new, "delivered")
    assert (done["tries"], done["status"]) == (3, 200)
    assert len({one.headers["webhook-id"] for one in receiver.arrived}) == 1


def test_a_receiver_that_is_away_is_waited_for(telling: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    new = ended(telling, f"http://127.0.0.1:{port}/ok")
    until(lambda: told(telling, new)[0]["tries"] > 1)
    (one,) = told(telling, new)
    assert (one["state"], one["status"]) == ("waiting", None)
    assert one["error"].startswith("127.0.0.1 could not be reached: ")
    with receiving(port) as back:
        back.first("/ok")
        settled(telling, new, "delivered")


def test_410_ends_it(telling: Served, receiver: Receiver) -> None:
    done = settled(telling, ended(telling, f"{receiver.url}/away"), "gone")
    assert (done["tries"], done["error"]) == (1, "the answer was 410; expected 2xx")


def test_no_redirect_is_followed(telling: Served, receiver: Receiver) -> None:
    new = ended(telling, f"{receiver.url}/moved")
    until(lambda: len(receiver.at("/moved")) > 1)
    assert receiver.at("/ok-behind") == []
    assert told(telling, new)[0]["error"] == (
        "the answer was 307, a redirect, which is never followed; name the URL to which it leads"
    )


def test_an_answer_without_an_end_is_dropped(telling: Served, receiver: Receiver) -> None:
    done = settled(telling, ended(telling, f"{receiver.url}/endless"), "delivered")
    assert done["status"] == 200


def test_a_try_has_one_time_limit(telling: Served, receiver: Receiver) -> None:
    new = ended(telling, f"{receiver.url}/drip")
    until(
        lambda: (told(telling, new)[0]["error"] or "") == "127.0.0.1 did not answer within 2 s", 20
    )


def test_a_day_is_enough(
    telling: Served, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "KEEP_TRYING_SECONDS", 0.2)
    done = settled(telling, ended(telling, f"{receiver.url}/broken"), "failed")
    assert (done["status"], done["error"]) == (500, "the answer was 500; expected 2xx")
    assert done["tries"] < 6 and done["next_at"] is None and done["ended_at"] is not None


def test_a_slow_receiver_delays_no_other(telling: Served, receiver: Receiver) -> None:
    """Slow ones of one host wait for each other, also when there are more of them than places."""
    for number in range(10):
        ended(telling, *(f"{receiver.url}/slow-{number}-{one}" for one in range(2)))
    until(lambda: len(receiver.arrived) >= 2)
    with receiving(host="127.0.0.2") as other:
        began = time.monotonic()
        ended(telling, f"{other.url}/ok")
        other.first("/ok")
        assert time.monotonic() - began < 1.5
    assert len(receiver.arrived) == 2


def test_pauses_double_up_to_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "FIRST_PAUSE_SECONDS", 10.0)
    found = [deliveries.pause_after(tries) for tries in (1, 2, 3, 9, 10, 4000)]
    for pause, expected in zip(found, (10, 20, 40, 2560, 3600, 3600), strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected


def test_one_process_wins_a_delivery(each_db: sa.Engine) -> None:
    request = OneTarget(
        source="data/a",
        target="data/b",
        notify=("https://a.example", "https://b.example", "https://a.example"),
    )
    new = conversions.create(each_db, token="ann", request=request).id
    quiet = conversions.create(
        each_db, token="ann", request=OneTarget(source="data/a", target="data/b")
    )
    for one in (new, quiet.id):
        claims.finish(each_db, begun(each_db, one), "succeeded", result=[RESULT])
    assert deliveries.of_conversion(each_db, quiet.id) == []
    first = deliveries.claim_next(each_db, [], [])
    second = deliveries.claim_next(each_db, [], [])
    assert first and second and {first.host, second.host} == {"a.example", "b.example"}
    assert deliveries.claim_next(each_db, [], []) is None
    assert deliveries.judge(each_db, first, Tried(200)) == "delivered"
    deliveries.send_again(each_db, new, first.id)
    assert deliveries.claim_next(each_db, [first.host], []) is None
    assert deliveries.claim_next(each_db, [], ["ann"]) is None
    again = deliveries.claim_next(each_db, [second.host], ["bob"])
    assert again is not None and (again.id, again.event, again.tries) == (first.id, first.event, 1)
    # The claim of a process that died runs out; what it then says about its try counts no more.
    with each_db.begin() as connection:
        connection.execute(DELIVERIES.update().values(next_at=0.0))
    later = deliveries.claim_next(each_db, [second.host], [])
    assert later is not None and later.id == again.id
    assert deliveries.judge(each_db, again, Tried(200)) is None
    assert deliveries.judge(each_db, later, Tried(None, "it is away")) == "waiting"
    assert deliveries.count_deliveries(each_db) == {"waiting": 2}
    assert conversions.delete(each_db, new)
    assert deliveries.count_deliveries(each_db) == {}


def test_records_do_not_grow_without_bound(each_db: sa.Engine) -> None:
    urls = tuple(f"https://{n}.example" for n in range(8))
    request = OneTarget(source="data/a", target="data/b", notify=urls)
    new = conversions.create(each_db, token="ann", request=request).id
    for _ in range(MOST_OF_A_CONVERSION // 8 + 2):
        conversions.request_cancel(each_db, new)
        conversions.requeue(each_db, new)
    found = deliveries.of_conversion(each_db, new)
    assert len(found) == MOST_OF_A_CONVERSION
    assert found[0].created_at > found[-1].created_at
    conversions.request_cancel(each_db, new)
    assert rows.remove_ended(each_db, clock_of(each_db).now() + 1) == 1
    assert deliveries.count_deliveries(each_db) == {}


def test_it_is_shown_and_sent_again(telling: Served, receiver: Receiver) -> None:
    new = ended(telling, f"{receiver.url}/ok-<b>".replace("<", "%3C").replace(">", "%3E"))
    done = settled(telling, new, "delivered")
    again = telling.ask("POST", f"{URL}/{new}/deliveries/{done['id']}:resend")
    assert (again.status_code, again.json()["state"], again.json()["tries"]) == (202, "waiting", 0)
    until(lambda: len(receiver.arrived) == 2)
    first, second = receiver.arrived
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    settled(telling, new, "delivered")
    path = f"{URL}/{new}/deliveries"
    assert telling.ask("GET", path, "bob").status_code == 404
    assert telling.ask("POST", f"{path}/{done['id']}:resend", "eve").status_code == 403
    assert telling.ask("POST", f"{path}/{done['id']}:resend", "bob").status_code == 404
    other = telling.create()
    wrong = telling.ask("POST", f"{URL}/{other}/deliveries/{done['id']}:resend")
    assert (wrong.status_code, wrong.json()["detail"]) == (
        404, f"the conversion {other} has no delivery '{done['id']}'; list them at /v1/conversions/{other}/deliveries",
    )  # fmt: skip
    states = telling.ask("GET", "/metrics").text.splitlines()
    assert 'reshard_deliveries{state="delivered"} 1.0' in states
    assert 'reshard_deliveries{state="waiting"} 0.0' in states


def test_the_page_has_a_button(
    serve: Callable[..., Served], tmp_path: Path, receiver: Receiver
) -> None:
    served = serve(notify_secrets_file=secrets_file(tmp_path), notify_private=LOOPBACK)
    new = served.create(notify=[f"{receiver.url}/away"])
    served.ask("POST", f"{URL}/{new}:cancel")
    gone = settled(served, new, "gone")
    ann = Browser(served)
    ann.sign_in("ann")
    page = ann.go(f"/conversions/{new}")
    row = f"{receiver.url}/away that it was cancelled gone the answer was 410; expected 2xx 1 – Send again"
    assert row in page.text
    ann.submit(f"/conversions/{new}/resend")
    assert ann.path == f"/conversions/{new}#deliveries"
    until(lambda: len(receiver.arrived) == 2)
    unkeyed = ann.send("POST", f"/conversions/{new}/resend", data={"delivery": gone["id"]})
    assert unkeyed.status_code == 403
    settled(served, new, "gone")
    eve = Browser(served)
    eve.sign_in("eve")
    assert eve.go(f"/conversions/{new}").text.count("Send again") == 0
