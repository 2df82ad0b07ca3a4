"""``convert(identity=)``: carried, computed and checked, resumed, and refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.identity import read_leaves


def root_in(folder: Path) -> str:
    import json

    root: str = json.loads((folder / "identity.json").read_text())["root"]
    return root


FORMS: dict[str, dict[str, Any]] = {
    "raw": {},
    "zstd": {"compression": "zstd"},
    "kept": {"compression": "keep"},
    "ocdbt": {"ocdbt": True},
    "chunks": {"chunk_bytes": 5000},
    "dcp": {"to": "dcp"},
    "safetensors": {"to": "safetensors", "cast": (), "file_bytes": 200_000},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["carry", "compute", "check"])
def test_the_target_has_the_root_of_the_source(
    form: str, how: str, checkpoint: Path, tmp_path: Path
) -> None:
    root = root_in(checkpoint)
    report = reshard.convert(checkpoint, tmp_path / "t", identity=how, **FORMS[form])
    words = {"carry": "carried", "compute": "computed", "check": "checked"}
    assert report.identity is not None
    assert (report.identity.root, report.identity.how) == (root, words[how])
    assert report.to_dict()["identity"] == {"root": root, "how": words[how]}
    written = (tmp_path / "t" / "identity.json").read_bytes()
    reshard.identify(tmp_path / "t", out=tmp_path / "out")
    assert (tmp_path / "out" / "identity.json").read_bytes() == written
    tree = (tmp_path / "t" / "identity.tree").read_bytes()
    assert tree == (checkpoint / "identity.tree").read_bytes()
    assert not reshard.verify(tmp_path / "t").differences


def test_it_is_carried_where_nobody_asks(checkpoint: Path, tmp_path: Path) -> None:
    report = reshard.convert(checkpoint, tmp_path / "t", rename={"^layers": "blocks"}, drop=["n$"])
    assert report.identity is not None and report.identity.how == "carried"
    assert report.identity.root == reshard.identify(tmp_path / "t").root != root_in(checkpoint)
    assert reshard.convert(checkpoint, tmp_path / "u", identity="none").identity is None
    assert not (tmp_path / "u" / "identity.json").exists()


def test_other_bits_get_a_root_of_their_own(checkpoint: Path, tmp_path: Path) -> None:
    cast = {"float": "bfloat16"}
    assert reshard.convert(checkpoint, tmp_path / "a", cast=cast).identity is None
    report = reshard.convert(checkpoint, tmp_path / "b", cast=cast, identity="compute")
    assert report.identity is not None
    assert report.identity.root == reshard.identify(tmp_path / "a").root
    for how in ("carry", "check"):
        with pytest.raises(reshard.PlanError, match="gets other bits than its source"):
            reshard.convert(checkpoint, tmp_path / "c", cast=cast, identity=how)
    assert not (tmp_path / "c").exists()


def test_an_identity_that_will_not_be_carried_is_not_read(checkpoint: Path, tmp_path: Path) -> None:
    cast = {"float": "bfloat16"}
    (checkpoint / "identity.tree").unlink()
    assert reshard.convert(checkpoint, tmp_path / "a", cast=cast).identity is None
    with pytest.raises(reshard.CorruptError, match=r"identity\.tree is missing"):
        reshard.convert(checkpoint, tmp_path / "b")


def test_a_file_has_no_place_for_it_but_a_root(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "one.safetensors"
    report = reshard.convert(checkpoint, target, drop=["n$"], identity="compute")
    assert report.identity is not None
    assert report.identity.root == reshard.identify(target).root
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt", "one.safetensors"]


@pytest.mark.parametrize(("how", "word"), [("carry", "carried"), ("check", "checked")])
def test_a_source_without_one_is_refused(
    how: str, word: str, checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / "identity.json").unlink()
    with pytest.raises(reshard.PlanError, match=f"records no identity that could be {word}"):
        reshard.convert(checkpoint, tmp_path / "t", identity=how)
    one = tmp_path / "one.safetensors"
    reshard.convert(checkpoint, one)
    words = f"^{one} records no identity that could be {word}: only a folder has a place for one; compute the target's \\(identity\\)$"
    with pytest.raises(reshard.PlanError, match=words):
        reshard.convert(one, tmp_path / "t", identity=how)


def test_an_identity_of_other_tensors_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    tree = reshard.restore(checkpoint)
    reshard.save(tmp_path / "other", {**tree, "embed": tree["embed"][:7]})
    for name in ("identity.json", "identity.tree"):
        (tmp_path / "other" / name).write_bytes((checkpoint / name).read_bytes())
    words = r"does not fit its tensors: it has 'embed' as float32 \[301, 257\], and the checkpoint has float32 \[7, 257\]"
    with pytest.raises(reshard.CorruptError, match=words):
        reshard.convert(tmp_path / "other", tmp_path / "t")


def test_an_identity_of_other_bits_is_not_carried(checkpoint: Path, tmp_path: Path) -> None:
    tree = reshard.restore(checkpoint)
    reshard.save(tmp_path / "other", {**tree, "embed": tree["embed"] + 1})
    for name in ("identity.json", "identity.tree"):
        (tmp_path / "other" / name).write_bytes((checkpoint / name).read_bytes())
    (tmp_path / "other" / "slices.json").unlink()  # its digests would contradict at once
    with pytest.raises(reshard.CorruptError, match="its bytes changed since it was identified"):
        reshard.convert(tmp_path / "other", tmp_path / "t", identity="carry")
    with pytest.raises(reshard.VerificationError, match="the first tensor that differs is 'embed'"):
        reshard.convert(tmp_path / "other", tmp_path / "t", identity="check")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("more", [{}, {"compression": "keep"}, {"identity": "compute"}])
def test_an_identity_that_contradicts_recorded_digests_is_refused_by_the_plan(
    more: Any, checkpoint: Path, tmp_path: Path
) -> None:
    """Chunks that travel encoded are not decoded, so that nothing else would find it."""
    tree = reshard.restore(checkpoint)
    reshard.save(tmp_path / "other", {**tree, "embed": tree["embed"] + 1}, compression="zstd")
    for name in ("identity.json", "identity.tree"):
        (tmp_path / "other" / name).write_bytes((checkpoint / name).read_bytes())
    words = r"^'embed' in '.*other' records the digest [0-9a-f]{16}, but its identity\.json has [0-9a-f]{16}: one of both is of other"
    with pytest.raises(reshard.CorruptError, match=words):
        reshard.plan(tmp_path / "other", tmp_path / "t", **more)
    with pytest.raises(reshard.CorruptError, match=words):
        reshard.convert(tmp_path / "other", tmp_path / "t", **more)
    with pytest.raises(reshard.CorruptError, match=words):
        _ = reshard.open_checkpoint(tmp_path / "other").identity
    assert not (tmp_path / "t").exists()


def test_recorded_digests_of_every_type_agree_with_the_identity(tmp_path: Path) -> None:
    bits = np.arange(-8, 8, dtype="int8")
    tree = {
        "key": jax.random.key(7),
        "small": bits.astype(ml_dtypes.int4),
        "float4": np.arange(16, dtype="uint8").view(ml_dtypes.float4_e2m1fn),
        "bool": bits > 0,
        "wide": bits.astype("complex64"),
    }
    reshard.save(tmp_path / "a", tree)
    for source, how in (("a", "compute"), ("b", "check"), ("c", "carry")):
        target = tmp_path / chr(ord(source) + 1)
        report = reshard.convert(tmp_path / source, target, identity=how)
        assert report.identity is not None
        assert report.identity.root == reshard.identify(tmp_path / "a").root


def test_bits_that_do_not_count_contradict_nothing(tmp_path: Path) -> None:
    """The same int4 with its upper bits set has another digest, and the same root."""
    bits = np.arange(8, dtype="uint8")
    for name, extra in (("a", 0), ("b", 0xF0)):
        reshard.save(tmp_path / name, {"w": (bits | extra).view(ml_dtypes.int4)})
        reshard.identify(tmp_path / name, write=True)
    assert root_in(tmp_path / "a") == root_in(tmp_path / "b")
    (tmp_path / "b" / "identity.json").write_bytes((tmp_path / "a" / "identity.json").read_bytes())
    found = reshard.open_checkpoint(tmp_path / "b").identity
    assert found is not None and found.root == root_in(tmp_path / "a")


def test_a_target_in_a_bucket_has_it_too(checkpoint: Path, tmp_path: Path, gcs_bucket: Any) -> None:
    url = f"{gcs_bucket.url}/served"
    report = reshard.convert(checkpoint, url, identity="check")
    assert report.identity is not None and report.identity.root == root_in(checkpoint)
    again = reshard.convert(url, tmp_path / "back")
    assert again.identity is not None and again.identity.how == "carried"


def test_a_missing_package_is_said_where_it_is_needed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshard.conversion import identity

    monkeypatch.setitem(sys.modules, "blake3", None)
    monkeypatch.setattr(identity, "is_installed", lambda: False)
    assert reshard.convert(checkpoint, tmp_path / "t").identity is None
    words = r"the package blake3 is not installed; run pip install '.\[identity\]'"
    for call in (
        lambda: reshard.identify(checkpoint),
        lambda: reshard.convert(checkpoint, tmp_path / "u", identity="compute"),
    ):
        with pytest.raises(reshard.MissingPackageError, match=words):
            call()


KILLED = """
import os, signal, sys
from reshard.conversion.identity import Identity
import reshard
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
Identity.prove = die
reshard.convert(sys.argv[1], sys.argv[2], identity="check")
"""


def test_a_killed_run_ends_with_the_same_files(checkpoint: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, checkpoint, tmp_path / "t"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "t").exists()
    report = reshard.convert(checkpoint, tmp_path / "t", identity="check")
    assert report.resumed_bytes > 0
    for name in ("identity.json", "identity.tree"):
        assert (tmp_path / "t" / name).read_bytes() == (checkpoint / name).read_bytes()


def test_parts_have_one_identity(checkpoint: Path, tmp_path: Path) -> None:
    for part in ("1/2", "2/2"):
        reshard.convert_part(checkpoint, tmp_path / "t", part=part, identity="check")
    report = reshard.commit(tmp_path / "t")
    assert report.identity is not None and report.identity.how == "checked"
    assert root_in(tmp_path / "t") == root_in(checkpoint)


def test_small_bands_and_open_hashers_give_the_same(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a band has less than a row of leaves, hashers stay open."""
    from reshard.engine.decode import box_plan

    root = root_in(checkpoint)
    monkeypatch.setattr(box_plan, "BAND_BYTES", 700)
    opened = []
    original = read_leaves.LeafHashing._go_on
    monkeypatch.setattr(
        read_leaves.LeafHashing,
        "_go_on",
        lambda self, *args, ends: (opened.append(args[0]), original(self, *args, ends=ends))[1],
    )
    monkeypatch.setattr(read_leaves, "BLOCK_BYTES", 70_000)
    assert reshard.identify(checkpoint).root == root
    assert opened
