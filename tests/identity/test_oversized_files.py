"""Files of an identity that ask for too much: refused before their trees are read or made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.identity import identity_file
from reshard.identity.identity_file import read_identity, read_nodes
from reshard.identity.weights_identity import TensorIdentity, WeightsIdentity
from reshard.storage.location import locate


def test_a_shape_that_no_machine_has_is_refused_before_its_tree_is_made(checkpoint: Path) -> None:
    found = TensorIdentity("w", "float32", (1 << 40, 1 << 19), "0" * 64, "0" * 16)
    made = WeightsIdentity.of([found], {}, "0" * 64)
    tensor = {"name": "w", "dtype": "float32", "shape": [1 << 40, 1 << 19], "top": "0" * 64, "crc64nvme": "0" * 16}  # fmt: skip
    path = checkpoint / "identity.json"
    document = json.loads(path.read_text())
    document |= {"root": made.root, "contents": made.contents, "rest": made.rest}
    path.write_text(json.dumps({**document, "tensors": [tensor]}))
    with pytest.raises(
        reshard.CorruptError,
        match=r"identity\.tree is damaged: it has .* bytes, but the tensors of identity\.json have 70,368,744,177,705 or more;",
    ):
        read_identity(locate(checkpoint), with_tree=True)


def test_counting_ends_with_the_first_tensor_that_is_too_much(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape of 64 dimensions takes a millisecond to count, and a hostile file has 60,000 of them."""
    counted: list[str] = []
    original = identity_file.kept_nodes

    def noted(tensor: TensorIdentity) -> int:
        counted.append(tensor.name)
        return original(tensor)

    monkeypatch.setattr(identity_file, "kept_nodes", noted)
    shape = (2,) * 59 + (1,) * 5
    tensors = [TensorIdentity(f"t{i}", "float32", shape, "0" * 64, "0" * 16) for i in range(9)]
    found = WeightsIdentity.of(tensors, {}, "0" * 64)
    with pytest.raises(reshard.CorruptError, match=r"have 70,368,744,177,705 or more;"):
        read_nodes(locate(checkpoint), found, ["t8"])
    assert counted == ["t0"]
    (checkpoint / "identity.tree").write_bytes(b"x")
    with pytest.raises(reshard.CorruptError, match="it does not begin as version 1 does"):
        read_nodes(locate(checkpoint), found, ["t8"])
    assert counted == ["t0"]


def test_a_tree_that_is_too_large_is_refused_before_it_is_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_file, "_MOST_TREE_BYTES", 100)
    with pytest.raises(
        reshard.FormatError, match=r"identity\.tree has \d+ bytes, and at most 100 "
    ):
        reshard.verify(checkpoint, identity=checkpoint)


def test_an_identity_of_other_tensors_is_refused_before_its_tree_is_read(
    checkpoint: Path, tmp_path: Path
) -> None:
    other = {"other": np.zeros(4, "float32")}
    reshard.save(tmp_path / "other", other)
    for name in ("identity.json", "identity.tree"):
        shutil.copy(checkpoint / name, tmp_path / "other" / name)
    (tmp_path / "other" / "identity.tree").write_bytes(b"")
    with pytest.raises(reshard.CorruptError, match="does not fit its tensors"):
        reshard.convert(tmp_path / "other", tmp_path / "out", identity="carry")
