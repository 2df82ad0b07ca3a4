"""``reshard delta``, ``reshard apply`` and ``reshard verify --delta``: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reshard.cli.app import run
from tests.delta_layout import bytes_of, changed, stored, write_full

LIKE = {"a": np.arange(6000, dtype="f4").reshape(200, 30), "b": np.arange(9, dtype="i4")}


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    state = bytes_of(LIKE)
    write_full(tmp_path / "v0", state, LIKE)
    write_full(tmp_path / "v1", changed(state, 0.001, 1) | {"b": state["b"]}, LIKE)
    return tmp_path


def test_made_applied_and_verified(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, made, full = (str(versions / n) for n in ("v0", "v1", "weight_v000001", "full"))
    assert run(["delta", old, new, made]) == 0
    said = capsys.readouterr().out
    assert f"made {made}, version 000001 on 000000, in " in said.replace("\n", " ")
    assert "1 tensor of 2 changed" in said.replace("\n", " ")
    assert run(["apply", old, made, full]) == 0
    assert "converted 2 tensors" in capsys.readouterr().out
    assert stored(Path(full)) == stored(versions / "v1")
    assert run(["verify", old, "--delta", made]) == 0
    assert "as recorded: 2 of 2 tensors" in capsys.readouterr().out
    assert run(["verify", old, full, "--delta", made]) == 0
    assert run(["verify", old, old, "--delta", made]) == 3
    capsys.readouterr()
    assert run(["verify", new, "--delta", made]) == 3
    first, second, *_ = capsys.readouterr().out.splitlines()[1:]
    assert (first.strip(), second.split()) == ("differences", ["tensor", "status"])


def test_json(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, made, full = (str(versions / n) for n in ("v0", "v1", "weight_v000001", "full"))
    assert run(["delta", old, new, made, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["version"], found["base_version"]) == (
        "delta",
        "000001",
        "000000",
    )
    assert found["tensors"]["a"]["elements"] == 6000
    assert run(["apply", old, made, full, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "apply"


def test_quiet(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, made, full = (str(versions / n) for n in ("v0", "v1", "weight_v000001", "full"))
    assert run(["delta", old, new, made, "--quiet"]) == 0
    assert run(["apply", old, made, full, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_another_base_ends_with_exit_code_3(
    versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, made, full = (str(versions / n) for n in ("v0", "v1", "weight_v000001", "full"))
    assert run(["delta", old, new, made, "--quiet"]) == 0
    assert run(["apply", new, made, full]) == 3
    assert "so that the base is not the one that the delta was made of" in capsys.readouterr().err
    assert not Path(full).exists()


def test_usage(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", str(versions / "v0"), "weight_v000001"]) == 2
    assert (
        "weight_v000001 alone was given behind BASE; expected every delta and, last, the target: reshard apply BASE weight_v000001 served"
        in capsys.readouterr().err
    )
    assert run(["apply", "v0", "weight_v000001", "full", "--target", "=x"]) == 2
    assert (
        "--target makes several targets of one conversion, but deltas are folded into one; name it after the deltas"
        in capsys.readouterr().err
    )
    assert run(["delta", str(versions / "v0"), str(versions / "v1"), str(versions / "weight_v000003"), "--base-version", "3"]) == 1  # fmt: skip
    assert "give another base version, or name the target by a later version" in capsys.readouterr().err  # fmt: skip
    words = ["--for", "modelexpress", "--checksum", "xxh3-128"]
    assert run(["delta", str(versions / "v0"), str(versions / "v1"), str(versions / "v2"), *words]) == 1  # fmt: skip
    assert "reads deltas of the encoding xor with checksums of adler32, but xor and xxh3-128 were asked for; leave both out" in " ".join(capsys.readouterr().err.split())  # fmt: skip
    assert not (versions / "v2").exists()


def test_verify_takes_what_a_shell_makes_of_a_pattern(
    versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, full = str(versions / "v0"), str(versions / "full")
    chain = [str(versions / f"weight_v00000{n}") for n in (1, 2)]
    for made in chain:
        assert run(["delta", base, base, made, "--base-version", str(int(made[-1]) - 1), "--quiet"]) == 0  # fmt: skip
    assert run(["apply", base, *chain, full, "--quiet"]) == 0
    assert run(["verify", base, "--delta", *chain, "--quiet"]) == 0
    assert run(["verify", base, full, "--delta", *chain]) == 0
    assert "with 2 deltas against B" in " ".join(capsys.readouterr().out.split())
    assert run(["verify", base, "--delta", *chain, full, "--quiet"]) == 0
    for words in (["--delta", base, *chain, full], ["--delta", base, *chain]):
        assert run(["verify", *words]) == 0
        assert "with 2 deltas" in " ".join(capsys.readouterr().out.split())
    assert run(["verify", "--delta", str(versions / "none"), *chain]) == 1
    assert (
        f"{versions / 'none'} does not exist: expected the directory of" in capsys.readouterr().err
    )
    assert run(["verify", base, full, base]) == 2
    assert (
        f"{full} and {base} stand behind A, but A is compared with one checkpoint; give one, and deltas by --delta"
        in capsys.readouterr().err
    )
