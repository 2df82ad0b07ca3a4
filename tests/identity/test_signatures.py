"""Signatures: what is signed, and what no longer verifies."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.identity.envelope import PAYLOAD_TYPE, _signed_bytes, recorded_signers
from reshard.identity.keys import read_private_key
from reshard.storage.location import locate
from tests.signing_keys import ED25519, P256, make_key


@pytest.fixture(params=[ED25519, P256], ids=["ed25519", "p256"])
def signed(request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path) -> Path:
    reshard.sign(checkpoint, make_key(tmp_path, "release", *request.param))
    return checkpoint


def test_weights_are_verified_by_a_key(signed: Path, tmp_path: Path) -> None:
    key = tmp_path / "release.pub.pem"
    found = reshard.verify(signed, key=key)
    assert found.identity is not None and not found.differences
    assert found.identity.root == found.identity.expected == reshard.identify(signed).root
    reshard.convert(signed, tmp_path / "served", to="safetensors", drop=["n$"])
    other = reshard.verify(tmp_path / "served", identity=signed, key=key)
    assert other.differences == 1  # a tensor was dropped
    (dropped,) = [t for t in other.tensors if t.is_difference]
    assert (dropped.name, dropped.status) == ("layers/n", "only in B")
    assert dropped.detail == "the identity has it, and the checkpoint does not"


def test_the_envelope_is_dsse_of_an_in_toto_statement(signed: Path) -> None:
    envelope = json.loads((signed / "identity.dsse.json").read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:reshard:weights-identity:v1"
    (subject,) = statement["subject"]
    assert subject["digest"] == {"reshardWeightsIdentityV1": reshard.identify(signed).root}
    assert len(envelope["signatures"][0]["keyid"]) == 64


def test_openssl_agrees_with_the_signature(checkpoint: Path, tmp_path: Path) -> None:
    import subprocess

    reshard.sign(checkpoint, make_key(tmp_path, "release", *ED25519))
    envelope = json.loads((checkpoint / "identity.dsse.json").read_text())
    kind, payload = envelope["payloadType"], base64.b64decode(envelope["payload"])
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    (tmp_path / "signed").write_bytes(signed)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    said = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "release.pub.pem", "-rawin",
            "-in", "signed", "-sigfile", "sig"]  # fmt: skip
    subprocess.run(said, check=True, cwd=tmp_path, capture_output=True)


def test_changed_weights_do_not_verify(signed: Path, tmp_path: Path) -> None:
    tree = reshard.restore(signed)
    tree["embed"] = tree["embed"].copy()
    tree["embed"].view("u4")[0, 0] ^= 1
    reshard.save(tmp_path / "other", tree)
    found = reshard.verify(tmp_path / "other", identity=signed, key=tmp_path / "release.pub.pem")
    assert [t.name for t in found.tensors if t.is_difference] == ["embed"]
    assert found.tensors[0].detail == "its bits are not those that were identified"
    assert not found.to_dict()["equal"]


def envelope_of(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "identity.dsse.json"
    envelope = json.loads(path.read_text())
    change(envelope)
    path.write_text(json.dumps(envelope))


def other_payload(envelope: dict[str, Any]) -> None:
    payload = base64.b64decode(envelope["payload"]).replace(b'"tensors":3', b'"tensors":4')
    envelope["payload"] = base64.b64encode(payload).decode()


@pytest.mark.parametrize(
    "change",
    [
        other_payload,
        lambda e: e.update(payloadType="text/plain"),
        lambda e: e.update(signatures=[]),
    ],
    ids=["payload", "type", "none"],
)
def test_what_was_not_signed_is_refused_with_exit_code_3(
    change: Callable[[dict[str, Any]], object], signed: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    envelope_of(signed, change)
    key = str(tmp_path / "release.pub.pem")
    with pytest.raises(reshard.VerificationError, match="is not signed with this key"):
        reshard.verify(signed, key=key)
    assert run(["verify", str(signed), "--key", key]) == 3
    assert "is not signed with this key" in capsys.readouterr().err


@pytest.mark.parametrize("keyid", ["left out", None, ""])
def test_an_envelope_may_be_in_the_base64_of_urls_and_name_no_key(
    keyid: str | None, signed: Path, tmp_path: Path
) -> None:
    def change(envelope: dict[str, Any]) -> None:
        (signature,) = envelope["signatures"]
        for of, name in ((envelope, "payload"), (signature, "sig")):
            of[name] = of[name].replace("+", "-").replace("/", "_")
        if keyid == "left out":
            del signature["keyid"]
        else:
            signature["keyid"] = keyid

    for _ in range(
        20
    ):  # until the signature has a letter that differs; P-256 signs differently each time
        if {"+", "/"} & set(
            json.loads((signed / "identity.dsse.json").read_text())["signatures"][0]["sig"]
        ):
            break
        reshard.sign(signed, tmp_path / "release.pem")
    envelope_of(signed, change)
    assert not reshard.verify(signed, key=tmp_path / "release.pub.pem").differences
    assert recorded_signers(locate(signed)) == ("",)
    make_key(tmp_path, "other", *ED25519)
    with pytest.raises(reshard.VerificationError, match="of the keys one without an id; check"):
        reshard.verify(signed, key=tmp_path / "other.pub.pem")


def test_another_key_is_refused(signed: Path, tmp_path: Path) -> None:
    make_key(tmp_path, "other", *ED25519)
    with pytest.raises(reshard.VerificationError, match="of the keys"):
        reshard.verify(signed, key=tmp_path / "other.pub.pem")


def test_a_root_that_was_not_signed_is_refused(signed: Path, tmp_path: Path) -> None:
    key = tmp_path / "release.pub.pem"
    with pytest.raises(reshard.VerificationError, match=r"has signed the root .*, but 0000"):
        reshard.verify(signed, identity="0" * 64, key=key)
    root = reshard.identify(signed).root
    assert not reshard.verify(signed, identity=root.upper(), key=key).differences


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.update(payload="%"), "it is no DSSE envelope"),
        (lambda e: e.pop("signatures"), "it is no DSSE envelope"),
    ],
)
def test_a_damaged_envelope_is_said(
    change: Callable[[dict[str, Any]], object], words: str, checkpoint: Path, tmp_path: Path
) -> None:
    reshard.sign(checkpoint, make_key(tmp_path, "release", *ED25519))
    envelope_of(checkpoint, change)
    with pytest.raises(reshard.CorruptError, match=words):
        reshard.verify(checkpoint, key=tmp_path / "release.pub.pem")


def statement_of(root: str) -> dict[str, Any]:
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:reshard:weights-identity:v1",
        "subject": [{"name": "weights", "digest": {"reshardWeightsIdentityV1": root}}],
    }


def sign_there(folder: Path, key: Path, payload: object, kind: str = PAYLOAD_TYPE) -> None:
    """Signs any payload, as another program may."""
    data = json.dumps(payload).encode()
    signature = read_private_key(locate(key)).sign(_signed_bytes(kind, data))
    envelope = {
        "payload": base64.b64encode(data).decode(),
        "payloadType": kind,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }
    (folder / "identity.dsse.json").write_text(json.dumps(envelope))


def test_a_signed_root_may_have_upper_case(checkpoint: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path, "release", *ED25519)
    root = reshard.identify(checkpoint).root
    sign_there(checkpoint, key, statement_of(root.upper()))
    assert not reshard.verify(checkpoint, key=tmp_path / "release.pub.pem").differences
    assert not reshard.verify(
        checkpoint, key=tmp_path / "release.pub.pem", identity=root
    ).differences


def test_statements_of_others_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path, "release", *ED25519)
    for payload, kind, words in (
        ({"_type": "https://in-toto.io/Statement/v1", "predicateType": "slsa"}, PAYLOAD_TYPE, "signs a statement of 'slsa'"),
        ({"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:reshard:weights-identity:v1"}, PAYLOAD_TYPE, "signs 0 roots; expected one"),
        (statement_of("x" * 64), PAYLOAD_TYPE, f"signs the root '{'x' * 64}'; expected 64 hex digits"),
        (statement_of("0" * 63), PAYLOAD_TYPE, f"signs the root '{'0' * 63}'; expected 64 hex digits"),
        ([], PAYLOAD_TYPE, "signs no statement of in-toto"),
        ({}, "text/plain", "is an envelope of 'text/plain'"),
    ):  # fmt: skip
        sign_there(checkpoint, key, payload, kind)
        with pytest.raises(reshard.FormatError) as caught:
            reshard.verify(checkpoint, key=tmp_path / "release.pub.pem")
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (["-algorithm", "RSA"], "is of the kind RSA; expected Ed25519 or ECDSA on P-256"),
        (["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"], "is of the kind ECDSA on secp384r1"),
        ([*ED25519, "-aes256", "-pass", "pass:secret"], "is encrypted; write it without a password"),
    ],
    ids=["rsa", "p384", "encrypted"],
)  # fmt: skip
def test_other_keys_are_refused_by_kind(
    kind: list[str], words: str, checkpoint: Path, tmp_path: Path
) -> None:
    import subprocess

    private = tmp_path / "k.pem"
    subprocess.run(["openssl", "genpkey", *kind, "-out", private], check=True, capture_output=True)
    with pytest.raises(reshard.FormatError) as caught:
        reshard.sign(checkpoint, private)
    assert words in str(caught.value)
    assert not (checkpoint / "identity.dsse.json").exists()


@pytest.mark.parametrize("kind", [ED25519, P256], ids=["ed25519", "p256"])
@pytest.mark.parametrize("first", ["private", "public"])
def test_a_private_key_may_have_its_public_one_beside_it(
    first: str, kind: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    private = make_key(tmp_path, "release", *kind)
    texts = [private.read_text(), (tmp_path / "release.pub.pem").read_text()]
    both = tmp_path / "both.pem"
    both.write_text("".join(texts if first == "private" else reversed(texts)))
    reshard.sign(checkpoint, both)
    assert not reshard.verify(checkpoint, key=tmp_path / "release.pub.pem").differences
    with pytest.raises(reshard.FormatError, match="holds a private key; checking needs the public"):
        reshard.verify(checkpoint, key=both)


def test_keys_are_not_taken_for_one_another(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("hello")
    for path, words in (
        ("release.pem", "holds a private key; checking needs the public one"),
        ("no.pem", "does not hold a public key in PEM"),
    ):
        with pytest.raises(reshard.FormatError, match=words):
            reshard.verify(signed, key=tmp_path / path)
    for path, words in (
        ("release.pub.pem", "holds a public key; signing needs the private one"),
        ("no.pem", "does not hold a private key in PEM"),
    ):
        with pytest.raises(reshard.FormatError, match=words):
            reshard.sign(signed, tmp_path / path)


def test_a_new_identity_keeps_the_signature_of_unchanged_weights(
    signed: Path, tmp_path: Path
) -> None:
    before = (signed / "identity.dsse.json").read_bytes()
    reshard.identify(signed, write=True)
    assert (signed / "identity.dsse.json").read_bytes() == before
    assert not reshard.verify(signed, key=tmp_path / "release.pub.pem").differences


@pytest.mark.parametrize("left", ["signature", "damage"])
def test_a_new_identity_removes_the_signature_of_other_weights(
    left: str, signed: Path, tmp_path: Path
) -> None:
    if left == "signature":
        tree = reshard.restore(signed)
        reshard.save(tmp_path / "other", {**tree, "embed": tree["embed"] + 1})
        shutil.copy(signed / "identity.dsse.json", tmp_path / "other")
        signed = tmp_path / "other"
    else:
        (signed / "identity.dsse.json").write_text("{")
    reshard.identify(signed, write=True)
    assert (signed / "identity.json").exists()
    assert not (signed / "identity.dsse.json").exists()


def test_a_missing_package_is_said(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    words = (
        r"^signatures need the package cryptography, which is not installed; run pip install "
        r"'.\[identity\]'"
    )
    for call in (
        lambda: reshard.sign(signed, tmp_path / "release.pem"),
        lambda: reshard.verify(signed, key=tmp_path / "release.pub.pem"),
    ):
        with pytest.raises(reshard.MissingPackageError, match=words):
            call()


def test_nothing_to_compare_with_is_said(tmp_path: Path, checkpoint: Path) -> None:
    make_key(tmp_path, "release", *ED25519)
    with pytest.raises(reshard.MissingError, match="expected the signature of an identity"):
        reshard.verify(checkpoint, key=tmp_path / "release.pub.pem")
    (tmp_path / "empty").mkdir()
    with pytest.raises(reshard.MissingError, match="expected a root of 64 hex digits, or a folder"):
        reshard.verify(checkpoint, identity=tmp_path / "empty")
    with pytest.raises(reshard.PlanError, match="an identity and a key are for one checkpoint"):
        reshard.verify(checkpoint, checkpoint, identity="0" * 64)


def test_a_root_alone_tells_equal_or_not(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = reshard.identify(checkpoint).root
    assert run(["verify", str(checkpoint), "--identity", root]) == 0
    assert "verified: 3 of 3 tensors" in capsys.readouterr().out
    assert run(["verify", str(checkpoint), "--identity", "0" * 64]) == 3
    out = capsys.readouterr().out
    assert f"expected: {'0' * 64}" in out
    assert "which tensors differ is not known" in out
    assert run(["verify", str(checkpoint), "--identity", "0" * 64, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["identity"] == {"root": root, "expected": "0" * 64, "signer": None}
    assert (document["equal"], document["differences"]) == (False, 1)


def test_the_command_signs(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = make_key(tmp_path, "release", *ED25519)
    assert run(["sign", str(checkpoint), "--key", str(key), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "signed 3 tensors" in out and "signer: " in out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "identity.dsse.json", "identity.json", "identity.tree",
    ]  # fmt: skip
    assert run(["sign", str(checkpoint), "--key", str(key), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == "sign"
