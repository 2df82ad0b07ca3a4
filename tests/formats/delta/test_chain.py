"""Deltas over a base as a source: what is read is what a naive receiver makes of them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from reshard.api.deltas import apply
from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    MissingError,
    NotACheckpointError,
    PlanError,
    VerificationError,
)
from reshard.formats.delta.changes import BLOCK_BYTES
from tests.campaigns import examples
from tests.delta_layout import (
    CHECKSUMS,
    apply_delta,
    bytes_of,
    changed,
    stored,
    write_delta,
    write_full,
)

RNG = np.random.default_rng(31)
LIKE = {
    "embed": RNG.standard_normal((300, 700)).astype("f4"),
    "layer.0.w": RNG.standard_normal((64, 48)).astype(ml_dtypes.bfloat16),
    "bits": RNG.integers(0, 256, 17, dtype=np.uint8),
    "scale": np.array(3.0, "f4"),
    "none": np.empty((0, 4), "f4"),
}
V0 = bytes_of(LIKE)
assert len(V0["embed"]) > 3 * BLOCK_BYTES
"""So that its blocks pass through the layers one after the other."""


def base(tmp_path: Path) -> Path:
    like = {
        name: array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        for name, array in LIKE.items()
    }
    return write_full(tmp_path / "v0", V0, like)


def chain(tmp_path: Path) -> tuple[Path, list[Path], dict[str, bytes]]:
    """A base, three deltas of all kinds, and the last state."""
    v1 = changed(V0, 0.01, 1)
    v2 = changed(v1, 0.02, 2) | {"bits": v1["bits"]}
    v3 = changed(v2, 0.5, 3) | {"embed": v2["embed"]}
    deltas = [
        write_delta(tmp_path, 1, V0, v1),
        write_delta(tmp_path, 2, v1, v2, "overwrite", "blake3", files=2),
        write_delta(tmp_path, 3, v2, v3, "xor", "adler32"),
    ]
    return base(tmp_path), deltas, v3


def test_the_chain_is_what_a_naive_receiver_makes(tmp_path: Path) -> None:
    start, deltas, last = chain(tmp_path)
    state = dict(V0)
    for delta in deltas:
        state = apply_delta(delta, state)
    assert state == last
    report = apply(start, deltas[::-1], tmp_path / "served")
    assert stored(tmp_path / "served") == last
    assert report.warnings[0] == (
        f"{deltas[2]} records no checksums of the tensors that it does not change: those that no delta changes are taken from the base as they "
        "are"
    )


def test_a_chain_becomes_any_format_on_any_mesh(tmp_path: Path) -> None:
    start, deltas, last = chain(tmp_path)
    apply(start, deltas, tmp_path / "orbax", to="orbax", mesh="model=4")
    read = reshard.restore(tmp_path / "orbax")
    assert {name: np.asarray(array).tobytes() for name, array in read.items()} == last


def test_the_same_call_finds_what_is_done_and_another_delta_is_another_source(
    tmp_path: Path,
) -> None:
    start, deltas, _ = chain(tmp_path)
    apply(start, deltas, tmp_path / "served")
    assert apply(start, deltas, tmp_path / "served").already_done
    with pytest.raises(reshard.errors.TargetExistsError):
        apply(start, deltas[:2], tmp_path / "served")


RATES = st.sampled_from([0.0, 0.0001, 0.01, 0.3, 1.0])


@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.integers(0, 3 * BLOCK_BYTES // 2), min_size=1, max_size=3),
    steps=st.lists(
        st.tuples(RATES, st.sampled_from(["xor", "overwrite"]), st.sampled_from(sorted(CHECKSUMS))),
        min_size=1,
        max_size=4,
    ),
)
def test_any_chain_gives_the_last_state(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    steps: list[tuple[float, str, str]],
) -> None:
    tmp_path = tmp_path_factory.mktemp("chain")
    like = {f"t{n}": RNG.integers(0, 256, size, dtype=np.uint8) for n, size in enumerate(sizes)}
    state = bytes_of(like)
    start, deltas = write_full(tmp_path / "v0", state, like), []
    for number, (rate, encoding, checksum) in enumerate(steps, 1):
        after = changed(state, rate, number)
        deltas.append(write_delta(tmp_path, number, state, after, encoding, checksum))
        state = after
    apply(start, deltas, tmp_path / "served", max_memory="96MiB")
    assert stored(tmp_path / "served") == state


def test_a_version_that_is_missing_is_named(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    with pytest.raises(PlanError) as error:
        apply(start, [deltas[0], deltas[2]], tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[2]} changes the version 000002, but the version before it here is 000001; give every delta from the base to the last, each once"
    )
    with pytest.raises(PlanError) as error:
        apply(start, [deltas[0], deltas[0]], tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[0]}: the version 000001 is given twice; give each version once, and none that the base has already"
    )
    assert not (tmp_path / "served").exists()


def test_a_base_that_says_its_version_must_be_the_one(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    start = start.rename(tmp_path / "weight_v000005")
    with pytest.raises(PlanError) as error:
        apply(start, deltas, tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[0]} changes the version 000000, but the version before it here is 000005; give every delta from the base to the last, each once"
    )


def test_another_base_is_found_by_the_checksums(tmp_path: Path) -> None:
    _, deltas, _ = chain(tmp_path)
    other = changed(V0, 0.001, 99)
    like = {n: np.frombuffer(data, np.uint8) for n, data in V0.items()}
    wrong = write_full(tmp_path / "other", other, like)
    with pytest.raises(VerificationError) as error:
        apply(wrong, deltas[:1], tmp_path / "served", workers=1)
    made = apply_bytes(other)
    name = next(n for n in made if f"'{n}'" in str(error.value))
    assert str(error.value) == (
        f"tensor {name!r}, chunk [0], version 000001: its bytes have the xxh3-128 {CHECKSUMS['xxh3-128'](made[name])}, but "
        f"{CHECKSUMS['xxh3-128'](changed(V0, 0.01, 1)[name])} is recorded in {deltas[0]}/model-00000-of-00001.safetensors, so that the base is not the one that the delta was made of, or one of "
        "both is damaged; give the right base, restore it from a copy, or start from a full version"
    )
    assert not (tmp_path / "served").exists()


def apply_bytes(old: dict[str, bytes]) -> dict[str, bytes]:
    """What a receiver without checksums makes of a delta of the version 1 above."""
    v1 = changed(V0, 0.01, 1)
    return {
        name: bytes(a ^ b ^ c for a, b, c in zip(old[name], V0[name], v1[name], strict=True))
        for name in old
    }


def test_a_base_without_a_tensor_of_the_delta(tmp_path: Path) -> None:
    _, deltas, _ = chain(tmp_path)
    less = write_full(tmp_path / "less", {"embed": V0["embed"]}, {"embed": LIKE["embed"]})
    with pytest.raises(VerificationError) as error:
        apply(less, deltas[:1], tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[0]} changes 'layer.0.w', which {less} does not have: it is not the base of this delta; give the version 000000, or publish a full "
        "version, and start from that"
    )


def test_a_base_of_another_format(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    reshard.convert(start, tmp_path / "orbax", to="orbax")
    with pytest.raises(FormatError) as error:
        apply(tmp_path / "orbax", deltas, tmp_path / "served")
    assert str(error.value) == (
        f"{tmp_path / 'orbax'} is a checkpoint of the format orbax, but deltas change the bytes of safetensors files; convert it (to), and give the "
        "result as the base"
    )


def test_a_base_in_slices(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    layout = {
        "mesh": {"axes": ["model"], "shape": [2]},
        "rules": [{"match": "embed", "axes": ["model", None]}],
        "unmatched": "replicate",
    }
    reshard.convert(start, tmp_path / "ranks", files="ranks", layout=layout)
    with pytest.raises(FormatError) as error:
        apply(tmp_path / "ranks", deltas, tmp_path / "served")
    assert "deltas change whole tensors; convert it to safetensors with whole tensors, and give the result as the base" in str(error.value)  # fmt: skip


def test_a_delta_alone_is_no_checkpoint(tmp_path: Path) -> None:
    _, deltas, _ = chain(tmp_path)
    with pytest.raises(NotACheckpointError) as error:
        reshard.convert(deltas[0], tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[0]} is a delta, which is nothing without the version before it; apply it to that (reshard apply BASE {deltas[0]} TARGET)"
    )


def test_no_delta_at_all(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        apply(base(tmp_path), [], tmp_path / "served")
    assert str(error.value) == (
        "deltas is []; expected a list with the folder of each delta, such as ['weight_v000001']"
    )


def test_versions_that_are_missing_or_half_written(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    (deltas[0] / "model.safetensors.index.json").unlink()
    with pytest.raises(IncompleteCheckpointError) as error:
        apply(start, deltas[:1], tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[0]} has no model.safetensors.index.json, which is written last: its writer is at work or was interrupted; wait for it, or "
        "publish the version again"
    )
    gone = tmp_path / "weight_v000009"
    with pytest.raises(MissingError) as error:
        apply(start, [gone], tmp_path / "served")
    assert str(error.value) == (
        f"{gone} does not exist: expected the folder of a delta, such as weight_v000007; check the path, or give a full version that is later"
    )
    lost = deltas[1] / "model-00001-of-00002.safetensors"
    lost.unlink()
    with pytest.raises(MissingError) as error:
        apply(start, deltas[1:2], tmp_path / "served")
    assert str(error.value) == (
        f"{deltas[1]}/model.safetensors.index.json names the file 'model-00001-of-00002.safetensors', which is missing; restore the folder from a "
        "copy, or publish a full version"
    )


def test_a_full_version_is_no_delta(tmp_path: Path) -> None:
    start, _, _ = chain(tmp_path)
    reshard.convert(start, tmp_path / "full", file_bytes=1000)
    with pytest.raises(FormatError) as error:
        apply(start, [tmp_path / "full"], tmp_path / "served")
    assert str(error.value) == (
        f"{tmp_path}/full/model.safetensors.index.json has no delta_encoding in its metadata, so that its folder is a full version, not a delta; "
        "give it as the base, or name the folder of a delta"
    )


def test_every_flipped_bit_of_a_delta_is_found_or_changes_nothing(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    expected = apply_delta(deltas[0], V0)
    rng = np.random.default_rng(7)
    for file in sorted(deltas[0].iterdir()):
        sound = file.read_bytes()
        for place in rng.integers(0, len(sound), 25):
            data = bytearray(sound)
            data[place] ^= 1 << int(rng.integers(0, 8))
            file.write_bytes(data)
            target = tmp_path / "served"
            try:
                apply(start, deltas[:1], target, workers=1)
            except reshard.ReshardError:
                assert not target.exists()
                continue
            assert stored(target) == expected
            for one in target.iterdir():
                one.unlink()
            target.rmdir()
        file.write_bytes(sound)


def test_a_flipped_bit_of_the_base_is_found_where_a_delta_touches_it(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    file = start / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises((VerificationError, CorruptError), match="version 000001: its bytes have"):
        apply(start, deltas, tmp_path / "served")


def test_a_first_delta_that_was_left_out_is_missed(tmp_path: Path) -> None:
    start, deltas, _ = chain(tmp_path)
    with pytest.raises(PlanError, match="weight_v000002 changes the version 000001 and lists no checksums of the tensors that it does not change"):  # fmt: skip
        apply(start, deltas[1:], tmp_path / "served")
    assert not (tmp_path / "served").exists()
