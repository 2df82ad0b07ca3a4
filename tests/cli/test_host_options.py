"""``plan`` with --hosts, --cores and --nic, from the words to the lines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.cli.options import machines_of

Capture = pytest.CaptureFixture[str]
HOSTS = ["--hosts", "16", "--nic", "12.5GB/s", "--cores", "8", "--workers", "8"]
KEYS = {
    "hosts", "cores", "nic_bytes_per_s", "cores_s", "network_s", "store_s", "seconds", "bottleneck",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("hosts") / "trained"
    reshard.save(path, {"w": np.ones((64, 64), np.float32)})
    return str(path)


def time_of(capsys: Capture) -> object:
    return json.loads(capsys.readouterr().out).get("time")


def test_only_what_was_given_is_passed_on() -> None:
    assert machines_of(None, None, None) == {}
    assert machines_of(16, None, 5) == {"hosts": 16, "nic_bytes_per_s": 5}


def test_a_plan_shows_the_time_on_such_hosts(trained: str, capsys: Capture) -> None:
    assert run(["plan", trained, *HOSTS]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "time: about 0.0 s on 16 hosts × 8 cores: cores 0.0 s, network 0.0 s; the " in text
    assert text.endswith("not counted: the speed of the file system")


def test_json_has_the_time_in_full(trained: str, capsys: Capture) -> None:
    assert run(["plan", trained, *HOSTS, "--json"]) == 0
    found = time_of(capsys)
    assert isinstance(found, dict)
    assert set(found) == KEYS
    assert (found["hosts"], found["cores"], found["nic_bytes_per_s"]) == (16, 8, 12_500_000_000)
    assert found["seconds"] == max(found["cores_s"], found["network_s"])
    planned = reshard.plan(trained, workers=8, hosts=16).time(16, 12.5e9, 8)
    assert found["seconds"] == planned.seconds


def test_without_the_options_there_is_no_time(trained: str, capsys: Capture) -> None:
    for words in ([], ["--latency", "1ms"]):
        assert run(["plan", trained, *words, "--json"]) == 0
        assert time_of(capsys) is None
        assert run(["plan", trained, *words]) == 0
        assert "time:" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--hosts", "2"], ["--cores", "1"], ["--nic", "1GB/s"]])
def test_each_option_asks_for_the_time(trained: str, capsys: Capture, words: list[str]) -> None:
    assert run(["plan", trained, *words, "--json"]) == 0
    assert time_of(capsys) is not None


def test_several_targets_have_one_time(trained: str, tmp_path: Path, capsys: Capture) -> None:
    words = ["plan", trained, "--target", f"={tmp_path / 'a'}", "--target", f"={tmp_path / 'b'}"]
    assert run([*words, *HOSTS]) == 0
    assert capsys.readouterr().out.count("time: about") == 1
    assert run([*words, *HOSTS, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["time"]) == KEYS
    assert all("time" not in plan for plan in document["plans"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--hosts 0", "Invalid value for '--hosts': 0 is not in the range 1<=x<=1000000"),
        ("--hosts many", "Invalid value for '--hosts': 'many' is not a valid int"),
        ("--cores 0", "Invalid value for '--cores': 0 is not in the range 1<=x<=1000000"),
        ("--nic fast", "Invalid value for '--nic': 'fast' is not a size in bytes; expected a number with a unit"),
        ("--nic 0GB/s", "'0GB' is too small; expected at least 1 byte"),
    ],
)  # fmt: skip
def test_usage_errors(trained: str, capsys: Capture, words: str, message: str) -> None:
    assert run(["plan", trained, *words.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True)
