"""``inspect``, ``plan`` and ``verify`` with ``--server``: what the local command prints, word for word."""

from __future__ import annotations

import json
import re
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import reshard
from reshard.cli.app import run
from tests.server.client.weights import WEIGHTS
from tests.server.live import Live
from tests.server.tokens import TOKENS

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def asked(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables name the server and a token; the folder of its root ``data`` is where paths are the same here."""
    monkeypatch.setenv("RESHARD_SERVER", served.url)
    monkeypatch.setenv("RESHARD_TOKEN", TOKENS["ann"][0])
    monkeypatch.chdir(served.log.parent)


CUT = """\
mesh: {axes: [x], shape: [4]}
rules: [{match: kernel, axes: [null, x]}]
"""
TABLE = """\
mesh: {axes: [x], shape: [2]}
rules: [{match: w, axes: [x, null]}]
partitions: [{match: odd, fixed_shards: 3}]
"""


@pytest.fixture(scope="module")
def made(served: Live) -> Path:
    """Checkpoints below ``data``: chunks of many kinds, steps, a copy with rules, and a damaged one."""
    data = served.log.parent / "data"
    for name, text in (("cut.yaml", CUT), ("table.yaml", TABLE)):
        (data.parent / name).write_text(text)
    reshard.convert(data / "run", data / "cut", layout=data.parent / "cut.yaml")
    for step in (3, 4):
        reshard.convert(data / "cut", data / "steps" / str(step), mesh="x=2")
    tensors = {"w": WEIGHTS, "odd": np.arange(30, dtype=np.int16).reshape(10, 3)}
    safetensors.numpy.save_file(tensors, data / "plain.safetensors")
    reshard.convert(data / "plain.safetensors", data / "table", layout=data.parent / "table.yaml")
    rules = {"rename": {"^params/": "model/"}, "cast": {"bias": "float16"}}
    reshard.convert(data / "cut", data / "named", **rules)
    reshard.convert(data / "cut", data / "damaged", compression="none")
    chunk = max((f for f in (data / "damaged").rglob("*") if f.is_file()), key=_size)
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\xff")
    return data


def _size(file: Path) -> int:
    return file.stat().st_size


def said(capsys: Capture, words: list[str], code: int) -> str:
    assert run(words) == code
    out, err = capsys.readouterr()
    return out + err


QUESTIONS = [
    "inspect data/cut",
    "inspect data/cut --all",
    "inspect data/steps --step latest",
    "inspect data/plain.safetensors",
    "inspect data/table",
    "verify data/cut",
    "verify data/cut data/run --all",
    "verify data/cut data/named",
    "verify data/cut data/named --cast bias=float16 --rename ^params/=model/",
    "verify data/steps data/run --step 4",
    "verify data/plain.safetensors",
    "plan data/cut data/new --mesh x=2",
    "plan data/cut data/new --mesh x=2 --shares --all",
    "plan data/cut data/new --select kernel --cast float=bfloat16",
    "plan data/steps data/new --step 3 --mesh x=8 --compression zstd:3",
    "plan data/plain.safetensors data/new --layout table.yaml",
    "plan data/table data/new --to safetensors --shares",
    "plan data/cut --target x=2=data/b --target =data/c",
]

CODES = {"verify data/plain.safetensors": 1}
LIMITS = ["--max-memory", "256MiB", "--workers", "2"]


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("question", "columns"), [*zip(QUESTIONS, cycle(("80", "300")))])
def test_a_server_answers_what_is_answered_here(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, question: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code = CODES.get(question, 0)
    words = [*question.split(), *(LIMITS if question.startswith("plan") else [])]
    there = said(capsys, words, code)
    here = said(capsys, [*words, "--server", ""], code)
    assert without_space(there) == without_space(here)
    assert "data/" in there


def test_damage_is_a_difference_and_the_server_names_no_folder_of_its_own(
    made: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    words = ["verify", "data/cut", "data/damaged"]
    there, here = said(capsys, words, 3), said(capsys, [*words, "--server", ""], 3)
    assert f"{made.parent}/data/damaged/" in here
    assert there == here.replace(f"{made.parent}/", "")


def without_space(text: str) -> str:
    """Free space changes from one moment to the next."""
    return re.sub(r"space: [\d.,]+ \w+ free", "space: … free", text)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    "question", ["inspect data/cut", "verify data/cut", "plan data/cut data/x"]
)
def test_json_is_that_of_here(capsys: Capture, question: str) -> None:
    words = [*question.split(), "--json", *(LIMITS if question.startswith("plan") else [])]
    there = json.loads(said(capsys, words, 0))
    here = json.loads(said(capsys, [*words, "--server", ""], 0))
    for answer in (there, here):
        answer.pop("free_bytes", None)
    assert there == here
    assert next(iter(there)) == "command"


def test_a_dry_run_is_the_plan_of_the_server(made: Path, capsys: Capture) -> None:
    words = ["data/cut", "data/new", "--mesh", "x=2"]
    plan = said(capsys, ["plan", *words], 0)
    dry = said(capsys, ["convert", *words, "--dry-run"], 0)
    assert without_space(dry) == without_space(plan)
    assert not (made / "new").exists()


@pytest.mark.usefixtures("made")
def test_the_variable_is_for_conversions_too_but_options_of_this_host_are_stronger(
    served: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def was_asked(target: str) -> bool:
        return target in served.log.read_text()

    assert run(["convert", "data/cut", "data/by-variable", "--quiet"]) == 0
    assert was_asked("data/by-variable")
    assert run(["convert", "data/cut", "data/in-parts", "--part", "1/1", "--quiet"]) == 0
    assert not was_asked("data/in-parts")
    monkeypatch.setenv("RESHARD_SERVER", "")
    assert run(["convert", "data/cut", "data/on-this-host", "--quiet"]) == 0
    assert not was_asked("data/on-this-host")


REFUSED = [
    (
        "plan data/cut data/new --hosts 2",
        2,
        "--hosts is of this host, but RESHARD_SERVER lets the server {url} do the work; leave it out, or let this host work (--server '')",
    ),
    (
        "verify data/cut --workers 2",
        2,
        "--workers is of this host, but RESHARD_SERVER lets the server {url} do the work; leave it out, or let this host work (--server '')",
    ),
    (
        "verify data/cut --workers 2 --server {url}",
        2,
        "--workers is of this host, but --server lets a server do the work; leave it out, or leave --server out",
    ),
    (
        "plan data/cut",
        2,
        "a plan without DST is made on this host, but RESHARD_SERVER lets the server {url} do the work; give DST, or let this host work "
        "(--server '')",
    ),
    (
        "plan data/cut --server {url}",
        2,
        "a plan without DST is made on this host, but --server lets a server do the work; give DST, or leave --server out",
    ),
    (
        "plan data/cut data/run --mesh x=2",
        1,
        "the target 'data/run' exists already and was left untouched; choose another, or ask to overwrite it (--overwrite)",
    ),
    ("plan data/cut elsewhere/x --mesh x=2", 1, "there is nothing at 'elsewhere/x'"),
    ("inspect data/none", 1, "there is nothing at 'data/none'; check the path"),
    ("inspect data/steps --step 7", 1, "data/steps has no step 7"),
    ("inspect data/cut --token-file /nowhere", 1, "the token file '/nowhere' cannot be read"),
    (
        "verify data/cut --server nonsense",
        1,
        "the server 'nonsense' is not the URL of a server; expected http://HOST:PORT",
    ),
]


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("question", "code", "text"), REFUSED)
def test_what_is_refused(
    served: Live, capsys: Capture, question: str, code: int, text: str
) -> None:
    question, text = (each.replace("{url}", served.url) for each in (question, text))
    assert f"error: {text}" in said(capsys, question.split(), code)


def test_a_wrong_token(capsys: Capture, served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_TOKEN", "rsh_wrong")
    for words in ("inspect data/run", "verify data/run", "plan data/run data/x"):
        assert said(capsys, words.split(), 1) == (
            f"error: the server at {served.url} expects a token that it knows; give one by --token-file, or in the "
            "variable RESHARD_TOKEN\n"
        )


def test_a_token_file_without_a_server(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESHARD_SERVER")
    for words in ("inspect a", "verify a", "plan a b"):
        assert "--token-file belongs to --server; add it, or leave it out" in said(
            capsys, [*words.split(), "--token-file", "x"], 2
        )
