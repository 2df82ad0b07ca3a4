"""Deltas of SkyRL as sources: what is read is what a naive receiver makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import reshard
from reshard.api.deltas import apply
from reshard.cli.app import run
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
    PlanError,
    ReshardError,
    VerificationError,
)
from tests.campaigns import examples
from tests.delta_layout import bytes_of, changed, stored, write_delta, write_full
from tests.emulators.buckets import Bucket
from tests.skyrl_layout import apply_skyrl, write_skyrl

RNG = np.random.default_rng(5)
LIKE = {
    "embed": RNG.standard_normal((300, 700)).astype("f4"),
    "layer.0.w": RNG.standard_normal((64, 48)).astype(ml_dtypes.bfloat16),
    "fp8": RNG.integers(0, 256, (8, 16), np.uint8).view(ml_dtypes.float8_e4m3fn),
    "scale": np.array(3.0, "f4"),
}
KINDS = {name: (array.dtype.name, list(array.shape)) for name, array in LIKE.items()}
V0 = bytes_of(LIKE)
FILE = "delta-rank00000-file000000.safetensors"


def save(folder: Path, like: dict[str, np.ndarray]) -> Path:
    """With the safetensors of Hugging Face."""
    folder.mkdir(parents=True)
    save_file(like, folder / "model.safetensors")
    return folder


def chain(tmp_path: Path) -> tuple[Path, list[Path], dict[str, bytes]]:
    """A base, three deltas, of which the second leaves a tensor alone, and the last state."""
    v1 = changed(V0, 0.01, 1)
    v2 = changed(v1, 0.02, 2) | {"fp8": v1["fp8"]}
    v3 = changed(v2, 0.5, 3)
    deltas = [
        write_skyrl(tmp_path, 1, V0, v1, KINDS),
        write_skyrl(tmp_path, 2, v1, v2, KINDS, files=2, prefix="torch."),
        write_skyrl(tmp_path, 3, v2, v3, KINDS, files=3),
    ]
    return save(tmp_path / "v0", LIKE), deltas, v3


def test_the_chain_is_what_a_naive_receiver_makes(tmp_path: Path) -> None:
    start, deltas, last = chain(tmp_path)
    state = dict(V0)
    for delta in deltas:
        state = apply_skyrl(delta, state)
    assert state == last
    report = apply(start, deltas, tmp_path / "served")
    assert stored(tmp_path / "served") == last
    assert report.warnings[0] == (
        f"{deltas[2]} records no checksums of the tensors that it does not change: those that no delta changes are taken from the base as they are"
    )
    assert reshard.verify(start, tmp_path / "served", deltas=deltas).differences == 0
    found = reshard.verify(start, deltas=deltas)
    assert {tensor.status for tensor in found.tensors} == {"checksum"}


@settings(max_examples=examples(15))
@given(
    tensors=st.lists(
        st.tuples(
            st.lists(st.integers(0, 30), max_size=3),
            st.sampled_from(["bfloat16", "float32", "float8_e5m2", "int64", "bool"]),
        ),
        min_size=1,
        max_size=4,
    ),
    rates=st.lists(st.sampled_from([0.0, 0.001, 1.0]), min_size=1, max_size=3),
)
def test_any_chain_gives_the_last_state(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: list[tuple[list[int], str]],
    rates: list[float],
) -> None:
    tmp_path = tmp_path_factory.mktemp("skyrl")
    like = {f"t{n}": np.zeros(shape, ml_dtypes.finfo(dtype).dtype if dtype in ("bfloat16", "float8_e5m2") else dtype) for n, (shape, dtype) in enumerate(tensors)}  # fmt: skip
    kinds = {f"t{n}": (dtype, shape) for n, (shape, dtype) in enumerate(tensors)}
    state, deltas = bytes_of(like), []
    start = save(tmp_path / "v0", like)
    for number, rate in enumerate(rates, 1):
        after = changed(state, rate, number)
        deltas.append(write_skyrl(tmp_path, number, state, after, kinds, files=2))
        state = after
    apply(start, deltas, tmp_path / "served")
    assert stored(tmp_path / "served") == state


def test_deltas_of_both_layouts_make_one_chain(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    v1 = changed(V0, 0.01, 1)
    v2 = changed(v1, 0.3, 8)
    other = write_delta(tmp_path, 2, v1, v2, "overwrite")
    apply(start, [deltas[0], other], tmp_path / "served", to="orbax", mesh="model=2")
    read = reshard.restore(tmp_path / "served")
    assert {name: np.asarray(array).tobytes() for name, array in read.items()} == v2


def test_inspect_shows_the_chain_and_clean_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, deltas, last = chain(tmp_path / "sync")
    (tmp_path / "sync" / "v0").rename(tmp_path / "v0")
    found = reshard.inspect_versions(tmp_path / "sync")
    assert [
        (v.name, v.kind, v.base_version, v.changed, v.encoding, v.is_needed) for v in found
    ] == [
        ("delta-00000001", "delta", "000000", 4, "xor", True),
        ("delta-00000002", "delta", "000001", 3, "xor", True),
        ("delta-00000003", "delta", "000002", 4, "xor", True),
    ]
    assert run(["inspect", str(deltas[1])]) == 0
    assert "delta-00000002  delta  000001" in capsys.readouterr().out
    write_full(
        tmp_path / "sync" / "weight_v000004",
        last,
        {n: np.frombuffer(d, np.uint8) for n, d in last.items()},
    )
    assert [v.is_needed for v in reshard.inspect_versions(tmp_path / "sync")] == [False] * 3 + [
        True
    ]
    assert reshard.clean_versions(tmp_path / "sync", 1).removed == ()
    assert all(delta.exists() for delta in deltas)


def test_a_version_whose_manifest_is_missing(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    (deltas[1] / "manifest.json").unlink()
    with pytest.raises(IncompleteCheckpointError) as error:
        apply(start, deltas, tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[1]} has no manifest.json, which is written last: its writer is at work or was interrupted; wait for it, or publish the version again"
    )
    kinds = [one.kind for one in reshard.inspect_versions(tmp_path)]
    assert kinds == ["delta", "unfinished", "delta"]


def test_a_delta_alone_is_no_checkpoint(tmp_path: Path) -> None:
    _, deltas, _ = chain(tmp_path)
    for source in (deltas[0], deltas[0] / FILE):
        with pytest.raises(NotACheckpointError) as error:
            reshard.convert(source, tmp_path / "served")
        assert str(error.value) == (
            f"{deltas[0]} is a delta of SkyRL, which is nothing without the version before it; apply it to that (reshard apply BASE {deltas[0]} TARGET)"
        )


def test_a_folder_of_deltas_holds_no_checkpoints(tmp_path: Path) -> None:
    _, deltas, _ = chain(tmp_path / "sync")
    (tmp_path / "sync" / "v0").rename(tmp_path / "v0")
    with pytest.raises(NotACheckpointError) as error:
        reshard.convert(tmp_path / "sync", tmp_path / "served")
    assert "it holds" not in str(error.value)
    assert len(deltas) == 3


def with_manifest(delta: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((delta / "manifest.json").read_text())
    change(manifest)
    (delta / "manifest.json").write_text(json.dumps(manifest))


REMEDY = "; restore the folder from a copy, or publish a full version"


def test_files_that_are_not_what_the_manifest_lists(tmp_path: Path) -> None:
    start, (delta, *_), _ = chain(tmp_path)
    sound = (delta / "manifest.json").read_text()

    def refusal(change: Callable[[dict[str, Any]], Any], kind: type[ReshardError]) -> str:
        (delta / "manifest.json").write_text(sound)
        with_manifest(delta, change)
        with pytest.raises(kind) as error:
            apply(start, [delta], tmp_path / "served")
        assert not (tmp_path / "served").exists()
        return str(error.value)

    def renamed(manifest: dict[str, Any]) -> None:
        manifest["tensors"][0]["payload_key"] = "other"

    def larger(manifest: dict[str, Any]) -> None:
        manifest["tensors"][0]["compressed_num_bytes"] += 1
        manifest["total_compressed_num_bytes"] += 1

    def fewer(manifest: dict[str, Any]) -> None:
        gone = manifest["tensors"].pop()
        for key in ("uncompressed_num_bytes", "compressed_num_bytes"):
            manifest[f"total_{key}"] -= gone[key]

    def reshaped(manifest: dict[str, Any]) -> None:
        manifest["tensors"][0]["shape"].reverse()

    def named(name: str) -> Callable[[dict[str, Any]], None]:
        return lambda manifest: manifest["tensors"][0].update(name=name)

    nbytes = json.loads(sound)["tensors"][0]["compressed_num_bytes"]
    manifest, where = delta / "manifest.json", f"{delta / FILE}: the payload of 'embed'"
    assert refusal(renamed, CorruptError) == f"{manifest} says that 'embed' is in '{FILE}', which does not hold it{REMEDY}"  # fmt: skip
    assert (
        refusal(larger, CorruptError)
        == f"{where} has {nbytes} bytes, but the manifest says {nbytes + 1}{REMEDY}"
    )
    assert (
        refusal(fewer, CorruptError)
        == f"{delta / FILE} holds 'scale', which the manifest does not list there{REMEDY}"
    )
    assert (
        refusal(lambda m: m["payload_files"].append("gone"), MissingError)
        == f"{manifest} names the file 'gone', which is missing{REMEDY}"
    )
    assert (
        refusal(lambda m: m.update(version=2, base_version=1), CorruptError)
        == f"{manifest} is of the version 000002, but the folder is delta-00000001{REMEDY}"
    )
    other_base = "; give the version 000000, or publish a full version, and start from that"
    assert refusal(reshaped, VerificationError) == (
        f"{start} is not the base of {delta}: 'embed' is F32 of shape [300, 700], but the delta records F32 of shape [700, 300]{other_base}"
    )
    assert refusal(named("absent"), VerificationError) == (
        f"{delta} changes 'absent', which {start} does not have: it is not the base of this delta{other_base}"
    )


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (zstandard.ZstdCompressor(level=1).compress(bytes(3)), "its zstd frame should decode to 4 bytes, but its header says 3"),
        (b"no frame", "it is not a zstd frame"),
        (zstandard.ZstdCompressor(level=1).compress(bytes(1 << 26)), "its zstd frame should decode to 4 bytes, but its header says 67108864"),
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_one(tmp_path: Path, payload: bytes, text: str) -> None:
    start = save(tmp_path / "v0", {"scale": LIKE["scale"]})
    old, new = {"scale": V0["scale"]}, {"scale": bytes(4)}
    delta = write_skyrl(tmp_path, 1, old, new, KINDS)
    save_file({"scale": np.frombuffer(payload, np.uint8)}, delta / FILE)
    with_manifest(delta, lambda m: (m.update(total_compressed_num_bytes=len(payload)), m["tensors"][0].update(compressed_num_bytes=len(payload))))  # fmt: skip
    with pytest.raises(CorruptError) as error:
        apply(start, [delta], tmp_path / "served")
    assert str(error.value).startswith(f"tensor 'scale', chunk [], version 000001: {text}")
    assert not (tmp_path / "served").exists()


def test_a_payload_of_another_dtype(tmp_path: Path) -> None:
    start, (delta, *_), _ = chain(tmp_path)
    save_file({name: np.zeros(1, "f4") for name in LIKE}, delta / FILE)
    with pytest.raises(FormatError) as error:
        apply(start, [delta], tmp_path / "served")
    assert str(error.value) == f"{delta / FILE}: the payload of 'embed' should be U8 with one dimension, but is float32 of shape [1]{REMEDY}"  # fmt: skip


def test_every_flipped_bit_of_a_delta_is_found_or_changes_nothing(tmp_path: Path) -> None:
    like = {"w": LIKE["layer.0.w"], "scale": LIKE["scale"]}
    kinds = {"w": KINDS["layer.0.w"], "scale": KINDS["scale"]}
    start, old = save(tmp_path / "v0", like), bytes_of(like)
    expected = changed(old, 0.01, 4)
    delta = write_skyrl(tmp_path, 1, old, expected, kinds)
    rng = np.random.default_rng(7)
    found = 0
    for file in sorted(delta.iterdir()):
        sound = file.read_bytes()
        for place in rng.integers(0, len(sound), 30):
            data = bytearray(sound)
            data[place] ^= 1 << int(rng.integers(0, 8))
            file.write_bytes(data)
            try:
                apply(start, [delta], tmp_path / "served", workers=1, overwrite=True)
            except ReshardError:
                found += 1
                continue
            assert stored(tmp_path / "served") == expected
        file.write_bytes(sound)
    assert found > 30


def test_a_chain_in_a_bucket(tmp_path: Path, s3_bucket: Bucket) -> None:
    start, deltas, last = chain(tmp_path)
    for delta in deltas:
        for file in delta.iterdir():
            s3_bucket.store().put(f"sync/{delta.name}/{file.name}", file.read_bytes())
    urls = [f"{s3_bucket.url}/sync/{delta.name}" for delta in deltas]
    apply(start, urls, tmp_path / "served")
    assert stored(tmp_path / "served") == last
    assert [one.version for one in reshard.inspect_versions(f"{s3_bucket.url}/sync")] == [
        "000001",
        "000002",
        "000003",
    ]


def test_a_first_delta_that_was_left_out_is_missed(tmp_path: Path) -> None:
    """What the others do not change, nothing compares: without the version of the base, they would fit it."""
    start, deltas, _ = chain(tmp_path)
    with pytest.raises(PlanError) as refused:
        apply(start, deltas[1:], tmp_path / "served")
    assert str(refused.value) == (
        f"{deltas[1]} changes the version 000001 and lists no checksums of the tensors that it does not change, and {start} records no version, "
        "so that it counts as 000000; give every delta from the version 000001 on; or, if it is the version 000001, give its folder that name "
        "(weight_v000001)"
    )
    with pytest.raises(PlanError, match="lists no checksums"):
        reshard.verify(start, deltas=deltas[1:])
    assert stored(start) == V0


def test_what_an_earlier_call_made_says_its_version(tmp_path: Path) -> None:
    start, deltas, last = chain(tmp_path)
    apply(start, deltas[:1], tmp_path / "first")
    apply(tmp_path / "first", deltas[1:], tmp_path / "served")
    assert stored(tmp_path / "served") == last
    named = save(tmp_path / "weight_v000001", LIKE)
    made = write_skyrl(tmp_path / "other", 2, V0, changed(V0, 0.1, 7), KINDS)
    apply(named, [made], tmp_path / "by_name")
    assert stored(tmp_path / "by_name") == changed(V0, 0.1, 7)
