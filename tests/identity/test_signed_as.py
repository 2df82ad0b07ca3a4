"""What a signature says of the weights beside their root: an older checkpoint with its own signature is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.identity.envelope import PAYLOAD_TYPE, SignedAs, _signed_bytes, check_signed_as
from reshard.identity.keys import read_private_key
from reshard.storage.location import locate
from tests.signing_keys import ED25519, make_key


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path, "release", *ED25519)


def statement_in(folder: Path) -> dict[str, Any]:
    envelope = json.loads((folder / "identity.dsse.json").read_text())
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


def test_an_older_checkpoint_with_its_own_signature_is_refused(
    checkpoint: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "release.pub.pem"
    assert run(["sign", str(checkpoint), "--key", str(key), "--name", "llama", "--version", "999", "--quiet"]) == 0  # fmt: skip
    said = statement_in(checkpoint)["predicate"]
    assert (said["name"], said["version"]) == ("llama", "999")
    verify = ["verify", str(checkpoint), "--key", str(public)]
    assert run(verify) == 0
    assert f"signed:   llama, 999, {said['signed_at']}" in capsys.readouterr().out
    assert run([*verify, "--name", "llama", "--min-version", "999", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"]["version"] == "999"
    assert run([*verify, "--name", "llama", "--min-version", "1000"]) == 3
    assert "the weights are signed as 'llama', the version '999', at " in capsys.readouterr().err
    assert reshard.verify(checkpoint, key=public, name="llama", min_version=8).differences == 0


NEWER = "they may be older ones; only whole numbers have an order; take the newer checkpoint, or sign it with its version"


@pytest.mark.parametrize(
    ("said", "wanted", "text"),
    [
        (SignedAs("llama", "10"), SignedAs("llama", "9"), None),
        (SignedAs("llama", "v1"), SignedAs("llama", "v1"), None),
        (SignedAs("llama"), SignedAs("llama"), None),
        (SignedAs("llama", "10"), SignedAs(), None),
        (SignedAs(), SignedAs(), None),
        (SignedAs(), SignedAs("llama"), "the weights are signed without a name, but 'llama' was asked for; take the signature that was made for it (reshard sign --name)"),
        (SignedAs("qwen", "12"), SignedAs("llama", "9"), "the weights are signed as 'qwen', but 'llama' was asked for; take the signature that was made for it (reshard sign --name)"),
        (SignedAs("llama"), SignedAs("llama", "9"), f"the weights are signed as 'llama', no version, at an unknown time, but '9' or later was asked for: {NEWER}"),
        (SignedAs("llama", "v10", "T"), SignedAs("llama", "v9"), f"the weights are signed as 'llama', the version 'v10', at T, but 'v9' or later was asked for: {NEWER}"),
    ],
)  # fmt: skip
def test_what_is_reached(said: SignedAs, wanted: SignedAs, text: str | None) -> None:
    if text is None:
        check_signed_as(wanted, said)
        return
    with pytest.raises(reshard.VerificationError) as error:
        check_signed_as(wanted, said)
    assert str(error.value) == text


def test_a_signature_of_before_still_verifies(checkpoint: Path, key: Path, tmp_path: Path) -> None:
    """One whose statement says no name, no version and no time."""
    reshard.sign(checkpoint, key)
    statement, file = statement_in(checkpoint), checkpoint / "identity.dsse.json"
    del statement["predicate"]["signed_at"]
    payload = json.dumps(statement).encode()
    signature = read_private_key(locate(str(key))).sign(_signed_bytes(PAYLOAD_TYPE, payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }
    file.write_text(json.dumps(envelope))
    public = tmp_path / "release.pub.pem"
    assert reshard.verify(checkpoint, key=public).identity.signed_at == ""
    with pytest.raises(reshard.VerificationError, match="signed without a name"):
        reshard.verify(checkpoint, key=public, name="llama")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_version": 9}, "the versions of one model have an order, those of several have none; give the name too (name)"),
        ({"name": "a\n"}, r"name is 'a\n'; expected a text of 1 to 200 printable characters, or a whole number below 2^64; or leave it out"),
        ({"name": "a", "min_version": -1}, "min_version is -1; expected a text of 1 to 200 printable characters, or a whole number below 2^64; or leave it out"),
        ({"name": "a", "key": None}, "a name and a version stand in a signature, which only a key can check; give the public key (key)"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(
    checkpoint: Path, key: Path, options: dict[str, Any], text: str
) -> None:
    given = {"key": key.with_name("release.pub.pem"), **options}
    with pytest.raises(reshard.PlanError) as error:
        reshard.verify(checkpoint, **given)
    assert str(error.value) == text


def test_what_cannot_be_signed(checkpoint: Path, key: Path) -> None:
    with pytest.raises(reshard.PlanError) as error:
        reshard.sign(checkpoint, key, version=7)
    assert str(error.value) == "a version is one of a model; give its name too (name)"
    with pytest.raises(reshard.PlanError, match="version is True; expected a text"):
        reshard.sign(checkpoint, key, name="llama", version=True)


@pytest.mark.parametrize("how", ["key", "identity"])
def test_damage_is_told_by_tensor(
    how: str, checkpoint: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``verify`` without a root tells it: exit code 3, and a table."""
    reshard.sign(checkpoint, key, out=tmp_path / "out")
    root = reshard.identify(checkpoint).root
    data = next(p for p in sorted(checkpoint.rglob("*")) if p.is_file() and "embed" in str(p) and p.name != "zarr.json")  # fmt: skip
    data.write_bytes(data.read_bytes()[:-1])
    given = {"key": ["--key", str(tmp_path / "release.pub.pem"), "--identity", str(tmp_path / "out")], "identity": ["--identity", root]}  # fmt: skip
    assert run(["verify", str(checkpoint)]) == 3
    alone = capsys.readouterr().out
    assert run(["verify", str(checkpoint), *given[how]]) == 3
    out = capsys.readouterr().out
    rows = [line for line in alone.splitlines() if "embed" in line]
    assert rows and all(row in out for row in rows)
    assert "root:     unknown" in out and f"expected: {root}" in out
    assert "of 3 tensors" in out.splitlines()[-2] + out.splitlines()[-1]
    assert run(["verify", str(checkpoint), *given[how], "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["identity"]["root"] is None
