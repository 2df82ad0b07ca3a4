"""Logs: one line for one thing, whatever text a client chose."""

from __future__ import annotations

import io
import json
import logging
import socket
from pathlib import Path

import pytest
from reshard_server.observability.logs import JsonLines, TextLines, printable

from tests.server.live import Live, live
from tests.server.tokens import bearer

FORGED = "x\n12:00:00 error forged\r\x1b[2K\u2028\u0085\u202e\ud800\x7f"


def logged(form: logging.Formatter, message: str, *args: object, **extra: object) -> str:
    record = logging.LogRecord("x", logging.INFO, "", 0, message, args, None)
    vars(record).update(extra)
    return form.format(record)


def test_text_stays_on_its_line() -> None:
    line = logged(TextLines(), "cannot read %s", FORGED, path=FORGED, status=200)
    assert len(line.splitlines()) == 1 and line.isprintable()
    assert line.endswith(
        r"info cannot read x\n12:00:00 error forged\r\x1b[2K\u2028\x85\u202e\ud800\x7f "
        r'path="x\n12:00:00 error forged\r\u001b[2K\u2028\x85\u202e\ud800\x7f" status=200'
    )


def test_a_value_ends_where_it_seems_to() -> None:
    for value, shown in (
        ("/v1/x", "path=/v1/x"),
        ("/v1/x status=200", 'path="/v1/x status=200"'),
        ('/v1/" status=200', r'path="/v1/\" status=200"'),
        ("/ümlaut", "path=/ümlaut"),
    ):
        assert logged(TextLines(), "request", path=value).endswith(f"info request {shown}")


def test_traces_are_indented() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines())
    log = logging.Logger("x")
    log.addHandler(handler)
    try:
        raise ValueError(f"12:00:00 error forged {FORGED}")
    except ValueError:
        log.exception("unexpected")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith(" error unexpected")
    assert trace and all(line.startswith("    ") for line in trace)


def test_json_stays_on_its_line() -> None:
    line = logged(JsonLines(), "cannot read %s", FORGED, path=FORGED)
    assert line.isascii() and line.isprintable()
    assert json.loads(line)["path"] == FORGED


def test_what_can_be_printed_stays_as_it_is() -> None:
    assert printable("a ü 日本 \\n") == "a ü 日本 \\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_request_forges_a_line(tmp_path: Path, form: str) -> None:
    """By its path, its names in headers and cookies, its body, or by being no HTTP at all."""
    forged = "%0A12:00:00%20error%20forged%0D%E2%80%A8%C2%85{%22level%22:%22error%22}"
    auth = f"Authorization: {bearer('ann')['Authorization']}"
    heads = [
        f"GET /v1/conversions/{forged} HTTP/1.1\r\nHost: x\r\n{auth}",
        f"GET /{forged}?{forged} HTTP/1.1\r\nHost: x",
        f"POST /v1/layouts/{forged} HTTP/1.1\r\nHost: x\r\n{auth}\r\nContent-Length: 0",
        f"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: {forged}\r\nUser-Agent: {forged}",
        f"G%0A12:00:00 error forged /{forged} HTTP/1.1\r\nHost: x",
    ]
    with live(tmp_path, module="tests.server.idle", log_format=form) as server:
        for head in heads:
            _send(server, f"{head}\r\nConnection: close\r\n\r\n".encode())
        server.end()
        text = server.log.read_text()
    assert "forged" in text
    for line in text.split("\n"):
        assert line.isprintable()
        assert not line.startswith("12:00:00 error forged") and not line.startswith('{"level"')
        if form == "json" and line.startswith("{"):
            assert json.loads(line)["level"] != "error"


def _send(server: Live, data: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        while connection.recv(65536):
            pass
