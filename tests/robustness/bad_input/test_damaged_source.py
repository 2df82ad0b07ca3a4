"""Damaged checkpoints, and the error for each kind of damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reshard.errors import (
    CorruptError,
    FormatError,
    IncompleteCheckpointError,
    ReshardError,
)
from tests.robustness.bad_input.checking import (
    edit,
    refused,
    refused_by_command,
)


@dataclass(frozen=True)
class Damage:
    """Something done to a checkpoint, and what must be said of it."""

    name: str
    do: Callable[[Path], object]
    error: type[ReshardError]
    texts: tuple[str, ...]
    of: str = "plain"
    options: Mapping[str, Any] = field(default_factory=dict)


def cut(name: str, share: float = 0.5) -> Callable[[Path], object]:
    def do(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(len(data) * share)])

    return do


def put_bytes(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(data)


def remove(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def flip(name: str) -> Callable[[Path], object]:
    """Every byte of a file is turned around."""
    return lambda path: (path / name).write_bytes(
        bytes(255 - b for b in (path / name).read_bytes())
    )


def garble_index(path: Path) -> None:
    for file in (path / "d").iterdir():
        flip(str(file))(path)


def garble_values(path: Path) -> None:
    """The files of the process that wrote the values, which the merged index points into."""
    for file in (path / "ocdbt.process_0" / "d").iterdir():
        flip(str(file))(path)


def cut_database(path: Path) -> None:
    for file in path.rglob("d/*"):
        cut(str(file))(path)


def lose_database(path: Path) -> None:
    for folder in [p for p in path.rglob("d") if p.is_dir()]:
        shutil.rmtree(folder)


def every_metadata_file() -> list[Damage]:
    names = {
        "plain": [
            "_METADATA", "_CHECKPOINT_METADATA", "_sharding", "_strings.json",
            "array_metadatas/process_0", "params.kernel/.zarray",
        ],
        "zstd": ["params.kernel/zarr.json"],
        "v1": ["_CHECKPOINT_METADATA", "state/_METADATA", "state/_sharding"],
    }  # fmt: skip
    breaks: list[tuple[str, Callable[[str], Callable[[Path], object]]]] = [
        ("truncated", cut),
        ("empty", lambda name: put_bytes(name, b"")),
        ("not-json", lambda name: put_bytes(name, b"\x00not json at all")),
        ("not-an-object", lambda name: put_bytes(name, b"[1, 2]")),
    ]
    return [
        Damage(f"{how}-{of}-{name.replace('/', '.')}", do(name), CorruptError, (name,), of)
        for of, files in names.items()
        for name in files
        for how, do in breaks
    ]


DAMAGE = [
    *every_metadata_file(),
    Damage(
        "no-tree-metadata", remove("_METADATA"), IncompleteCheckpointError,
        ("should contain _METADATA", "it was never committed, or files were lost"),
    ),
    Damage(
        "no-item-metadata", remove("state/_METADATA"), IncompleteCheckpointError,
        ("state should contain _METADATA", "it was never committed, or files were lost"), "v1",
    ),
    Damage(
        "no-commit-marker", remove("_CHECKPOINT_METADATA"), IncompleteCheckpointError,
        ("has the marker orbax.checkpoint but no _CHECKPOINT_METADATA", "use a checkpoint that was saved completely"),
        "v1",
    ),
    Damage(
        "array-lost", lambda path: shutil.rmtree(path / "params.kernel"), CorruptError,
        ("the tensor 'params/kernel' is in _METADATA, but its metadata", "params.kernel/.zarray"),
    ),
    Damage(
        "chunk-missing", remove("params.kernel/0.0"), CorruptError,
        ("1 chunk is not stored: 'params/kernel' (1 of", "though the checkpoint records that it stores every chunk; restore the checkpoint from a copy"),
    ),
    Damage(
        "chunk-truncated", cut("params.kernel/1.0"), CorruptError,
        ("tensor 'params/kernel', chunk [1, 0]", "params.kernel/1.0"),
    ),
    Damage(
        "chunk-empty", put_bytes("params.kernel/1.0", b""), CorruptError,
        ("tensor 'params/kernel', chunk [1, 0]", "params.kernel/1.0"),
    ),
    Damage(
        "chunk-too-long", lambda path: put_bytes("params.kernel/1.0", bytes(999))(path), CorruptError,
        ("tensor 'params/kernel', chunk [1, 0]", "params.kernel/1.0", "999"),
    ),
    Damage(
        "chunk-garbage", flip("params.kernel/c/0/0"), CorruptError,
        ("tensor 'params/kernel', chunk [0, 0]", "params.kernel/c/0/0"), "zstd",
    ),
    Damage(
        "compressed-chunk-truncated", cut("params.kernel/c/1/1", 0.9), CorruptError,
        ("tensor 'params/kernel', chunk [1, 1]", "params.kernel/c/1/1"), "zstd",
    ),
    Damage("index-garbage", garble_index, CorruptError, ("d/", "restore the folder from a copy"), "ocdbt"),
    Damage("values-garbage", garble_values, CorruptError, ("tensor 'table', chunk [0, 0]", "/d/"), "ocdbt"),
    Damage("database-truncated", cut_database, CorruptError, ("d/", "truncated", "from a copy"), "ocdbt"),
    Damage("database-lost", lose_database, CorruptError, ("d/", "is missing; restore it from a copy"), "ocdbt"),
    Damage(
        "manifest-garbage", flip("manifest.ocdbt"), CorruptError, ("manifest.ocdbt",), "ocdbt",
    ),
    Damage(
        "unsupported-codec",
        edit("params.kernel/.zarray", '"compressor":null', '"compressor":{"id":"nope"}'),
        FormatError, ("'params/kernel'", "nope"),
    ),
    Damage(
        "absurd-shape", edit("params.kernel/.zarray", '"shape":[16,8]', '"shape":[4611686018427387904,8]'),
        FormatError, ("'params/kernel'",),
    ),
    Damage(
        "negative-shape", edit("params.kernel/.zarray", '"shape":[16,8]', '"shape":[-16,8]'),
        FormatError, ("params.kernel/.zarray",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=[d.name for d in DAMAGE])
def test_damaged_source(damage, saved, tmp_path, capsys):
    src = Path(shutil.copytree(saved[damage.of], tmp_path / "src"))
    damage.do(src)
    refused(src, tmp_path / "dst", damage.error, *damage.texts)
    refused_by_command(capsys, src, tmp_path / "dst", *damage.texts)
