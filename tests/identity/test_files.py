"""The files of an identity: what is written, what counts for nothing, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.cli.app import run
from reshard.conversion.conversion_key import source_state
from reshard.identity.identity_file import read_identity
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity
from reshard.storage.location import locate


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "identity.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_what_is_read_is_what_was_computed(checkpoint: Path) -> None:
    found, read = reshard.identify(checkpoint), read_identity(locate(checkpoint), with_tree=True)
    assert read is not None
    assert (read.root, read.contents, read.rest) == (found.root, found.contents, found.rest)
    assert dict(read.tensors) == dict(found.tensors)
    assert list(read.tensors) == sorted(read.tensors)


def test_the_same_weights_give_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "other", ocdbt=True, chunk_bytes=9000, identity="none")
    reshard.identify(tmp_path / "other", out=tmp_path / "out")
    for name in ("identity.json", "identity.tree"):
        assert (tmp_path / "out" / name).read_bytes() == (checkpoint / name).read_bytes()
    assert not (tmp_path / "other" / "identity.json").exists()


def test_they_are_no_part_of_the_checkpoint(checkpoint: Path) -> None:
    before = source_state(locate(checkpoint))
    for name in ("identity.json", "identity.tree"):
        (checkpoint / name).unlink()
    assert source_state(locate(checkpoint)) == before
    reshard.identify(checkpoint, write=True, sha256=True)
    assert source_state(locate(checkpoint)) == before
    found = reshard.verify(checkpoint)
    assert not found.differences
    assert not any("identity" in warning or "sha256" in warning for warning in found.warnings)
    assert not any("identity" in file.name for file in found.files)


def test_a_model_folder_does_not_hand_them_on(checkpoint: Path, tmp_path: Path) -> None:
    reshard.convert(checkpoint, tmp_path / "hf", to="safetensors", drop=["n$"], identity="compute")
    assert (tmp_path / "hf" / "identity.json").exists()
    cast = {"float": "bfloat16"}
    reshard.convert(tmp_path / "hf", tmp_path / "cast", carry=True, cast=cast)
    assert not (tmp_path / "cast" / "identity.json").exists()


def test_sha256_of_each_tensor(checkpoint: Path, tmp_path: Path) -> None:
    import hashlib

    import numpy as np

    from tests.signing_keys import tree

    found = reshard.identify(checkpoint, out=tmp_path / "out", sha256=True)
    assert found.written[-1].endswith("sha256.json")
    digests = json.loads((tmp_path / "out" / "sha256.json").read_text())
    assert digests["embed"] == hashlib.sha256(tree()["embed"].tobytes()).hexdigest()
    assert digests["layers/n"] == hashlib.sha256(np.int32(7).tobytes()).hexdigest()


BAD: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("root", lambda d: d.update(root="0" * 64), "its root is 000000"),
    ("root's form", lambda d: d.update(root="x"), "its root is 'x'; expected 64 hex digits"),
    ("top", lambda d: d["tensors"][0].update(top="1" * 64), "but its tensors give"),
    ("top's form", lambda d: d["tensors"][0].update(top="f"), "the hashes of 'embed' are not hex digits"),
    ("shape", lambda d: d["tensors"][0].update(shape=[-1]), "the shape of 'embed' is"),
    ("product", lambda d: d["tensors"][0].update(shape=[1 << 30, 1 << 30]), "the shape of 'embed' is (1073741824, 1073741824)"),
    ("beside 0", lambda d: d["tensors"][0].update(shape=[0, 1 << 62]), "the shape of 'embed' is (0, 4611686018427387904)"),
    ("twice", lambda d: d["tensors"].append(d["tensors"][0]), "a tensor is listed twice"),
    ("newer", lambda d: d.update(version=2), "has version 2 of reshard weights identity, and this reshard reads version 1"),
    ("foreign", lambda d: d.update(format="model manifest"), "is not an identity of reshard: expected the format"),
    ("more", lambda d: d.update(more=1), "is damaged: Object contains unknown field"),
    ("no tensors", lambda d: d.pop("tensors"), "is damaged: Object missing required field"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_damage_is_said(
    change: Callable[[dict[str, Any]], object], words: str, checkpoint: Path, tmp_path: Path
) -> None:
    edited(checkpoint, change)
    with pytest.raises(reshard.FormatError) as caught:
        reshard.verify(checkpoint, identity=checkpoint)
    assert words in str(caught.value)
    assert str(checkpoint / "identity.json") in str(caught.value)
    with pytest.raises(reshard.FormatError) as caught:
        reshard.convert(checkpoint, tmp_path / "t")
    assert words in str(caught.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "it has 361 bytes, but the tensors of identity.json have"),
        (lambda data: b"x" + data[1:], "it does not begin as version 1 does"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "do not give its top"),
        (None, "is missing"),
    ],
    ids=["short", "head", "bit", "missing"],
)
def test_a_damaged_tree_is_said(
    change: Callable[[bytes], bytes] | None, words: str, checkpoint: Path, tmp_path: Path
) -> None:
    path = checkpoint / "identity.tree"
    data = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(data))
    words = words.replace("361", str(len(data) - 1))
    with pytest.raises(reshard.CorruptError) as caught:
        reshard.convert(checkpoint, tmp_path / "t")
    assert words in str(caught.value)
    assert "reshard identify" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "bytes, but the tensors of identity.json have"),
        (lambda _: b"", "it does not begin as version 1 does"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "do not give its top"),
        (lambda data: data.replace(b"version 1", b"version 2"), "has version 2 of the tree of a reshard weights identity"),
    ],
    ids=["short", "empty", "bit", "newer"],
)  # fmt: skip
def test_a_damaged_tree_beside_a_good_identity_is_said_by_verify(
    change: Callable[[bytes], bytes], words: str, checkpoint: Path
) -> None:
    path = checkpoint / "identity.tree"
    data = path.read_bytes()
    path.write_bytes(change(data))
    for expected in (checkpoint, reshard.identify(checkpoint).root):
        with pytest.raises(reshard.FormatError) as caught:
            reshard.verify(checkpoint, identity=expected)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
    path.unlink()
    assert not reshard.verify(checkpoint, identity=checkpoint).differences


def test_files_of_other_weights_are_removed(checkpoint: Path, tmp_path: Path) -> None:
    """A receipt and SHA-256s stay beside the weights that they are of, and no others."""
    beside = ("identity.receipt.json", "sha256.json")
    reshard.convert(checkpoint, tmp_path / "t", identity="compute", drop=["n$"])
    reshard.identify(tmp_path / "t", write=True, sha256=True)
    kept = [(tmp_path / "t" / name).read_bytes() for name in beside]
    reshard.identify(tmp_path / "t", write=True)
    assert [(tmp_path / "t" / name).read_bytes() for name in beside] == kept
    for damage in ("", "receipt", "identity"):
        reshard.save(tmp_path / f"other{damage}", {"w": np.zeros(4, "float32")})
        for name in ("identity.json", *beside):
            shutil.copy(tmp_path / "t" / name, tmp_path / f"other{damage}")
        if damage:
            name = "identity.json" if damage == "identity" else "identity.receipt.json"
            (tmp_path / f"other{damage}" / name).write_text("{")
        reshard.identify(tmp_path / f"other{damage}", write=True)
        assert not any((tmp_path / f"other{damage}" / name).exists() for name in beside)
    reshard.identify(tmp_path / "other", write=True, sha256=True)
    assert (tmp_path / "other" / "sha256.json").exists()


def test_where_they_cannot_be(checkpoint: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.safetensors"
    reshard.convert(checkpoint, one, drop=["n$"])
    with pytest.raises(
        reshard.PlanError, match="is no folder, so that it has no place for the files"
    ):
        reshard.identify(one, write=True)
    with pytest.raises(reshard.PlanError, match="ask for one of both"):
        reshard.identify(checkpoint, write=True, out=tmp_path)
    with pytest.raises(reshard.PlanError, match="sha256 is written beside the files"):
        reshard.identify(checkpoint, sha256=True)


def test_a_checkpoint_that_is_missing_leaves_no_folder(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(reshard.MissingError):
        reshard.identify(tmp_path / "missing", out=tmp_path / "o")
    assert not (tmp_path / "o").exists()
    reshard.identify(checkpoint, out=tmp_path / "o" / "below", sha256=True)
    assert (tmp_path / "o" / "below" / "identity.json").exists()
    (tmp_path / "file").touch()
    with pytest.raises(reshard.StorageError):
        reshard.identify(checkpoint, out=tmp_path / "file")


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    tensor = TensorIdentity("w/\ud800", "float32", (4,), "0" * 64, "0" * 16)
    with pytest.raises(
        reshard.FormatError,
        match=r"^'w/\\ud800' cannot be written in UTF-8, in which an identity hashes names; rename it \(rename\)$",
    ):
        WeightsIdentity.of([tensor], {}, "0" * 64)


def test_a_bool_that_is_neither_is_refused(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"ok": np.zeros(3, bool), "mask": np.zeros(9, bool)}, tmp_path / "m.safetensors")
    data = bytearray((tmp_path / "m.safetensors").read_bytes())
    data[-1] = 2
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(reshard.CorruptError, match="has a bool with the byte 2; expected 0 or 1"):
        reshard.identify(tmp_path / "m.safetensors")


def test_bytes_that_are_not_those_recorded_are_refused(checkpoint: Path) -> None:
    chunk = max(
        (f for f in (checkpoint / "embed").rglob("*") if f.is_file()),
        key=lambda f: f.stat().st_size,
    )
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(reshard.CorruptError, match="'embed'"):
        reshard.identify(checkpoint)


def test_too_little_memory_is_said_before_anything_is_read(checkpoint: Path) -> None:
    with pytest.raises(reshard.MemoryBudgetError, match="allow"):
        reshard.identify(checkpoint, max_memory="1MiB")


def test_the_command_says_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = reshard.identify(checkpoint).root
    assert run(["identify", str(checkpoint), "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "identified 3 tensors" in out and out.endswith(f"root: {root}\n")
    assert f"written: {tmp_path / 'out' / 'identity.json'}" in out
    assert run(["identify", str(checkpoint), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["root"], document["written"]) == ("identify", root, [])
    assert document["tensors"][0]["name"] == "embed"
    assert run(["identify", str(checkpoint), "-q"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fingerprint", "against that, reshard identify and sign make hashes that cannot be kept"),
        ("identify", "fingerprint records faster checksums in a checkpoint, which find accidents"),
    ],
)
def test_the_help_of_both_says_which_to_use(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_root_from_files_is_said_to_be_recorded(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(expected: str) -> str:
        assert run(["verify", str(checkpoint), "--identity", expected]) == 0
        return " ".join(capsys.readouterr().out.split())

    out = tmp_path / "out"
    root = reshard.identify(checkpoint, out=out).root
    file, beside = out / "identity.json", checkpoint / "identity.json"
    warning = (
        f"{beside} lies beside the weights, so that one who changes them can change it too; give a root that you trust (identity), or the "
        "key that signed it (key)"
    )
    assert "against the root that was given" in said(root)
    for given in (out, file):
        words = said(str(given))
        assert f"against the root that {file} records" in words and "lies beside" not in words
    (tmp_path / "link").symlink_to(checkpoint)
    for given in (checkpoint, beside, tmp_path / "link"):
        words = said(str(given))
        assert "/identity.json records" in words
        assert "lies beside the weights, so that one who changes them can change it too" in words
    found = reshard.verify(checkpoint, identity=checkpoint)
    assert found.warnings == (warning,)
    assert found.to_dict()["identity"]["recorded_in"] == str(beside)
    assert "recorded_in" not in reshard.verify(checkpoint, identity=root).to_dict()["identity"]


def test_a_copy_of_the_folder_keeps_its_identity(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "copy")
    assert not reshard.verify(tmp_path / "copy", identity=checkpoint).differences
