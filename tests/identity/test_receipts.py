"""Receipts: written where a target's root is not the source's, and verified by doing the conversion again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.cli.app import run

RULES: dict[str, Any] = {"cast": {"float": "bfloat16"}, "rename": {"^layers": "blocks"}}
MAP = {
    "map": [
        {"from": "embed", "to": "tok"},
        {"from": "layers/w", "to": "blocks/w"},
        {"from": "layers/n", "to": "blocks/n"},
    ],
}


def receipt_in(folder: Path) -> Any:
    return json.loads((folder / "identity.receipt.json").read_text())


def root_in(folder: Path) -> str:
    root: str = json.loads((folder / "identity.json").read_text())["root"]
    return root


@pytest.fixture
def cast(checkpoint: Path, tmp_path: Path) -> Path:
    """A target in bfloat16, with its receipt."""
    reshard.convert(checkpoint, tmp_path / "cast", identity="compute", **RULES)
    return tmp_path / "cast"


def test_it_says_which_rules_made_one_root_of_the_other(checkpoint: Path, cast: Path) -> None:
    assert receipt_in(cast) == {
        "format": "reshard weights receipt",
        "version": 1,
        "reshard": reshard.__version__,
        "source": root_in(checkpoint),
        "target": root_in(cast),
        "select": [],
        "drop": [],
        "rename": [["^layers", "blocks"]],
        "cast": [["float", "bfloat16"]],
    }


def test_the_report_and_the_command_say_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reshard.convert(checkpoint, tmp_path / "t", identity="compute", **RULES)
    root, source = root_in(tmp_path / "t"), root_in(checkpoint)
    assert report.to_dict()["identity"] == {"root": root, "how": "computed", "source": source}
    command = ["convert", str(checkpoint), str(tmp_path / "u"), "--drop", "n$"]
    assert run([*command, "--identity", "carry"]) == 0
    assert f"its receipt names the source's: {source}\n" in capsys.readouterr().out
    assert receipt_in(tmp_path / "u")["drop"] == ["n$"]


@pytest.mark.parametrize("how", ["carry", "compute", "check"])
def test_the_same_weights_need_none(how: Any, checkpoint: Path, tmp_path: Path) -> None:
    report = reshard.convert(checkpoint, tmp_path / "t", identity=how, ocdbt=True)
    assert report.identity is not None and report.identity.source is None
    assert not (tmp_path / "t" / "identity.receipt.json").exists()


def test_a_source_without_an_identity_gives_none_and_the_report_says_so(
    checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / "identity.json").unlink()
    report = reshard.convert(checkpoint, tmp_path / "t", identity="compute", **RULES)
    assert report.warnings[-1] == (
        "no receipt is written, since the source records no identity; record it with reshard identify --write, and convert again from there, if "
        "somebody must be able to redo the conversion"
    )
    assert not (tmp_path / "t" / "identity.receipt.json").exists()
    plain = reshard.convert(checkpoint, tmp_path / "u", identity="compute")
    assert not any("receipt" in warning for warning in plain.warnings)


def test_one_file_has_no_place_for_an_identity_or_a_receipt(
    checkpoint: Path, tmp_path: Path
) -> None:
    one = tmp_path / "one.safetensors"
    report = reshard.convert(checkpoint, one, identity="compute", **RULES)
    assert report.identity is not None and report.identity.source is None
    assert report.warnings == ()
    more: dict[str, Any] = {"drop": ["n$"], "identity": "compute"}
    assert reshard.convert(one, tmp_path / "two.safetensors", **more).warnings == ()
    report = reshard.convert(one, tmp_path / "t", **more)
    assert report.warnings[-1] == (
        "no receipt is written, since the source records no identity; only a folder has a place for one: convert it into a folder with "
        'its identity (identity="compute"), and convert again from there, if somebody must be able to redo the conversion'
    )


def test_a_source_with_other_bytes_gets_no_receipt(checkpoint: Path, tmp_path: Path) -> None:
    tree = reshard.restore(checkpoint)
    reshard.save(tmp_path / "other", {**tree, "embed": tree["embed"] + 1}, compression="zstd")
    for name in ("identity.json", "identity.tree"):
        shutil.copy(checkpoint / name, tmp_path / "other")
    (tmp_path / "other" / "slices.json").unlink()  # its digests would contradict at once
    for rules in (RULES, {"compression": "keep"}):
        with pytest.raises(reshard.CorruptError, match="its bytes changed since it was identified"):
            reshard.convert(tmp_path / "other", tmp_path / "t", identity="compute", **rules)
    assert not (tmp_path / "t").exists()


def test_it_is_no_part_of_the_target(checkpoint: Path, cast: Path, tmp_path: Path) -> None:
    assert reshard.convert(checkpoint, cast, identity="compute", **RULES).already_done
    found = reshard.verify(cast)
    assert not found.differences and not found.warnings
    reshard.convert(cast, tmp_path / "on", drop=["n$"])
    assert receipt_in(tmp_path / "on")["source"] == root_in(cast)
    reshard.convert(cast, tmp_path / "same")
    assert not (tmp_path / "same" / "identity.receipt.json").exists()


def test_verify_does_it_again(
    checkpoint: Path, cast: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = reshard.verify(checkpoint, cast, receipt=cast)
    assert found.receipt is not None and not found.differences
    assert [t.comparison for t in found.tensors] == ["cast", "exact", "cast"]
    command = ["verify", str(checkpoint), str(cast), "--receipt"]
    assert run([*command, str(cast / "identity.receipt.json")]) == 0
    out = capsys.readouterr().out
    assert f"root of A: {root_in(checkpoint)}\nroot of B: {root_in(cast)}\n" in out
    assert f"by the receipt that reshard {reshard.__version__} wrote" in out
    assert run([*command, str(cast), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["receipt"] == {
        "source": root_in(checkpoint),
        "expected_source": root_in(checkpoint),
        "target": root_in(cast),
        "expected_target": root_in(cast),
        "reshard": reshard.__version__,
    }


def test_a_map_is_applied_again(checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "t", map=MAP, identity="compute")
    assert receipt_in(tmp_path / "t")["map"]["map"]["map"]
    assert not reshard.verify(checkpoint, tmp_path / "t", receipt=tmp_path / "t").differences
    tree = reshard.restore(tmp_path / "t")
    reshard.save(tmp_path / "u", {**tree, "tok": tree["tok"] + 1})
    found = reshard.verify(checkpoint, tmp_path / "u", receipt=tmp_path / "t")
    assert [t.name for t in found.tensors if t.is_difference] == ["tok"]


def edit(folder: Path, **members: Any) -> None:
    path = folder / "identity.receipt.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def test_other_weights_differ_from_it(
    checkpoint: Path, cast: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = reshard.restore(checkpoint)
    embed = tree["embed"].copy()
    embed[0, 0] = np.nextafter(embed[0, 0], np.float32(9))  # no bit of the cast changes
    reshard.save(tmp_path / "near", {**tree, "embed": embed})
    root = reshard.identify(tmp_path / "near").root
    assert run(["verify", str(tmp_path / "near"), str(cast), "--receipt", str(cast)]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert f"A has the root {root}, but the receipt names {root_in(checkpoint)}" in out
    assert "different: 0 of 3 tensors, 1 of 2 roots; A = " in out


def test_other_rules_are_a_difference(checkpoint: Path, cast: Path) -> None:
    edit(cast, cast=[["float", "float16"]])
    found = reshard.verify(checkpoint, cast, receipt=cast)
    assert found.receipt is not None and not found.receipt.differences
    assert {t.name for t in found.tensors if t.is_difference} == {"embed", "blocks/w"}


def test_rules_that_do_not_fit_are_a_difference(cast: Path) -> None:
    found = reshard.verify(cast, cast, receipt=cast)
    assert found.damage[0].startswith("the rules of the receipt do not fit A, so that no tensor")
    assert found.differences == 2
    assert found.receipt is not None and "A has the root" in found.receipt.differences[0]


def test_damage_of_a_side_is_a_difference(checkpoint: Path, cast: Path) -> None:
    chunk = max(
        (f for f in (cast / "embed").rglob("*") if f.is_file()), key=lambda f: f.stat().st_size
    )
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    found = reshard.verify(checkpoint, cast, receipt=cast)
    assert found.damage[-1].startswith("the root of B cannot be computed: tensor 'embed', chunk")
    assert [t.name for t in found.tensors if t.is_difference] == ["embed"]


def given_map(**members: Any) -> dict[str, Any]:
    """A map as a receipt has it, with other members."""
    return {"map": MAP, "sizes": {}, "reverse": False, **members}


BAD: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("source", lambda d: d.update(source="x"), "its source is 'x'; expected 64 hex digits"),
    ("target", lambda d: d.update(target="F" * 64), "expected 64 hex digits; restore the file"),
    ("newer", lambda d: d.update(version=2), "has version 2 of reshard weights receipt, and this reshard reads version 1"),
    ("foreign", lambda d: d.update(format="x"), "is not a receipt of reshard: expected the format 'reshard weights receipt'"),
    ("more", lambda d: d.update(more=1), "is damaged: Object contains unknown field"),
    ("less", lambda d: d.pop("cast"), "is damaged: Object missing required field"),
    ("a map's path", lambda d: d.update(map=given_map(map="/etc/hosts")), "is damaged: Expected `object`, got `str` - at `$.map.map`"),
    ("no map", lambda d: d.update(map=given_map(map={"version": 1, "x": 2})), "is damaged: its map is none ("),
    ("a map's sizes", lambda d: d.update(map=given_map(sizes=5)), "is damaged: Expected `object`, got `int` - at `$.map.sizes`"),
    ("a map's size", lambda d: d.update(map=given_map(sizes={"n": 0})), "is damaged: its map is none (sizes has 'n': 0"),
    ("a map's direction", lambda d: d.update(map=given_map(reverse=1)), "is damaged: Expected `bool`, got `int` - at `$.map.reverse`"),
    ("a map and more", lambda d: d.update(map=given_map(more=1)), "is damaged: Object contains unknown field `more` - at `$.map`"),
    ("half a map", lambda d: d.update(map={"map": MAP}), "is damaged: Object missing required field `reverse` - at `$.map`"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_damage_is_said(
    change: Callable[[dict[str, Any]], object], words: str, checkpoint: Path, cast: Path
) -> None:
    path = cast / "identity.receipt.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(reshard.FormatError) as caught:
        reshard.verify(checkpoint, cast, receipt=cast)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 10**6, b"\xff", b"[]"])
def test_hostile_bytes_are_refused(data: bytes, checkpoint: Path, cast: Path) -> None:
    (cast / "identity.receipt.json").write_bytes(data)
    with pytest.raises(reshard.FormatError, match=r"identity\.receipt\.json"):
        reshard.verify(checkpoint, cast, receipt=cast)


def test_what_it_does_not_go_with(checkpoint: Path, cast: Path) -> None:
    with pytest.raises(reshard.PlanError, match="says how B was made of A, but there is no B"):
        reshard.verify(cast, receipt=cast)
    with pytest.raises(reshard.PlanError, match="a receipt has the rules by which B was made"):
        reshard.verify(checkpoint, cast, receipt=cast, drop=["n$"])
    with pytest.raises(reshard.PlanError, match="an identity and a key are for one checkpoint"):
        reshard.verify(checkpoint, cast, receipt=cast, identity=cast)
    with pytest.raises(reshard.PlanError, match="leave out identity and key"):
        reshard.verify(cast, receipt=cast, identity=cast)
    (cast / "identity.receipt.json").unlink()
    with pytest.raises(reshard.MissingError, match="expected the receipt that a conversion writes"):
        reshard.verify(checkpoint, cast, receipt=cast)


KILLED = """
import os, signal, sys
from reshard.conversion.identity import Identity
import reshard
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
Identity.prove = die
reshard.convert(sys.argv[1], sys.argv[2], identity="compute", drop=["n$"], cast={"float": "bfloat16"})
"""


def test_a_killed_run_ends_with_the_same_files(checkpoint: Path, tmp_path: Path) -> None:
    rules: dict[str, Any] = {"drop": ["n$"], "cast": {"float": "bfloat16"}}
    reshard.convert(checkpoint, tmp_path / "whole", identity="compute", **rules)
    done = subprocess.run([sys.executable, "-c", KILLED, checkpoint, tmp_path / "t"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "t").exists()
    assert reshard.convert(checkpoint, tmp_path / "t", identity="compute", **rules).resumed_bytes
    for name in ("identity.json", "identity.tree", "identity.receipt.json"):
        assert (tmp_path / "t" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_parts_leave_the_same_receipt(checkpoint: Path, cast: Path, tmp_path: Path) -> None:
    for part in ("1/2", "2/2"):
        reshard.convert_part(checkpoint, tmp_path / "t", part=part, identity="compute", **RULES)
    reshard.commit(tmp_path / "t")
    for name in ("identity.json", "identity.receipt.json"):
        assert (tmp_path / "t" / name).read_bytes() == (cast / name).read_bytes()


def test_each_of_several_targets_has_its_own(checkpoint: Path, cast: Path, tmp_path: Path) -> None:
    same = reshard.Target(tmp_path / "same", identity="check")
    other = reshard.Target(tmp_path / "other", identity="compute", **RULES)
    none = reshard.Target(tmp_path / "none", identity="none")
    found = reshard.convert_all(checkpoint, [same, other, none]).reports
    assert [r.identity and r.identity.how for r in found] == ["checked", "computed", None]
    assert receipt_in(tmp_path / "other") == receipt_in(cast)
    assert root_in(tmp_path / "same") == root_in(checkpoint)
    again = reshard.convert_all(checkpoint, [same, other, none]).reports
    assert [r.identity and r.identity.root for r in again] == [
        root_in(checkpoint), root_in(cast), None,
    ]  # fmt: skip


def test_what_was_finished_before_has_what_it_records(
    checkpoint: Path, cast: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reshard.convert(checkpoint, cast, **RULES)
    assert report.already_done
    assert report.identity is not None
    assert (report.identity.root, report.identity.how) == (root_in(cast), "recorded")
    command = ["convert", str(checkpoint), str(cast), "--rename", "^layers=blocks"]
    assert run([*command, "--cast", "float=bfloat16"]) == 0
    assert f"identity as the target records it: {root_in(cast)}\n" in capsys.readouterr().out
    computed = reshard.IdentityReport(root_in(cast), "computed")
    (cast / "identity.json").unlink()
    report = reshard.convert(checkpoint, cast, identity="compute", **RULES)
    assert report.identity == computed
    assert report.warnings == (
        f"{str(cast)!r} was finished before, without an identity; record it with reshard identify --write, or make the target again "
        "(overwrite)",
    )
    assert reshard.convert(checkpoint, cast, **RULES).warnings == ()
