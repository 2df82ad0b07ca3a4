"""The price of an identity in a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from tests.signing_keys import tree


def price(checkpoint: Path, how: Any, **options: Any) -> reshard.PlannedIdentity | None:
    return reshard.plan(checkpoint, identity=how, **options).identity


def test_what_is_read_again_and_what_is_decoded(checkpoint: Path, tmp_path: Path) -> None:
    nbytes = reshard.identify(checkpoint).nbytes
    raw, packed = price(checkpoint, "compute"), price(checkpoint, "check", compression="zstd")
    assert raw is not None
    assert packed is not None
    assert (raw.how, raw.read_bytes, raw.decoded_bytes) == ("compute", nbytes, 0)
    assert (packed.how, packed.read_bytes, packed.decoded_bytes) == ("check", nbytes, nbytes)
    assert 0 < raw.core_s < packed.core_s
    reshard.save(tmp_path / "zstd", tree(), compression="zstd")
    kept = price(tmp_path / "zstd", "compute", compression="keep")
    assert kept is not None
    assert kept.decoded_bytes == nbytes
    assert price(checkpoint, "none") is None


def test_what_is_carried_costs_nothing(checkpoint: Path, tmp_path: Path) -> None:
    root = json.loads((checkpoint / "identity.json").read_text())["root"]
    assert price(checkpoint, None) == reshard.PlannedIdentity("carry", source=root)
    assert price(checkpoint, None, cast={"float": "bfloat16"}) is None
    reshard.save(tmp_path / "unknown", tree())
    assert price(tmp_path / "unknown", None) is None
    with pytest.raises(reshard.PlanError, match="records no identity that could be checked"):
        price(tmp_path / "unknown", "check")


def test_memory_and_time_include_it(checkpoint: Path) -> None:
    plain = reshard.plan(checkpoint, identity="none")
    priced = reshard.plan(checkpoint, identity="compute")
    assert priced.identity is not None
    assert priced.peak_bytes == max(plain.peak_bytes, priced.identity.peak_bytes)
    more = priced.time(cores=2).cores_s - plain.time(cores=2).cores_s
    assert more == pytest.approx(priced.identity.core_s / 2)


def test_each_of_several_targets_has_its_own(checkpoint: Path, tmp_path: Path) -> None:
    targets = [reshard.Target(tmp_path / how, identity=how) for how in ("compute", "none")]
    found = reshard.plan_all(checkpoint, targets)
    assert [plan.identity and plan.identity.how for plan in found.plans] == ["compute", None]
    both = reshard.plan_all(
        checkpoint, [targets[1], reshard.Target(tmp_path / "x", identity="none")]
    )
    assert found.time(cores=1).cores_s > both.time(cores=1).cores_s


def test_the_command_says_it(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(checkpoint), "--compression", "zstd", "--identity"]
    assert run([*command, "check"]) == 0
    assert (
        "identity: checked in one pass; reads 444 KiB of the target again, 444 KiB of it dec"
        in (" ".join(capsys.readouterr().out.split()))
    )
    assert run([*command, "carry"]) == 0
    assert "identity: carried from the source; nothing is read again" in capsys.readouterr().out
    assert run([*command, "compute", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["identity"]
    assert set(found) == {"how", "read_bytes", "decoded_bytes", "peak_bytes", "core_s", "source"}


def test_too_little_memory_is_said_by_the_plan(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshard.identity import read_leaves

    monkeypatch.setattr(read_leaves, "RESULT_BYTES", 1 << 30)
    with pytest.raises(reshard.MemoryBudgetError, match="to hash 'embed' takes"):
        reshard.plan(checkpoint, identity="compute", max_memory="256MiB")
