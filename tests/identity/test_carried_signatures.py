"""A signature goes with the root that it signs: ``convert`` copies it, and says of which keys it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from tests.emulators.no_clock import no_clock
from tests.signing_keys import ED25519, make_key

NAME = "identity.dsse.json"


@pytest.fixture
def signer(checkpoint: Path, tmp_path: Path) -> str:
    """The id of the key that signed ``checkpoint``."""
    found = reshard.sign(checkpoint, make_key(tmp_path, "release", *ED25519)).signer
    assert found is not None
    return found


@pytest.mark.parametrize("how", [None, "carry", "check"])
@pytest.mark.parametrize("to", ["orbax", "dcp"])
def test_it_is_copied_with_the_root(
    how: Any, to: Any, checkpoint: Path, signer: str, tmp_path: Path
) -> None:
    report = reshard.convert(checkpoint, tmp_path / "t", identity=how, to=to)
    assert report.identity is not None and report.identity.signers == (signer,)
    assert report.to_dict()["identity"]["signers"] == [signer]
    assert (tmp_path / "t" / NAME).read_bytes() == (checkpoint / NAME).read_bytes()
    assert not reshard.verify(tmp_path / "t", key=tmp_path / "release.pub.pem").differences
    again = reshard.convert(checkpoint, tmp_path / "t", identity=how, to=to).identity
    assert again is not None and again.signers == (signer,)


@pytest.mark.usefixtures("signer")
@pytest.mark.parametrize(
    "more",
    [{"identity": "compute"}, {"drop": ["n$"]}, {"rename": [("^embed", "tok")]}, {"identity": "none"}],
    ids=["computed", "fewer tensors", "other names", "none"],
)  # fmt: skip
def test_it_is_not_copied_elsewhere(more: Any, checkpoint: Path, tmp_path: Path) -> None:
    report = reshard.convert(checkpoint, tmp_path / "t", **more)
    assert report.identity is None or report.identity.signers == ()
    assert not (tmp_path / "t" / NAME).exists()
    assert report.warnings == ()


@pytest.mark.usefixtures("signer")
def test_a_file_has_no_place_for_it(checkpoint: Path, tmp_path: Path) -> None:
    report = reshard.convert(checkpoint, tmp_path / "one.safetensors")
    assert report.identity is not None and report.identity.signers == ()
    (checkpoint / NAME).write_text("{")
    assert reshard.convert(checkpoint, tmp_path / "two.safetensors").warnings == ()


@pytest.mark.usefixtures("signer")
def test_a_damaged_one_is_not_copied(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / NAME).write_text("{")
    (warning,) = reshard.plan(checkpoint, tmp_path / "t").warnings
    assert warning.startswith(
        f"no signature is carried: {checkpoint / NAME} is damaged: it is no DSSE envelope ("
    )
    report = reshard.convert(checkpoint, tmp_path / "t")
    assert report.warnings == (warning,)
    assert report.identity is not None and report.identity.signers == ()
    assert not (tmp_path / "t" / NAME).exists()


@pytest.mark.usefixtures("signer")
def test_one_of_another_root_is_not_copied(checkpoint: Path, tmp_path: Path) -> None:
    reshard.save(tmp_path / "other", {"w": reshard.restore(checkpoint)["embed"]})
    other = reshard.sign(tmp_path / "other", tmp_path / "release.pem").root
    shutil.copy(tmp_path / "other" / NAME, checkpoint)
    report = reshard.convert(checkpoint, tmp_path / "t", identity="carry")
    assert report.identity is not None
    assert report.warnings == (
        f"no signature is carried: {checkpoint / NAME} is of the root {other}, and the source's is {report.identity.root}; sign the source "
        "anew (reshard sign), or remove that file",
    )
    assert not (tmp_path / "t" / NAME).exists()


def test_a_finished_target_is_said_to_be_signed_by_what_signs_its_root(
    checkpoint: Path, signer: str, tmp_path: Path
) -> None:
    reshard.convert(checkpoint, tmp_path / "t")
    for how in ("carry", "compute", "check"):
        found = reshard.convert(checkpoint, tmp_path / "t", identity=how).identity
        assert found is not None and found.signers == (signer,)
    (tmp_path / "t" / NAME).write_text("{")
    found = reshard.convert(checkpoint, tmp_path / "t").identity
    assert found is not None and found.signers == ()


def test_parts_copy_it(checkpoint: Path, signer: str, tmp_path: Path) -> None:
    for part in ("1/2", "2/2"):
        reshard.convert_part(checkpoint, tmp_path / "t", part=part)
    found = reshard.commit(tmp_path / "t").identity
    assert found is not None and found.signers == (signer,)
    assert (tmp_path / "t" / NAME).exists()


def test_the_command_says_it(
    checkpoint: Path, signer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(checkpoint), str(tmp_path / "t"), "--identity", "carry"]
    assert run(command) == 0
    assert f"\nsigned with the key {signer}; not verified\n" in capsys.readouterr().out
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"]["signers"] == [signer]
    (tmp_path / "t" / NAME).write_text(
        (tmp_path / "t" / NAME).read_text().replace(signer, "\\u001b" * 3)
    )
    assert run(command) == 0
    assert "\x1b\x1b\x1b" not in capsys.readouterr().out


def test_in_a_bucket_it_takes_one_request_more(
    checkpoint: Path, signer: str, s3_bucket: Any, tmp_path: Path
) -> None:
    puts = []
    for name in ("signed", "unsigned"):
        with no_clock():
            report = reshard.convert(checkpoint, f"{s3_bucket.url}/{name}", identity="carry")
        assert report.requests is not None
        assert report.requests.planned.put >= report.requests.actual.put
        puts.append(report.requests.actual.put)
        (checkpoint / NAME).unlink(missing_ok=True)
    assert puts[0] - puts[1] == 1
    again = reshard.convert(f"{s3_bucket.url}/signed", tmp_path / "back", identity="carry")
    assert again.identity is not None and again.identity.signers == (signer,)
