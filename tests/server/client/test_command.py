"""``reshard convert --server``: the same options, progress, report and exit codes as here."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reshard_server.client import Client
from reshard_server.client.handle import report_of

import reshard
from reshard.answers.record import answer_of
from reshard.cli.app import run
from reshard.conversion.report import ConversionReport, IdentityReport, TensorReport
from reshard.engine.task import CastStats
from tests.server.client.weights import WEIGHTS
from tests.server.forked import Forked
from tests.server.live import PATIENCE_SECONDS, Live, environment, live
from tests.server.tokens import TOKENS

ANN = TOKENS["ann"][0]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", ANN)


def layout_file(folder: Path) -> str:
    file = folder / "layout.yaml"
    file.write_text("mesh: {axes: [x], shape: [4]}\nrules: [{match: kernel, axes: [null, x]}]\n")
    return str(file)


def test_the_same_report_as_here(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--layout", layout_file(tmp_path), "--cast", "bias=bfloat16", "--verify", "readback"]
    here = run(["convert", str(data / "run"), str(tmp_path / "here"), *options])
    shown_here = capsys.readouterr()
    there = run(["convert", "data/run", "data/there", *options, "--server", served.url])
    shown_there = capsys.readouterr()
    assert here == there == 0
    # digests, tensors and proofs; times and places differ
    _, is_here, rest_here = shown_here.out.partition("\nread ")
    _, is_there, rest_there = shown_there.out.partition("\nread ")
    assert is_here and is_there
    assert rest_here == rest_there
    assert "→ data/there" in shown_there.out
    assert shown_there.err.startswith("converting data/run → data/there: layout ")
    np.testing.assert_array_equal(reshard.restore(data / "there")["params"]["kernel"], WEIGHTS)


def test_a_step_of_a_run_on_the_server(
    served: Live, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (3, 4):
        reshard.convert(data / "run", data / "steps" / str(step))
    words = ["convert", "data/steps", "data/latest", "--step", "latest", "--json"]
    assert run([*words, "--server", served.url]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "data/steps/4"
    assert run(["convert", "data/steps", "data/no", "--step", "7", "--server", served.url]) == 1
    assert "data/steps has no step 7" in capsys.readouterr().err


def test_several_targets_give_the_same_reports_as_here(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(source: str, folder: str, *more: str) -> Any:
        targets = ["--target", f"{layout_file(tmp_path)}={folder}/a", "--target", f"x=2={folder}/b"]
        assert run(["convert", source, *targets, "--cast", "bias=bfloat16", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    here = asked(str(data / "run"), str(tmp_path / "here"))
    there = asked("data/run", "data/there", "--server", served.url)
    assert [r["target"] for r in there["reports"]] == ["data/there/a", "data/there/b"]
    assert [tensors_of(r) for r in there["reports"]] == [tensors_of(r) for r in here["reports"]]
    assert (here["source"], there["source"]) == (str(data / "run"), "data/run")
    assert there["read_bytes"] == here["read_bytes"] > 0
    for name in ("a", "b"):
        kernel = reshard.restore(data / "there" / name)["params"]["kernel"]
        np.testing.assert_array_equal(kernel, WEIGHTS)


def test_several_targets_in_parts_give_the_same_reports(
    served: Live, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(folder: str, *more: str) -> Any:
        targets = [
            "--target",
            f"{layout_file(tmp_path)}={folder}/a",
            "--target",
            f"x=2={folder}/b",
        ]
        words = ["convert", "data/run", *targets, "--json", "--server", served.url]
        assert run([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)

    whole, parts = asked("data/whole"), asked("data/parts", "--parts", "2")
    assert [r["target"] for r in parts["reports"]] == ["data/parts/a", "data/parts/b"]
    assert [tensors_of(r) for r in parts["reports"]] == [tensors_of(r) for r in whole["reports"]]
    assert parts["read_bytes"] > 0
    assert [one.name for one in (data / "parts").iterdir() if one.name not in "ab"] == []
    again = asked("data/parts", "--parts", "2")  # finished before: no part is left to do
    assert [r["already_done"] for r in again["reports"]] == [True, True]


def test_more_parts_than_there_is_work_are_refused(
    served: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", "data/run", "data/many", "--to", "safetensors", "--parts", "60000"]
    assert run([*words, "--server", served.url]) == 1
    assert "so that the others would have nothing to do; give at most" in capsys.readouterr().err


def tensors_of(report: dict[str, Any]) -> list[tuple[str, ...]]:
    keys = ("target", "target_dtype", "source_digest", "target_digest")
    return [tuple(t[key] for key in keys) for t in report["tensors"]]


def test_json_and_token_file(
    served: Live,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", "wrong")
    (tmp_path / "token").write_text(ANN + "\n")
    command = ["convert", "data/run", "data/json", "--server", served.url, "--json"]
    assert run(command) == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "ServiceError"
    assert run([*command, "--token-file", str(tmp_path / "token")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["target"]) == ("convert", "data/json")


REFUSED = [
    (["--select", "nothing"], 1, "error: select 'nothing' matches none of the 2 names"),
    (["--mesh", "x"], 2, "error: mesh 'x': expected NAME=SIZE"),
    (["--token-file", "/nowhere"], 1, "error: the token file '/nowhere' cannot be read"),
    (["--layout", "unknown"], 1, "error: the layout 'unknown' is not stored"),
    (["--layout", "missing.yaml"], 1, "error: "),
    (["--max-memory", "much"], 2, "error: "),
]


@pytest.mark.parametrize(("options", "code", "text"), REFUSED)
def test_exit_codes(
    served: Live, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", "data/run", "data/refused", *options, "--server", served.url]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("given", ["", "rsh_unknown"])
def test_a_token_that_is_not_known(
    served: Live, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", given)
    assert run(["convert", "data/run", "data/refused", "--server", served.url]) == 1
    assert (
        f"error: the server at {served.url} expects a token that it knows; give one by --token-file, or in the "
        "variable RESHARD_TOKEN\n"
    ) in capsys.readouterr().err


def test_a_token_file_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "a", "b", "--token-file", "x"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == (
        "error: --token-file belongs to --server; add it, or leave it out"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_detaches_and_says_where_to_look(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with live(tmp_path, module="tests.server.idle") as server, Client(server.url, ANN) as client:
        words = ["reshard", "convert", "data/a", "data/b", "--server", server.url]
        env = {**environment(), "RESHARD_TOKEN": ANN}
        said = tmp_path / "said"
        process = Forked(words, env, tmp_path, tmp_path / "out", said)
        with server.client() as http:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (
                "reshard_streams_open 1.0" not in http.get("/metrics").text
            ):  # it waits for the end
                assert time.monotonic() < deadline
                time.sleep(0.05)
        found = client.conversions.list().conversions
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == code
        named = f"{found[0].id} --server {server.url}"
        assert said.read_text().splitlines()[-1] == (
            f"detached; conversion {found[0].id} continues at the server {server.url}. Look at it: reshard jobs show {named}; "
            f"stop it: reshard jobs cancel {named}"
        )
        assert client.conversions.get(found[0].id).conversion.state == "queued"


def test_a_report_survives_the_way() -> None:
    cast = CastStats(3, 2, float("inf"))
    tensor = TensorReport(
        "a", "b", (2, 3), "float32", "float16", "scatter", 24, "0" * 16, "1" * 16, "proved", cast
    )
    kept = TensorReport(None, "b", (2, 3), None, "float16", None, 12, None, "1" * 16, None)
    identity = IdentityReport("0" * 64, "computed", "1" * 64, ("2" * 64, ""))
    report = ConversionReport(
        "s", "t", (tensor, kept), 1, 2, 3, 0.5, ("careful",), 1, False, identity=identity
    )
    assert report_of(json.loads(json.dumps(answer_of("convert", report)))) == report
