"""A server with runs and single checkpoints of TensorFlow and of torch's DCP, and some that lead out of its roots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import reshard
from tests.dcp_files import cut, write_dcp
from tests.formats.safetensors.build import snapshot_of
from tests.server.live import Live, live
from tests.server.prefixes.saved import ENDINGS, TABLE, TENSORFLOW, TREE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its root ``data`` has two runs and single prefixes. Its root ``other`` is a folder inside a repository of Hugging Face's cache."""
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    reshard.save(data / "orbax", TREE)
    for name in ("tf/ckpt-7", "tf/ckpt-30", "tf/best", "top", "../secret/ckpt", "hf/ckpt"):
        reshard.convert(data / "orbax", os.path.normpath(data / name), **TENSORFLOW)
    (data / "tf" / "ckpt-40.data-00000-of-00001").write_bytes(b"begun")
    (data / "tf" / "checkpoint").write_text('model_checkpoint_path: "ckpt-30"\n')
    for step in (10, 20):
        tree = {"model.table": cut(TABLE, 3), "model.bias": cut(TREE["model"]["bias"], 1)}
        write_dcp(data / "torch" / f"step-{step}", tree, files=3)
    (data / "torch" / "step-30").mkdir()
    (data / "torch" / "step-30" / "__0_0.distcp").write_bytes(b"begun")
    _link(data / "linked" / "ckpt", folder / "secret" / "ckpt", ".data-00001-of-00003")
    _link(data / "by-index" / "ckpt", folder / "secret" / "ckpt", ".index")
    snapshot = snapshot_of(data / "hf", folder / "models--a--b")
    with live(folder, "--root", f"other={snapshot.parent}", requests_per_minute=10**6) as found:
        yield found


def _link(prefix: Path, secret: Path, ending: str) -> None:
    """A copy of which one file is a link out of the root."""
    prefix.parent.mkdir()
    for one in ENDINGS:
        there = secret.with_name(secret.name + one)
        place = prefix.with_name(prefix.name + one)
        if one == ending:
            place.symlink_to(there)
        else:
            place.write_bytes(there.read_bytes())


@pytest.fixture
def client(server: Live) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


@pytest.fixture
def data(server: Live) -> Path:
    return server.log.parent / "data"
