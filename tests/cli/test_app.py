"""The command line from its words to its exit code, with the library's answers made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.errors import PlanError, VerificationError
from reshard.verification.fingerprint import Fingerprint, TensorDigest
from reshard.verification.reports import DiffReport, TensorDiff, TensorVerdict, Verification
from tests.cli.specimens import SERVED, info, planned, report, spec, tensor_report

Capture = pytest.CaptureFixture[str]


Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the commands asked of the library, which answers with specimens."""
    made: Calls = []
    pair = (spec("a"), spec("b", axes=(None, "model"), mesh=SERVED))
    answers = {
        "inspect": info(spec("a")),
        "plan": planned(pair),
        "convert": report(tensor_report("a")),
        "verify": Verification("a", "b", (TensorVerdict("x", "equal", "0", "0"),)),
        "diff": DiffReport("a", "b", {"x": TensorDiff("x", "equal")}, {}, 0.5),
        "fingerprint": Fingerprint(
            "a", {"x": TensorDigest("x", "0")}, 3, 8, ("a/slices.json",), 0.5
        ),
    }

    def answering(answer: object) -> Callable[..., object]:
        def answered(*args: Any, **options: Any) -> object:
            made.append((args, options))
            return answer

        return answered

    for name, answer in answers.items():
        monkeypatch.setattr(reshard, name, answering(answer))
    monkeypatch.setattr("reshard.api.inspection.inspect", answering(answers["inspect"]))
    return made


def raising(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(reshard, name, raises)


def test_convert_passes_every_option_on(calls: Calls, capsys: Capture) -> None:
    words = (
        "convert src dst --layout l.yaml --mesh data=4,model=2 --select A --select B --drop C "
        "--rename a=b=c --rename x=y --cast w=b=int8 --max-memory 1.5GiB --workers 3 "
        "--compression zstd:3 --chunk-bytes 64MiB --ocdbt --style v1 --verify readback "
        "--overwrite --restart --missing-axes replicate --missing-chunks refuse"
    )
    assert run(words.split()) == 0
    args, options = calls[0]
    assert args == ("src", "dst")
    assert callable(options.pop("progress"))
    assert options == {
        "layout": "l.yaml", "mesh": "data=4,model=2", "select": ["A", "B"], "drop": ["C"],
        "rename": [("a=b", "c"), ("x", "y")], "cast": [("w=b", "int8")],
        "max_memory": 3 << 29, "workers": 3, "compression": "zstd:3", "chunk_bytes": 64 << 20,
        "ocdbt": True, "style": "v1", "check": "readback", "overwrite": True,
        "restart": True, "missing_axes": "replicate", "missing_chunks": "refuse",
    }  # fmt: skip
    out, err = capsys.readouterr()
    assert out.startswith("converted 1 tensor, 512 B, in 2.0 s")
    assert err == (
        "converting src → dst: layout l.yaml, mesh data=4,model=2, select A, select B, drop C, "
        "rename a=b=c, rename x=y, cast w=b=int8, compression zstd:3, verify readback\n"
    )


def test_defaults_are_left_to_the_library(calls: Calls, capsys: Capture) -> None:
    assert run(["plan", "src", "dst"]) == 0
    given = {"layout": None, "mesh": None, "max_memory": None, "workers": None}
    assert calls[0][1] == given
    assert "total: 1 tensor in " in capsys.readouterr().out


def test_plan_with_shares(calls: Calls, capsys: Capture) -> None:
    assert run(["plan", "src", "dst", "--shares"]) == 0
    assert "source shards 8 of 4×4 → target shards 8 of 16×1" in capsys.readouterr().out
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("inspect a", "inspect"),
        ("plan a b --shares", "plan"),
        ("convert a b", "convert"),
        ("verify a b", "verify"),
        ("diff a b", "diff"),
    ],
)
def test_json_is_one_object_and_nothing_else(
    calls: Calls, capsys: Capture, words: str, command: str
) -> None:
    assert run([*words.split(), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["command"] == command
    assert err == ""
    assert len(calls) == 1


def test_layout_draws_and_prints_json(calls: Calls, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "l.yaml"
    file.write_text("mesh: {axes: [model], shape: [8]}\nrules: [{match: a, axes: [null, model]}]\n")
    assert run(["layout", str(file), "src"]) == 0
    assert "target mesh model=8" in capsys.readouterr().out
    assert run(["layout", str(file), "src", "--mesh", "model=4", "--json"]) == 0
    tensor = json.loads(capsys.readouterr().out)["tensors"][0]
    assert tensor["target_mesh"] == {"axes": ["model"], "shape": [4]}
    assert tensor["target_shards"] == [1, 4]
    assert calls[0][0] == ("src",)


def test_differences_are_exit_code_3(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    found = Verification("a", "b", (TensorVerdict("x", "different", "0", "1", "bits"),))
    monkeypatch.setattr(reshard, "verify", lambda *_, **__: found)
    assert run(["verify", "a", "b"]) == 3
    assert "different: 1 of 1 tensor" in capsys.readouterr().out
    assert run(["verify", "a", "b", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["differences"] == 1


def test_nothing_to_verify_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    found = Verification("a", None, (TensorVerdict("x", "not recorded", "0", None),))
    monkeypatch.setattr(reshard, "verify", lambda *_, **__: found)
    assert run(["verify", "a"]) == 1
    assert "nothing verified" in capsys.readouterr().out


def test_errors_are_one_block_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    raising(monkeypatch, "inspect", PlanError("'a\x1b[2J' is wrong;\ndo this"))
    assert run(["inspect", "a"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: 'a\\x1b[2J' is wrong;\ndo this\n")
    assert run(["inspect", "a", "--json"]) == 1
    out, err = capsys.readouterr()
    message = "'a\x1b[2J' is wrong;\ndo this"
    assert json.loads(out) == {"error": {"type": "PlanError", "message": message}}
    assert err == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_arguments_in_errors_are_named_as_options(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, as_json: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PlanError("allow max_memory of 9MiB, or start over (restart)")

    monkeypatch.setattr(reshard, "convert", fail)
    assert run(["convert", "a", "b", *(["--json"] if as_json else [])]) == 1
    printed = capsys.readouterr()
    assert "allow --max-memory of 9MiB, or start over (--restart)" in (
        printed.out if as_json else printed.err
    )


def test_a_failed_proof_is_a_difference(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    raising(monkeypatch, "convert", VerificationError("'a' was read back otherwise"))
    assert run(["convert", "a", "b"]) == 3
    assert "error: 'a' was read back otherwise\n" in capsys.readouterr().err


def test_interruption(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    raising(monkeypatch, "convert", KeyboardInterrupt())
    assert run(["convert", "a", "b"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "interrupted; no target was published, and running the same command again starts over"
    )
    assert run(["convert", "a", "b", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "KeyboardInterrupt"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, "inspect", ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        run(["inspect", "a"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "convert a",
            "DST is missing: give the folder of the new checkpoint, or name targets with --target",
        ),
        ("plan a b --ocdb", "No such option: --ocdb"),
        ("plan a b --cast x", "--cast 'x': expected RE=DTYPE, such as float=bfloat16"),
        ("convert a b --rename x", "--rename 'x': expected RE=NEW, such as '^params/=model/'"),
        ("plan a b --max-memory much", "'much' is not a size in bytes; expected a number with a"),
        ("plan a b --workers 0", "Invalid value for '--workers'"),
        ("plan a b --style v2", "'v2' is not one of 'v0', 'v1'"),
        ("convert a b --verify twice", "'twice' is not one of 'written', 'readback'"),
        ("explode", "No such command 'explode'"),
        (
            "plan a b --mesh x",
            "mesh 'x': expected NAME=SIZE,NAME=SIZE such as data=4,model=2, found 'x'",
        ),
        (
            "layout a --mesh x",
            "mesh 'x': expected NAME=SIZE,NAME=SIZE such as data=4,model=2, found 'x'",
        ),
        ("convert a b --compression lz4", "compression 'lz4' is not known; expected none, zstd"),
        ("plan a b --select (", "select '(' is no regular expression: missing )"),
        ("verify a b --rename (=x", "rename '(' is no regular expression: missing )"),
        ("diff a b --drop (", "drop '(' is no regular expression: missing )"),
        ("convert a b --cast x=half", "cast 'x'='half': no such dtype"),
        ("convert a b --to safetensors --ocdbt", "ocdbt is an option of Orbax targets"),
        ("convert a b --file-names {x}", "file_names is '{x}'; expected the fields {number}"),
        ("convert a b --part 9/3", "part is '9/3'; expected i/n with i from 1 to n"),
        ("convert a b --token-file x", "--token-file belongs to --server; add it, or leave it out"),
        (
            "convert a b --part 1/2 --token-file x",
            "--token-file belongs to --server; add it, or leave it out",
        ),
        ("doctor bucket", "'bucket' is no URL of a bucket; expected gs://bucket/prefix"),
    ],
)
def test_usage_errors(calls: Calls, capsys: Capture, words: str, message: str) -> None:
    assert run(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message.lower() in err.lower()
    assert err.splitlines()[-1].startswith("see: reshard")
    assert "Traceback" not in err
    assert run([*words.split(), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UsageError"
    assert message.lower() in error["message"].lower()
    assert calls == []


COMMANDS = (
    "inspect", "steps", "plan", "convert", "view", "delta", "apply", "rules", "recipes", "commit", "verify", "diff", "layout", "fingerprint", "identify", "sign", "doctor", "clean", "serve", "jobs", "demo",
)  # fmt: skip


def test_help_lists_the_commands(capsys: Capture) -> None:
    assert run([]) == 0
    out = capsys.readouterr().out
    assert all(f" {command} " in out for command in COMMANDS)
    assert "3 a difference was found" in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_parses(
    calls: Calls, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"$ reshard {command} " in out or f"$ reshard {command}\n" in out.replace(" \n", "\n")
    assert "--json" in out or command == "serve"  # which ends without a report
    assert not calls


@pytest.mark.parametrize("words", ["-h", "convert -h", "steps -h"])
def test_h_is_help(capsys: Capture, words: str) -> None:
    assert run(words.split()) == 0
    short = capsys.readouterr().out
    assert run(words.replace("-h", "--help").split()) == 0
    assert short == capsys.readouterr().out


@pytest.mark.parametrize("option", ["-q", "--quiet"])
@pytest.mark.parametrize(
    "words", ["convert a b", "convert a b --dry-run", "verify a b", "diff a b", "fingerprint a"]
)
def test_quiet_prints_nothing(calls: Calls, capsys: Capture, words: str, option: str) -> None:
    assert run([*words.split(), option]) == 0
    assert capsys.readouterr() == ("", "")
    assert len(calls) == 1
    assert calls[0][1].get("progress") is None
    assert run([*words.split(), option, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"]


def test_quiet_keeps_exit_codes_warnings_and_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    verdicts = (TensorVerdict("x", "different", "0", "1", "bits"),)
    twice = ("beware\x1b", "beware\x1b")
    answers = {
        "verify a b": Verification("a", "b", verdicts, warnings=twice),
        "diff a b": DiffReport("a", "b", {}, {}, 0.0, twice),
        "fingerprint a": Fingerprint("a", {}, 0, 0, (), 0.0, twice),
    }
    for words, found in answers.items():
        monkeypatch.setattr(reshard, words.partition(" ")[0], lambda *_, _found=found, **__: _found)
        assert run([*words.split(), "-q"]) == (3 if words == "verify a b" else 0)
        assert capsys.readouterr() == ("", "warning: beware\\x1b\n")
    raising(monkeypatch, "convert", PlanError("no"))
    assert run(["convert", "a", "b", "-q"]) == 1
    assert capsys.readouterr() == ("", "error: no\n")


def test_a_dry_run_is_the_plan(calls: Calls, capsys: Capture) -> None:
    words = "a b --mesh model=8 --drop c --verify readback --restart --max-memory 1GiB"
    assert run(["convert", *words.split(), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "total: 1 tensor in " in out
    assert err == ""
    assert calls == [
        (
            ("a", "b"),
            {
                "layout": None, "mesh": "model=8", "drop": ["c"], "check": "readback", "restart": True,
                "max_memory": 1 << 30, "workers": None,
            },
        )
    ]  # fmt: skip
    assert run(["convert", *words.split(), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "plan"
    assert run(["convert", "a", "b", "--dry-run", "--part", "1/2"]) == 2
    assert "--dry-run plans what a conversion on this host would do, and --part lets others" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_not_cut_at_80_columns(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    marks = []
    for columns in ("80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run([command, "--help"]) == 0
        marks.append(capsys.readouterr().out.count("…"))
    assert marks[0] == marks[1]


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("reshard ")
