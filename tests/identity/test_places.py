"""The folder of an identity: what is in the way is refused before anything is read, and what is removed is said."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.cli.app import run
from reshard.storage.local.store import LocalStore
from tests.signing_keys import ED25519, make_key

REFUSED: list[tuple[str, str, Any, str]] = [
    ("foreign", "identity.json", {"persona": "Bob"}, "is not an identity of reshard: expected the format 'reshard weights identity', found ''"),
    ("newer", "identity.json", {"format": "reshard weights identity", "version": 2}, "has version 2 of reshard weights identity, and this reshard reads version 1"),
    ("receipt", "identity.receipt.json", {"total": "9 EUR"}, "is not a receipt of reshard: expected the format 'reshard weights receipt', found ''"),
    ("signature", "identity.dsse.json", {"payload": base64.b64encode(b"{}").decode(), "payloadType": "text/plain", "signatures": []}, "is an envelope of 'text/plain'; expected 'application/vnd.in-toto+json'"),
]  # fmt: skip


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows when elements are read."""
    from reshard.identity import identification

    seen: list[int] = []
    original = identification.identity_of
    monkeypatch.setattr(
        identification, "identity_of", lambda *args: (seen.append(1), original(*args))[1]
    )
    return seen


@pytest.mark.parametrize(
    ("name", "content", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_files_that_others_wrote_are_refused(
    name: str, content: Any, words: str, checkpoint: Path, tmp_path: Path, reads: list[int]
) -> None:
    (checkpoint / "identity.json").unlink()
    file = checkpoint / name
    file.write_text(json.dumps(content))
    key = make_key(tmp_path, "release", *ED25519)
    for call in (
        lambda: reshard.identify(checkpoint, write=True),
        lambda: reshard.sign(checkpoint, key),
        lambda: reshard.identify(checkpoint, out=checkpoint),
    ):
        with pytest.raises(reshard.FormatError) as caught:
            call()
        assert str(caught.value) == f"{file} {words}; move it away, or name another folder (out)"
    assert not reads
    assert json.loads(file.read_text()) == content
    reshard.identify(checkpoint, out=tmp_path / "out")
    assert reads


def test_a_folder_of_the_name_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "identity.json").mkdir(parents=True)
    words = r"identity.json should be a plain file with metadata, but is not; move it away, or name"
    with pytest.raises(reshard.FormatError, match=words):
        reshard.identify(checkpoint, out=tmp_path / "out")


def test_a_damaged_one_is_replaced(checkpoint: Path) -> None:
    before = (checkpoint / "identity.json").read_bytes()
    (checkpoint / "identity.json").write_text("{")
    assert reshard.identify(checkpoint, write=True).warnings == ()
    assert (checkpoint / "identity.json").read_bytes() == before


def test_a_conversion_that_nobody_asked_to_carry_says_how_to_leave_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "identity.json").write_text('{"persona": "Bob"}')
    words = (
        r'choose the file that reshard identify wrote, or convert without it \(identity="none"\)$'
    )
    with pytest.raises(reshard.FormatError, match=words):
        reshard.convert(checkpoint, tmp_path / "t")
    assert run(["convert", str(checkpoint), str(tmp_path / "t")]) == 1
    assert "or convert without it (--identity none)\n" in capsys.readouterr().err
    with pytest.raises(reshard.FormatError, match=r"that reshard identify wrote$"):
        reshard.convert(checkpoint, tmp_path / "t", identity="carry")
    assert reshard.convert(checkpoint, tmp_path / "t", identity="none").identity is None


def test_what_is_removed_is_said(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reshard.sign(checkpoint, make_key(tmp_path, "release", *ED25519))
    reshard.convert(checkpoint, tmp_path / "made", drop=["n$"])
    reshard.identify(checkpoint, write=True, sha256=True)
    other = tmp_path / "other"
    tree = reshard.restore(checkpoint)
    reshard.save(other, {**tree, "embed": tree["embed"] + 1})
    for name in ("identity.json", "identity.dsse.json", "sha256.json"):
        shutil.copy(checkpoint / name, other)
    shutil.copy(tmp_path / "made" / "identity.receipt.json", other)
    assert run(["identify", str(other), "--write"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name in ("identity.dsse.json", "identity.receipt.json", "sha256.json"):
        assert f"removed {other / name}: it was of other weights" in said
        assert not (other / name).exists()
    (other / "identity.receipt.json").write_text("{")
    assert reshard.identify(other, write=True).warnings == (
        f"removed {other / 'identity.receipt.json'}: it could not be read",
    )


@pytest.mark.parametrize("content", ['{"a": "b"}', '{"a": 1}', "[]", "text", '{"a": {}}'])
def test_another_sha256_json_is_left_alone(
    content: str, checkpoint: Path, reads: list[int]
) -> None:
    (checkpoint / "identity.json").write_text("{")
    file = checkpoint / "sha256.json"
    file.write_text(content)
    assert reshard.identify(checkpoint, write=True).warnings == ()
    assert file.read_text() == content
    reads.clear()
    with pytest.raises(reshard.FormatError) as caught:
        reshard.identify(checkpoint, write=True, sha256=True)
    assert str(caught.value) == (
        f"{file} is not the SHA-256s of tensors: expected 64 hex digits by name; move it away, or name another folder (out)"
    )
    assert not reads


def test_a_place_that_cannot_be_written_is_said_before_anything_is_read(
    checkpoint: Path, tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses: root, who may run the tests, can write to any folder."""
    key = make_key(tmp_path, "release", *ED25519)
    before = sorted(checkpoint.rglob("*"))

    def refused(*_: Any) -> str:
        raise reshard.StorageError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "write", refused)
        for call in (
            lambda: reshard.identify(checkpoint, out=tmp_path / "out"),
            lambda: reshard.identify(checkpoint, write=True),
            lambda: reshard.sign(checkpoint, key),
        ):
            with pytest.raises(reshard.StorageError, match="read-only"):
                call()
    assert not reads
    assert sorted(checkpoint.rglob("*")) == before
    reshard.identify(checkpoint, out=tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "identity.json",
        "identity.tree",
    ]


def test_no_probe_is_left_in_a_bucket(checkpoint: Path, s3_bucket: Any) -> None:
    reshard.identify(checkpoint, out=f"{s3_bucket.url}/out")
    reshard.convert(checkpoint, f"{s3_bucket.url}/ckpt", identity="none")
    reshard.identify(f"{s3_bucket.url}/ckpt", write=True)
    names = [found["path"] for page in s3_bucket.store().list() for found in page]
    assert sorted(name for name in names if "identity" in name) == [
        "ckpt/identity.json",
        "ckpt/identity.tree",
        "out/identity.json",
        "out/identity.tree",
    ]
