"""``notify`` from the command line, from Python, from the form of a page, and in each conversion of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reshard_server.client import Client
from reshard_server.schedules.scheduling import Occasion, request_of
from reshard_server.schemas.schedule import ScheduleBody

import reshard
from reshard.cli.app import run
from reshard.errors import ReshardError
from tests.server.deliveries.receiver import receiving, secrets_file
from tests.server.live import live
from tests.server.pages.browser import Browser
from tests.server.served import Served
from tests.server.tokens import TOKENS
from tests.server.waiting import until

URLS = ["https://a.example/x", "https://b.example/x"]
ONE_TARGET = [{"target": "data/out/{step}"}]
VERSIONS = [{"target": "data/out/weight_v{version}", "to": "safetensors"}]


def test_commands_and_python_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = str(secrets_file(tmp_path))
    folder, ann = tmp_path / "served", TOKENS["ann"][0]
    monkeypatch.setenv("RESHARD_TOKEN", ann)
    for name, value in (("run", 1), ("next", 2)):
        reshard.save(folder / "data" / name, {"w": np.full((4, 4), value, np.float32)})
    given = {"notify_secrets_file": secrets, "notify_private": ["127.0.0.0/8"]}
    with receiving() as receiver, live(folder, **given) as server:
        told = ["--notify", f"{receiver.url}/ok-a", "--notify", f"{receiver.url}/ok-b"]
        words = ["convert", "data/run", "data/out", "--to", "safetensors", *told]
        assert run([*words, "--server", server.url]) == 0
        delta = ["delta", "data/run", "data/next", "data/published/weight_v000001"]
        one = ["--notify", f"{receiver.url}/ok-c"]
        assert run([*delta, *one, "--server", server.url]) == 0
        for path in ("a", "b", "c"):
            assert receiver.first(f"/ok-{path}").event["type"].endswith(".succeeded")
        assert run([*words, "--server", server.url, "--notify", "https://10.0.0.1"]) == 1
        assert (
            "the URL to notify has the address 10.0.0.1 that is not public"
            in capsys.readouterr().err
        )
        with Client(server.url, ann) as client:
            handle = client.convert("data/run", "data/again", notify=[f"{receiver.url}/ok-d"])
            handle.wait()
            (done,) = until(lambda: [d for d in handle.deliveries() if d.state == "delivered"])
            assert handle.resend(done.id).state == "waiting"
            until(lambda: len(receiver.at("/ok-d")) == 2)
            with pytest.raises(ReshardError, match=r"notify: expected a list, found 'x'"):
                client.convert("data/run", "data/again", notify="x")
    assert run(words) == run([*delta, *one]) == 2
    assert (
        capsys.readouterr().err.count("--notify belongs to --server; add it, or leave --notify out")
        == 2
    )
    assert run([*words, "--server", server.url, "--dry-run"]) == 2
    assert (
        "--dry-run converts nothing that --notify could tell of; leave one out"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("targets", "more", "occasion"),
    [
        (ONE_TARGET, {}, Occasion("data/run/7", 0.0, 7)),
        ([*ONE_TARGET, {"target": "data/other/{step}"}], {}, Occasion("data/run/7", 0.0, 7)),
        (VERSIONS, {"delta": {}}, Occasion("data/run/7", 0.0, 7, version=2, old="data/run/6")),
    ],
)
def test_each_conversion_of_a_schedule_inherits_it(
    targets: list[dict[str, str]], more: dict[str, object], occasion: Occasion
) -> None:
    document = {"when": {"directory": "data/run"}, "targets": targets, "notify": URLS, **more}
    body = ScheduleBody.model_validate(document)
    assert request_of("s", body, occasion).notify == tuple(URLS)
    assert "notify" not in ScheduleBody.model_validate({**document, "notify": []}).model_dump()


def test_the_form_has_a_field(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(notify_secrets_file=secrets_file(tmp_path))
    ann = Browser(served)
    ann.sign_in("ann")
    ann.go("/new-conversion")
    fields = {"source": "data/a", "target": "data/b", "do": "start"}
    refused = ann.submit("/new-conversion", fields, notify=f"{URLS[0]}\nhttps://127.0.0.1")
    assert "has the address 127.0.0.1 that is not public" in refused.text
    ann.submit("/new-conversion", fields, notify="\n".join(URLS))
    (made,) = served.ask("GET", "/v1/conversions").json()["conversions"]
    assert made["request"]["notify"] == URLS
    again = ann.go(f"/new-conversion?again={made['id']}")
    assert again.form("/new-conversion").fields["notify"] == "\n".join(URLS)
    assert f"Notifies {URLS[0]}" in ann.go(f"/conversions/{made['id']}").text
