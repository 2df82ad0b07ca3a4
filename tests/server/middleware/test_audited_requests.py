"""The audit log: who signed in or changed something, from where, what, and the outcome."""

from __future__ import annotations

import json
import logging
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reshard_server.middleware.request_log import READ_ONLY_POSTS
from reshard_server.observability import logs
from reshard_server.observability.logs import JsonLines
from reshard_server.serve import _check
from reshard_server.settings import Settings

from reshard.errors import ReshardError
from tests.server.changing import changing_routes
from tests.server.live import Live, live
from tests.server.pages.browser import ORIGIN, Browser
from tests.server.served import Served, serve, served
from tests.server.tokens import TOKENS, token_settings

__all__ = ["serve", "served"]

URL = "/v1/conversions"
ONE = {"source": "data/a", "target": "data/b"}
LAYOUT = {"layout": {"mesh": {"axes": ["m"], "shape": [2]}, "rules": []}}
SCHEDULE = {"when": {"directory": "data/run"}, "targets": [{"target": "data/o/{step}"}]}
PATIENCE_SECONDS = 60


class Lines(logging.Handler):
    """What was written, as the file would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))

    def take(self) -> list[dict[str, Any]]:
        """What was written since."""
        found, self.found = self.found, []
        return found


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, found = logging.getLogger(logs.NAME), Lines()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)
    logger.setLevel(level)


def one(lines: Lines, event: str, **fields: Any) -> dict[str, Any]:
    """The one line that was written, which has these fields."""
    (found,) = lines.take()
    assert found["message"] == event
    assert {name: found.get(name) for name in fields} == fields
    return found


@pytest.mark.parametrize("who", ["ann", "eve", None])
def test_every_route_that_changes_something(served: Served, lines: Lines, who: str | None) -> None:
    """From any caller, with any outcome; a new route is logged, too."""
    browser = Browser(served)
    if who is not None:
        browser.sign_in(who)
    for method, path in changing_routes():
        lines.take()
        is_api = path.startswith("/v1/")
        if is_api:
            answer = served.ask(method, path, who, json={})
        else:
            answer = browser.send(method, path, data={"form_key": ""}, headers={"Origin": ORIGIN})
        if path in READ_ONLY_POSTS or path.startswith("/hf/"):
            assert lines.take() == []
            continue
        # the form of the session is refused at signing out, and none is signed in by signing in
        known = who if path not in ("/sign-in", "/sign-out") else None
        event = {"/sign-in": "sign-in", "/sign-out": "sign-out"}.get(path, "change")
        found = one(
            lines,
            event,
            caller=known,
            address="127.0.0.1",
            method=method,
            resource=path,
            status=answer.status_code,
            request_id=answer.headers["X-Request-Id"],
        )
        assert {"at", "level", "logger"} <= found.keys()


def test_looks_are_routes() -> None:
    assert {("POST", path) for path in READ_ONLY_POSTS} <= set(changing_routes())


def test_changes_name_their_targets(served: Served, lines: Lines) -> None:
    made = served.create(target="data/b")
    one(lines, "change", resource=URL, status=202, conversion=made, targets=["data/b"])
    several = [{"target": "data/c"}, {"target": "data/d"}]
    served.ask("POST", URL, json={"source": "data/a", "targets": several})
    one(lines, "change", targets=["data/c", "data/d"])
    assert served.ask("POST", URL, json={**ONE, "target": "other/b"}).status_code == 404
    one(lines, "change", status=404, targets=["other/b"], conversion=None)
    served.ask("POST", f"{URL}/{made}:cancel")
    one(lines, "change", resource=f"{URL}/{made}:cancel", conversion=made, targets=["data/b"], status=200)  # fmt: skip
    served.ask("DELETE", f"{URL}/{made}", "bob")
    one(lines, "change", caller="bob", method="DELETE", status=404, conversion=None, targets=None)
    served.ask("DELETE", f"{URL}/{made}")
    one(lines, "change", caller="ann", status=204, conversion=made)
    served.ask("PUT", "/v1/schedules/s", json=SCHEDULE)
    one(lines, "change", resource="/v1/schedules/s", status=201, targets=["data/o/{step}"])
    served.ask("PUT", "/v1/layouts/l", json=LAYOUT)
    one(lines, "change", method="PUT", resource="/v1/layouts/l", status=201)
    served.ask("POST", "/v1/checkpoints:fingerprint", json={"checkpoint": "data/run"})
    one(lines, "change", targets=["data/run"], status=404)


def test_a_form_that_cancels_several_names_each(served: Served, lines: Lines) -> None:
    browser = Browser(served)
    browser.sign_in()
    made = [served.create(target=f"data/{name}") for name in "bc"]
    browser.go("/conversions")
    lines.take()
    form = {"form_key": browser.page.form("/sign-out").fields["form_key"], "id": made}
    answer = browser.send("POST", "/conversions/cancel", data=form, headers={"Origin": ORIGIN})
    found = one(lines, "change", resource="/conversions/cancel", status=answer.status_code)
    assert (set(found["conversions"].split()), set(found["targets"])) == (
        set(made),
        {"data/b", "data/c"},
    )


def test_what_only_looks_is_not_told(served: Served, lines: Lines) -> None:
    served.ask("GET", URL)
    served.ask("HEAD", URL)
    served.ask("POST", "/v1/plans", json=ONE)
    served.ask("GET", URL, None)
    assert lines.take() == []
    browser = Browser(served)
    browser.sign_in()
    lines.take()
    browser.go("/new-conversion")
    browser.submit("/new-conversion", source="data/a", target="data/b", do="preview")
    assert lines.take() == []
    browser.submit("/new-conversion", source="data/a", target="data/b", do="start")
    found = one(lines, "change", caller="ann", resource="/new-conversion", status=303)
    assert found["targets"] == ["data/b"] and len(found["conversion"]) == 28


def test_signing_in_and_out(served: Served, lines: Lines) -> None:
    browser = Browser(served)
    browser.go("/sign-in")
    browser.submit("/sign-in", token="rsh_a-guess")
    one(lines, "sign-in", caller=None, status=401, address="127.0.0.1", resource="/sign-in")
    browser.submit("/sign-in", token=TOKENS["ann"][0])
    one(lines, "sign-in", caller="ann", status=303)
    browser.submit("/sign-out")
    one(lines, "sign-out", caller="ann", status=303)
    served.ask("POST", "/sign-in", None, data={"token": "x"}, headers={"Origin": "http://evil"})
    one(lines, "sign-in", caller=None, status=403)


def test_tokens_that_are_not_known(served: Served, lines: Lines) -> None:
    served.ask("GET", URL, None, headers={"Authorization": "Bearer a-guess"})
    one(lines, "refused", caller=None, method="GET", resource=URL, status=401)
    served.ask("GET", "/metrics", None, headers={"Authorization": "Basic YTpi"})
    one(lines, "refused", resource="/metrics", status=401)


def test_what_no_route_wants_is_told(served: Served, lines: Lines) -> None:
    for method, path, status in (("POST", "/v1/none", 404), ("BREW", "/livez", 405)):
        served.ask(method, path)
        one(lines, "change", method=method, resource=path, status=status)


def test_too_many_requests_are_told(serve: Callable[..., Served], lines: Lines) -> None:
    served = serve(requests_per_minute=1)
    for status in (202, 429):
        assert served.ask("POST", URL, json=ONE).status_code == status
        one(lines, "change", status=status)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def ask(server: Live, who: str | None = "ann", **headers: str) -> int:
    with server.client(who) as client:
        return client.post(URL, json=ONE, headers=headers).status_code


def test_a_file_of_its_own_that_may_be_rotated(tmp_path: Path) -> None:
    file, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    settings = {"forwarded_allow_ips": "127.0.0.1", "log_level": "error", "audit_log": str(file)}
    with live(tmp_path, module="tests.server.idle", **settings) as server:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        headers = {"X-Forwarded-For": "6.6.6.6, 1.2.3.4"}
        assert ask(server, **headers) == 202
        (line,) = read(file)
        assert (line["message"], line["caller"], line["address"], line["status"]) == (
            "change",
            "ann",
            "1.2.3.4",
            202,
        )
        file.rename(moved)
        assert ask(server, None, **headers, Authorization="Bearer rsh_a-guess") == 401
        assert [x["status"] for x in read(moved)] == [202]
        assert [(x["status"], x.get("caller")) for x in read(file)] == [(401, None)]
        file.unlink()
        assert ask(server) == 202
        assert [x["status"] for x in read(file)] == [202]
        assert '"change"' not in server.log.read_text()
        text = moved.read_text() + file.read_text() + server.log.read_text()
        assert "rsh_a-guess" not in text and TOKENS["ann"][0] not in text


def test_without_a_file_it_is_in_the_log_whatever_its_level(tmp_path: Path) -> None:
    with live(tmp_path, module="tests.server.idle", log_level="error") as server:
        assert ask(server) == 202
        (line,) = server.lines()
    assert (line["logger"], line["message"], line["caller"], line["status"]) == (
        "reshard_server.audit",
        "change",
        "ann",
        202,
    )


def test_a_full_disk_leaves_the_line_in_the_log(tmp_path: Path) -> None:
    with live(tmp_path, module="tests.server.idle", audit_log="/dev/full") as server:
        assert ask(server) == 202
        (said,) = [x["message"] for x in server.lines() if x["level"] == "error"]
    assert said.startswith(
        "the audit log cannot be written (No space left on device), so this line is here: {"
    )
    assert json.loads(said[said.index("{") :])["caller"] == "ann"


def test_lines_that_were_cut_stay_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "audit"
    handler = logs.AppendedLines(file)
    write, room = logs.os.write, [5]

    def little(fd: int, data: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return write(fd, data[: room.pop()])

    record = logging.LogRecord(logs.NAME, logging.INFO, "", 0, "change", None, None)
    monkeypatch.setattr(logs.os, "write", little)
    handler.emit(record)
    monkeypatch.undo()
    handler.emit(record)
    handler.close()
    cut, whole = file.read_text().splitlines()
    assert len(cut) == 5 and json.loads(whole)["message"] == "change"


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReshardError) as raised:
        logs.set_up_audit(tmp_path / "none" / "audit")
    assert str(raised.value) == (
        f"the audit log {str(tmp_path / 'none' / 'audit')!r} cannot be written: No such file or directory; make its "
        "folder, or correct the path"
    )
    given = {"roots": {"data": tmp_path}, "audit_log": tmp_path / "audit", "state": "/nowhere"}
    with pytest.raises(ReshardError) as raised:
        _check(Settings.model_validate({"tokens": token_settings(), **given}))
    assert "is in the root 'data', where clients may read and write; name a file elsewhere" in str(
        raised.value
    )


def test_a_tokens_file_that_was_read_again_is_told(tmp_path: Path) -> None:
    file, tokens = tmp_path / "audit.jsonl", tmp_path / "tokens.toml"
    entry = '[[tokens]]\nname = "{}"\nsha256 = "' + "0" * 64 + '"\nscopes = []\n'
    tokens.write_text(entry.format("one"))
    settings = {"audit_log": str(file), "tokens_file": str(tokens)}
    with live(tmp_path, module="tests.server.idle", **settings):
        tokens.write_text(entry.format("two"))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not file.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        (line,) = read(file)
    assert (line["message"], line["detail"]) == ("tokens", "new: two; gone: one")
