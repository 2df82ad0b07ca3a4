"""``SliceProof.check``: a slice, from wherever it came, against a root that is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import reshard
from reshard.identity.identity_file import read_identity
from reshard.storage.location import locate
from tests.formats.safetensors.build import entry, file_of, packed

SHAPE = (1500, 1100)
W = np.random.default_rng(4).normal(size=SHAPE).astype(np.float32)
TREE: dict[str, Any] = {
    "w": W,
    "half": W[:4].astype(ml_dtypes.bfloat16),
    "int4": np.arange(8).astype(ml_dtypes.int4),
    "bool": np.arange(9) % 2 == 0,
    "scalar": np.float64(3),
}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with an identity."""
    path = tmp_path_factory.mktemp("known") / "ckpt"
    reshard.save(path, {**TREE, "key": jax.random.key(3)})
    reshard.identify(path, write=True)
    return path


def root_of(known: Path) -> str:
    root: str = json.loads((known / "identity.json").read_text())["root"]
    return root


def proof_of(known: Path, name: str = "w", part: str | None = "0:750,:") -> reshard.SliceProof:
    return reshard.open_checkpoint(known).prove_slice(name, part)


def test_a_slice_is_checked_by_a_root(known: Path, tmp_path: Path) -> None:
    proof, root = proof_of(known), root_of(known)
    found = read_identity(locate(known))
    assert found is not None
    (tmp_path / "identity.json").write_bytes((known / "identity.json").read_bytes())
    places: list[Any] = [known, str(known), tmp_path, tmp_path / "identity.json", found]
    for identity in [*places, reshard.identify(known)]:
        proof.check(W[:750], identity, root=root)
    proof.check(jnp.asarray(W[:750]), known, root=root.upper())
    proof.check(np.asfortranarray(W[:750]), known, root=root)


@pytest.mark.parametrize("name", TREE)
def test_every_type_is_checked(name: str, known: Path) -> None:
    proof = proof_of(known, name, None)
    array = TREE[name].copy()
    proof.check(array, known, root=root_of(known))
    assert (np.asarray(array) == np.asarray(TREE[name])).all()  # it is not changed
    other = np.array(array)
    other.reshape(-1).view(np.uint8)[0] ^= 1
    with pytest.raises(reshard.VerificationError, match="is not that of the identity"):
        proof.check(other, known, root=root_of(known))


def test_keys_are_given_as_their_data(known: Path) -> None:
    data = jax.random.key_data(jax.random.key(3))
    proof_of(known, "key", None).check(data, known, root=root_of(known))


def test_elements_of_several_values_are_given_as_bytes(tmp_path: Path) -> None:
    stored = bytes(range(3 * 6))
    file_of(tmp_path, packed({"w": entry("F6_E3M2", [3, 8], 0, 18)}, stored), "model.safetensors")
    root = reshard.identify(tmp_path, write=True).root
    elements = np.frombuffer(stored, np.uint8).reshape(3, 6)
    proof_of(tmp_path, "w", None).check(elements, tmp_path, root=root)
    with pytest.raises(reshard.VerificationError, match="is not that of the identity"):
        proof_of(tmp_path, "w", None).check(elements[::-1], tmp_path, root=root)


def test_a_proof_goes_through_json(known: Path) -> None:
    proof = proof_of(known)
    document = json.loads(json.dumps(proof.to_dict()))
    assert list(document) == ["root", "name", "dtype", "shape", "top", "slice", "proof"]
    assert document["slice"] == "0:750,0:1100"
    assert reshard.SliceProof.from_dict(document) == proof
    reshard.SliceProof.from_dict(document).check(W[:750], known, root=root_of(known))
    scalar = proof_of(known, "scalar", None)
    assert reshard.SliceProof.from_dict(scalar.to_dict()) == scalar


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"proof": "?"}, "this is no proof of a slice: "),
        ({"proof": 5}, r"this is no proof of a slice: Expected `str`, got `int` - at `\$.proof`; give what a server sends"),
        ({"slice": "0:a"}, "its slice is '0:a'; give what"),
        ({"slice": "0:" + "9" * 99}, "its slice is '0:9999"),
        ({"shape": "x"}, "Expected `array`"),
    ],
)  # fmt: skip
def test_what_is_no_proof_is_refused(changed: Any, words: str, known: Path) -> None:
    with pytest.raises(reshard.FormatError, match=words):
        reshard.SliceProof.from_dict({**proof_of(known).to_dict(), **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"top": "0" * 64}, "the proof of 'w' is of another tensor than that of the identity"),
        ({"shape": [2, 2]}, r"is of another tensor than that of the identity .*: it says float32 \[2, 2\] of the root"),
        ({"root": "0" * 64}, "is of another tensor"),
        ({"slice": "0:9,0:9,0:9"}, "the array is float32"),
        ({"slice": "1000:1750,0:1100"}, r"expected float32 \[750, 1100\], the slice \[1000:1750, 0:1100\] of 'w', which is float32 \[1500, 1100\]"),
        ({"slice": "750:1500,0:1100"}, "with its proof it gives the top"),
        ({"proof": ""}, "has 0 bytes; expected 32"),
    ],
)  # fmt: skip
def test_a_changed_proof_is_refused(changed: Any, words: str, known: Path) -> None:
    proof = reshard.SliceProof.from_dict({**proof_of(known).to_dict(), **changed})
    with pytest.raises(reshard.VerificationError, match=words):
        proof.check(W[:750], known, root=root_of(known))


def test_other_arrays_are_refused(known: Path) -> None:
    proof, root = proof_of(known), root_of(known)
    words = (
        r"^the array is float64 \[750, 1100\]; expected float32 \[750, 1100\], the slice \[0:750, 0:1100\] of 'w', which is float32 "
        r"\[1500, 1100\]: give the elements of the slice that the proof is of$"
    )
    with pytest.raises(reshard.VerificationError, match=words):
        proof.check(W[:750].astype(np.float64), known, root=root)
    for array in (W[:749], W, W[:750].astype(">f4"), W[750:]):
        with pytest.raises(reshard.VerificationError):
            proof.check(array, known, root=root)


def test_another_root_is_refused(known: Path, tmp_path: Path) -> None:
    proof = proof_of(known)
    with pytest.raises(reshard.VerificationError, match=f"but expected is {'0' * 64}"):
        proof.check(W[:750], known, root="0" * 64)
    with pytest.raises(reshard.PlanError, match="the root is 'zz'; expected a root of 64 hex"):
        proof.check(W[:750], known, root="zz")
    with pytest.raises(reshard.MissingError, match=r"expected a folder with the files of an iden"):
        proof.check(W[:750], tmp_path, root=root_of(known))
    with pytest.raises(reshard.TreeError, match=r"has no tensor 'v'; it has 6$"):
        reshard.SliceProof.from_dict({**proof.to_dict(), "name": "v"}).check(
            W[:750], known, root=root_of(known)
        )


def test_a_slice_that_cuts_tiles_has_no_proof(known: Path) -> None:
    proof = reshard.SliceProof.from_dict({**proof_of(known).to_dict(), "slice": "0:5,0:1100"})
    with pytest.raises(reshard.LayoutError, match="cuts tiles of its identity"):
        proof.check(W[:5], known, root=root_of(known))
