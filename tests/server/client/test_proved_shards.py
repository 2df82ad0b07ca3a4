"""The client checks a shard that it downloads against a root: every slice, and that none is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from reshard_server.client import Client
from reshard_server.client.tensors import Tensors

import reshard
from tests.server.live import Live

RANDOM = np.random.default_rng(8)
TREE = {
    "w": RANDOM.normal(size=(1024, 256)).astype(np.float32),
    "cut": RANDOM.normal(size=(300, 70)).astype(np.float32),
    "half": RANDOM.normal(size=(64, 64)).astype(ml_dtypes.bfloat16),
    "key": jax.random.key(3),
    "none": np.zeros((0, 4), np.float32),
    "scalar": np.float32(3),
    "note": "a text",
}
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [
        {"match": "^(w|half)$", "axes": [None, "x"]},
        {"match": "^cut$", "axes": ["x"]},
    ],
    "unmatched": "replicate",
}


@pytest.fixture(scope="module")
def known(served: Live) -> str:
    """The root of the checkpoint ``data/cut``."""
    path = served.log.parent / "data" / "cut"
    reshard.save(path, TREE)
    return reshard.identify(path, write=True).root


def download(client: Client, folder: Path, root: str | None, shard: int = 1, **more: Any) -> Path:
    layout = more.pop("layout", LAYOUT)
    return client.tensors.download_shard(
        "data/cut", shard, folder / "shard.safetensors", layout=layout, identity=root, **more
    )


@pytest.mark.parametrize("shard", [0, 3])
def test_a_shard_is_downloaded_and_checked(
    shard: int, client: Client, known: str, tmp_path: Path
) -> None:
    found = safetensors.numpy.load_file(download(client, tmp_path, known.upper(), shard))
    np.testing.assert_array_equal(found["w"], TREE["w"][:, 64 * shard : 64 * shard + 64])
    np.testing.assert_array_equal(found["cut"], TREE["cut"][75 * shard : 75 * shard + 75])
    assert found.keys() == TREE.keys() - {"note"}
    assert [p.name for p in tmp_path.iterdir()] == ["shard.safetensors"]


def test_some_tensors_of_it(client: Client, known: str, tmp_path: Path) -> None:
    file = download(client, tmp_path, known, select=["w|cut|half|note"], drop=["half", "note"])
    assert safetensors.numpy.load_file(file).keys() == {"w", "cut"}


def test_whole_tensors(client: Client, known: str, tmp_path: Path) -> None:
    file = download(client, tmp_path, known, 0, layout=None)
    np.testing.assert_array_equal(safetensors.numpy.load_file(file)["cut"], TREE["cut"])


def test_what_is_refused_before_anything_is_pulled(
    client: Client, known: str, tmp_path: Path
) -> None:
    with pytest.raises(
        reshard.PlanError,
        match=r"^a shard that is cast has other bits than the identity; leave out cast, and cast the arrays that you load$",
    ):
        download(client, tmp_path, known, cast={"w": "bfloat16"})
    with pytest.raises(reshard.VerificationError, match=f"but expected is {'0' * 64}"):
        download(client, tmp_path, "0" * 64)
    assert not list(tmp_path.iterdir())


@dataclass
class Parts:
    """A file in parts that can be changed."""

    header: dict[str, Any]
    stored: bytearray

    def slices(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Changes what the file says of its slices."""
        document = json.loads(self.header["__metadata__"]["reshard.slices"])
        change(document["tensors"])
        self.header["__metadata__"]["reshard.slices"] = json.dumps(document)


def remade(file: Path, change: Callable[[Parts], object]) -> None:
    """Changes the header and the bytes of a file."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    parts = Parts(json.loads(data[8:end]), bytearray(data[end:]))
    change(parts)
    text = json.dumps(parts.header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + parts.stored)


def flipped(name: str) -> Callable[[Parts], object]:
    def change(parts: Parts) -> None:
        parts.stored[parts.header[name]["data_offsets"][1] - 1] ^= 1

    return change


def left_out(parts: Parts) -> None:
    offsets = {k: v["data_offsets"] for k, v in parts.header.items() if k != "__metadata__"}
    last = max(offsets, key=lambda name: offsets[name])
    del parts.stored[offsets[last][0] :], parts.header[last]
    parts.slices(lambda tensors: tensors.pop(last))


def renamed(parts: Parts) -> None:
    parts.header["half2"] = parts.header.pop("half")
    parts.slices(lambda tensors: tensors.update(half2=tensors.pop("half")))


def moved(name: str, **members: Any) -> Callable[[Parts], object]:
    return lambda parts: parts.slices(lambda tensors: tensors[name].update(members))


def later_version(parts: Parts) -> None:
    metadata = parts.header["__metadata__"]
    document = {**json.loads(metadata["reshard.slices"]), "version": 9}
    metadata["reshard.slices"] = json.dumps(document)


CHANGES: dict[str, Callable[[Parts], object]] = {
    "matrix": flipped("w"),
    "scalar": flipped("scalar"),
    "key": flipped("key"),
    "cut tiles": flipped("cut"),
    "left out": left_out,
    "renamed": renamed,
    "unsaid": lambda parts: parts.slices(lambda tensors: tensors.pop("half")),
    "another slice": moved("w", offset=[0, 128]),
    "outside": moved("w", offset=[0, 200]),
    "full shape": moved("w", full_shape=[1024, 512]),
    "dtype": lambda parts: parts.header["half"].update(dtype="F16"),
    "shape": lambda parts: parts.header["half"].update(shape=[16, 64]),
    "cut short": lambda parts: parts.stored.pop(),
    "a later version": later_version,
}
SHARD = r"^the shard \S+/shard\.safetensors is not that of the identity [0-9a-f]{64}: "
ASK = "; find out who changed the checkpoint, or whether client and server have different versions$"


REFUSED = {
    "matrix": r"^the slice \[0:1024, 64:128\] of 'w' is not that of the identity",
    "scalar": r"^the slice \[\] of 'scalar' is not that of the identity",
    "key": r"^the slice \[0:2\] of 'key' is not that of the identity",
    "cut tiles": SHARD + r"'cut' holds other bytes at \[75:150, 0:70\]" + ASK,
    "left out": SHARD + r"'\w+' is not there" + ASK,
    "renamed": SHARD + "'half' is not there" + ASK,
    "unsaid": SHARD + "'half' says of no slice where it belongs" + ASK,
    "another slice": r"^the slice \[0:1024, 128:192\] of 'w' is not that of the identity",
    "outside": SHARD + r"'w' has a slice at \[0, 200\] that reaches outside of \[1024, 256\]" + ASK,
    "full shape": SHARD
    + r"'w' is a slice of shape \[1024, 64\] of \[1024, 512\], but expected is one of \[1024, 256\]"
    + ASK,
    "dtype": SHARD + "'half' has the dtype float16, but expected is bfloat16" + ASK,
    "shape": SHARD + r"'half' .*" + ASK,
    "cut short": r"^\S*shard\.safetensors .*" + ASK,
    "a later version": r"^reshard\.slices in the header of \S*/shard\.safetensors has the version 9; this version of reshard reads version 1"
    + ASK,
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_shards_are_refused(
    what: str,
    client: Client,
    known: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a server, or somebody between, that cannot be trusted."""
    check = Tensors._check_shard

    def changed(self: Tensors, partial: Path, *more: Any) -> None:
        remade(partial, CHANGES[what])
        check(self, partial, *more)

    monkeypatch.setattr(Tensors, "_check_shard", changed)
    with pytest.raises(reshard.VerificationError) as refused:
        download(client, tmp_path, known)
    assert re.search(REFUSED[what], str(refused.value)), str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_endless_shard_is_not_kept(
    client: Client, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard_server.client.proofs.MOST_HEADER_BYTES", -(10**6))
    with pytest.raises(
        reshard.VerificationError,
        match=r"^the server sent more than [\d,]+ bytes for a shard, though its tensors have fewer; find out who",
    ):
        download(client, tmp_path, known)
    assert not list(tmp_path.iterdir())
