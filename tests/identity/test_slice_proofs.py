"""A proof shows that a slice is part of a tensor, and nothing else is proved by it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reshard
from reshard.errors import CorruptError, LayoutError, MissingError, VerificationError
from reshard.geometry.grid import Box
from reshard.identity.leaf_tree import LeafTree
from reshard.identity.slice_proof import aligned_slice, check_slice, proof_hashes
from tests import identity_by_recursion as by_recursion
from tests.emulators.buckets import Bucket


def numbered(shape: tuple[int, ...], dtype: Any = np.uint32) -> Any:
    """Bytes that differ from place to place."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return (
        (np.arange(count, dtype=np.uint64) * 2_654_435_761 >> 9)
        .astype(np.uint8)
        .view(dtype)
        .reshape(shape)
    )


def checked(array: Any, box: Box, proof: bytes, elements: Any = None, top: str = "") -> None:
    """Checks a slice of an array by a proof."""
    tree = LeafTree.of(array.shape, array.itemsize)
    part = np.array(array[box.slices] if elements is None else elements)
    check_slice("w", tree, box, part, "uint32", proof, top or by_recursion.top(array).hex())


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    """A shape of up to 400,000 elements, and a box in it."""
    rank = draw(st.integers(0, 4))
    left, shape = 400_000, []
    for _ in range(rank):
        n = draw(st.integers(1, max(1, min(left, 60_000))))
        shape.append(n)
        left //= n
    shape = draw(st.permutations(shape))
    edges = [sorted(draw(st.tuples(st.integers(0, n - 1), st.integers(1, n)))) for n in shape]
    return tuple(shape), Box(tuple(a for a, _ in edges), tuple(max(a + 1, b) for a, b in edges))


@given(slices())
def test_proofs_are_those_of_the_recursion(found: tuple[tuple[int, ...], Box]) -> None:
    shape, box = found
    array = numbered(shape)
    tree = LeafTree.of(shape, 4)
    aligned = aligned_slice(tree, box)
    assert aligned.contains(box)
    proof = by_recursion.proof(array, aligned.start, aligned.stop)
    assert proof is not None
    assert len(proof) == 32 * proof_hashes(tree, aligned)
    checked(array, aligned, proof)
    if aligned != box:
        assert by_recursion.proof(array, box.start, box.stop) is None
        with pytest.raises(LayoutError, match=re.escape(f"and has one is {aligned}")):
            checked(array, box, proof)


def test_a_column_shard_takes_448_bytes() -> None:
    tree = LeafTree.of((4096, 14336), 2)
    for number in range(8):
        box = Box((0, 1792 * number), (4096, 1792 * (number + 1)))
        # 2 + 4 + 8: rows and columns are halved in turn, and each halving of columns leaves a half outside.
        assert 32 * proof_hashes(tree, box) == 448


SHAPE = (301, 257)
HALF = Box((0, 0), (150, 257))
OTHER = Box((150, 0), (301, 257))
QUARTER = Box((0, 0), (150, 128))


@pytest.fixture
def array() -> Any:
    return numbered(SHAPE)


def proof_of(array: Any, box: Box) -> bytes:
    found = by_recursion.proof(array, box.start, box.stop)
    assert found is not None
    return found


def test_another_proof_fails(array: Any) -> None:
    right = proof_of(array, QUARTER)
    assert len(right) == 64
    checked(array, QUARTER, right)
    changed = bytes([right[0] ^ 1]) + right[1:]
    for wrong in (right[32:] + right[:32], changed, bytes(64)):
        with pytest.raises(
            VerificationError,
            match=r"^the slice \[0:150, 0:128\] of 'w' is not that of the identity: with its proof it gives the top [0-9a-f]{64}, but "
            r"expected is [0-9a-f]{64}; it, or its proof, was changed: read it from another copy$",
        ):
            checked(array, QUARTER, wrong)
    for wrong in (right[:32], right + right[:32], b"", right[:-1]):
        with pytest.raises(
            VerificationError,
            match=rf"^the proof of the slice \[0:150, 0:128\] of 'w' has {len(wrong)} bytes; expected 64; ask for the proof of this "
            r"slice$",
        ):
            checked(array, QUARTER, wrong)


def test_other_elements_fail(array: Any) -> None:
    right = proof_of(array, HALF)
    flipped = array[HALF.slices].copy()
    flipped[149, 256] ^= 1 << 31
    swapped = array[HALF.slices].copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    for wrong in (flipped, swapped):
        with pytest.raises(VerificationError, match="is not that of the identity"):
            checked(array, HALF, right, wrong)
    with pytest.raises(VerificationError, match="is not that of the identity"):
        checked(array, OTHER, right)  # the proof of another slice of as many hashes
    with pytest.raises(VerificationError, match="is not that of the identity"):
        checked(array, HALF, right, top=by_recursion.top(array + 1).hex())


def test_a_bool_that_is_neither_fails() -> None:
    array = np.ones((300, 300), bool)
    tree = LeafTree.of(array.shape, 1)
    box = aligned_slice(tree, Box((0, 0), (1, 300)))
    part, top = array[box.slices].view(np.uint8).copy(), by_recursion.top(array).hex()
    check_slice("mask", tree, box, part, "bool", proof_of(array, box), top)
    part[0, 7] = 2
    with pytest.raises(
        VerificationError,
        match=r"^the slice \[0:150, 0:300\] of 'mask' is not that of the identity, which has no such elements: 'mask' has a bool with "
        r"the byte 2; expected 0 or 1",
    ):
        check_slice("mask", tree, box, part, "bool", proof_of(array, box), top)


def test_an_empty_slice_has_no_proof(array: Any) -> None:
    with pytest.raises(
        LayoutError,
        match=r"^the slice \[5:5, 0:257\] of 'w' has no elements, so that there is nothing to prove; choose a slice with elements$",
    ):
        checked(array, Box((5, 0), (5, 257)), b"")


LARGE = (1500, 1100)
"""6.3 MiB of 4 bytes: four kept nodes."""


def saved(tmp_path: Path, form: str) -> Path:
    path = tmp_path / form
    tree = {"w": numbered(LARGE), "v": numbered((3, 5), ml_dtypes.bfloat16)}
    if form == "zstd":
        reshard.save(path, tree, compression="zstd", chunk_bytes=700_000)
    elif form == "columns":
        layout = reshard.LayoutMap(reshard.DeviceMesh((5,), ("m",)))
        layout["w"] = (None, "m")
        reshard.save(tmp_path / "first", tree)
        reshard.convert(tmp_path / "first", path, layout=layout)
    else:
        reshard.save(tmp_path / "first", tree)
        reshard.convert(tmp_path / "first", path, to="safetensors")
    reshard.identify(path, write=True)
    return path


@pytest.mark.parametrize("form", ["zstd", "columns", "safetensors"])
def test_the_proof_of_a_stored_slice(form: str, tmp_path: Path) -> None:
    opened = reshard.open_checkpoint(saved(tmp_path, form))
    array = numbered(LARGE)
    tree = LeafTree.of(LARGE, 4)
    assert tree.kept_level(1 << 20) == 2
    for wanted in ("0:1,0:1", "0:750", ":,550:", "700:800,500:600", "", "1499:,1099:"):
        given = Box.full(LARGE) if not wanted else None
        start = [int(part.partition(":")[0] or 0) for part in wanted.split(",")] if wanted else []
        stop = (
            [int(p.partition(":")[2] or n) for p, n in zip(wanted.split(","), LARGE, strict=False)]
            if wanted
            else []
        )
        box = given or Box((*start, *(0,) * (2 - len(start))), (*stop, *LARGE[len(stop) :]))
        aligned = aligned_slice(tree, box)
        proof = opened.prove_slice("w", aligned)
        assert proof.hashes == by_recursion.proof(array, aligned.start, aligned.stop)
        assert (proof.root, proof.name, proof.dtype, proof.shape) == (
            opened.identity.root if opened.identity else "", "w", "uint32", LARGE,
        )  # fmt: skip
        checked(array, aligned, proof.hashes, top=proof.top)


def test_a_proof_of_other_elements_is_not_made(tmp_path: Path) -> None:
    path = saved(tmp_path, "safetensors")
    (file,) = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-4 * 1100 * 750] ^= 1  # of w, the last one: row 750, column 0
    file.write_bytes(data)
    opened = reshard.open_checkpoint(path)
    with pytest.raises(
        CorruptError,
        match=r"^'w' in '.*' has other elements in \[750:1500, 0:550\] than its identity records: they, or the identity, changed since; "
        r"restore it from another copy, or make the identity anew with reshard identify --write$",
    ):
        opened.prove_slice("w", aligned_slice(LeafTree.of(LARGE, 4), Box((750, 0), (751, 1))))


def test_which_proofs_read_elements(tmp_path: Path) -> None:
    opened = reshard.open_checkpoint(saved(tmp_path, "safetensors"))
    assert [opened.needs_elements("w", b) for b in ("", "0:750", ":,550:", "0:375")] == [
        False,
        False,
        False,
        True,
    ]
    with pytest.raises(LayoutError, match=r"and has one is \[0:93, 0:1100\]$"):
        opened.needs_elements("w", "0:7")


def test_a_checkpoint_in_a_bucket(s3_bucket: Bucket) -> None:
    path = f"{s3_bucket.url}/ckpt"
    reshard.save(path, {"w": numbered(LARGE)})
    assert reshard.open_checkpoint(path).identity is None
    root = reshard.identify(path, write=True).root
    opened = reshard.open_checkpoint(path)
    for start, stop in (((0, 0), (750, 1100)), ((0, 0), (93, 1100))):
        proof = opened.prove_slice("w", Box(start, stop))
        assert (proof.root, proof.hashes) == (
            root,
            by_recursion.proof(numbered(LARGE), start, stop),
        )


def test_what_cannot_be_proved(tmp_path: Path) -> None:
    path = saved(tmp_path, "safetensors")
    shown = repr(reshard.open_checkpoint(path).prove_slice("w", "0:750"))
    assert re.fullmatch(r"SliceProof\('w' \[0:750, 0:1100\]: 32 bytes, root [0-9a-f]{64}\)", shown)
    reshard.save(tmp_path / "other", {"w": numbered((4, 4))})
    reshard.identify(tmp_path / "other", out=path)
    with pytest.raises(
        CorruptError,
        match=r"does not fit its tensors: it has 'w' as uint32 \[4, 4\], and the checkpoint",
    ):
        reshard.open_checkpoint(path).prove_slice("w")
    (path / "identity.json").unlink()
    assert reshard.open_checkpoint(path).identity is None
    with pytest.raises(
        MissingError,
        match=r"records no identity, so that there is nothing to prove; record it with reshard identify --write$",
    ):
        reshard.open_checkpoint(path).prove_slice("w")
    reshard.convert(path, tmp_path / "one.safetensors")
    with pytest.raises(MissingError, match=r"nothing to prove; only a folder has a place for one:"):
        reshard.open_checkpoint(tmp_path / "one.safetensors").prove_slice("w")


def test_the_identity_is_looked_up_in_the_listing_of_the_opening(s3_bucket: Bucket) -> None:
    path = f"{s3_bucket.url}/ckpt"
    reshard.save(path, {"w": np.zeros(9)})
    log = s3_bucket.emulator.log
    opened = reshard.open_checkpoint(path)
    log.clear()
    assert opened.identity is None
    assert log.count() == 0
    root = reshard.identify(path, write=True).root
    opened = reshard.open_checkpoint(path)
    log.clear()
    assert opened.identity is not None and opened.identity.root == root
    assert "list" not in log.counts()
