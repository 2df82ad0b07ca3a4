"""Damage to the folder: links, pipes, devices, sockets, folders for files, sparse files, odd names."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from pathlib import Path

from tests.robustness.hostile.damage_json import NAMES

SPARSE_BYTES = 1 << 40


def files_of(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


def replace_file(rng: random.Random, root: Path, path: Path | None = None) -> str:
    """Something that is no plain file in place of one, or a plain file that is another's."""
    path = path or rng.choice(files_of(root))
    kind = rng.choice(KINDS)
    data = path.read_bytes()
    path.unlink()
    put_kind(kind, path, data, root)
    return f"{kind} for {path.relative_to(root)}"


KINDS = (
    "nothing", "folder", "pipe", "socket", "loop", "link out", "link to nowhere", "link to zero", "link to random",
    "link in", "hard link", "sparse", "longer", "empty", "link to proc",
)  # fmt: skip


def put_kind(kind: str, path: Path, data: bytes, root: Path) -> None:
    """Something of that kind at ``path``, where a file with ``data`` was."""
    outside = root.parent / "outside"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        _put_socket(path)
    elif kind == "hard link":
        os.link(outside / "canary", path)
    elif kind == "sparse":
        path.write_bytes(data)
        os.truncate(path, SPARSE_BYTES)
    elif kind in ("longer", "empty"):
        path.write_bytes(data + data if kind == "longer" else b"")
    elif kind == "link in":
        (path.parent / "moved").write_bytes(data)
        path.symlink_to("moved")
    elif kind != "nothing":
        if kind == "link out":
            (outside / "data").write_bytes(data)
        path.symlink_to(_LINKS[kind].format(outside=outside, name=path.name))


_LINKS = {
    "loop": "{name}", "link out": "{outside}/data", "link to nowhere": "{outside}/nowhere", "link to zero": "/dev/zero",
    "link to random": "/dev/urandom", "link to proc": "/proc/self/environ",
}  # fmt: skip


def _put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def replace_folder(rng: random.Random, root: Path) -> str:
    """A link, a loop or a file in place of a folder."""
    folder = rng.choice([p for p in sorted(root.rglob("*")) if p.is_dir()])
    kind = rng.choice(("out", "loop", "file", "away", "pipe"))
    moved = root.parent / "outside" / "folder"
    if kind == "out":
        shutil.move(folder, moved)
        folder.symlink_to(moved)
        return f"{folder.name} lies outside"
    shutil.rmtree(folder)
    if kind == "loop":
        folder.symlink_to(".")
    elif kind == "file":
        folder.write_bytes(b"no folder")
    elif kind == "pipe":
        os.mkfifo(folder)
    return f"{kind} for folder {folder.name}"


def rename_leaf(rng: random.Random, root: Path) -> str:
    """A leaf gets a hostile name, and its folder too where a file system takes it."""
    path = rng.choice([p for p in files_of(root) if p.name == "_METADATA"])
    document = json.loads(path.read_bytes())
    entry = rng.choice(list(document["tree_metadata"].values()))
    step, name = rng.choice(entry["key_metadata"]), rng.choice(NAMES)
    old = path.parent / ".".join(k["key"] for k in entry["key_metadata"])
    step["key"] = name
    new = path.parent / ".".join(k["key"] for k in entry["key_metadata"])
    path.write_text(json.dumps(document))
    if (
        old.is_dir()
        and "\0" not in name
        and "\ud800" not in name
        and ".." not in name
        and name[:1] != "/"
    ):
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)
        except OSError:
            pass
    return f"leaf named {name[:20]!a}"


def add_many(rng: random.Random, root: Path) -> str:
    """Thousands of leaves, items, processes' files or steps in a path."""
    path = rng.choice([p for p in files_of(root) if p.name == "_METADATA"])
    document = json.loads(path.read_bytes())
    some = rng.choice(list(document["tree_metadata"].values()))
    how = rng.choice(("leaves", "steps", "items", "processes"))
    if how == "leaves":
        value = dict(some["value_metadata"], skip_deserialize=rng.random() < 0.7)
        for i in range(3000):
            keys = [{"key": f"many{i}", "key_type": 2}]
            document["tree_metadata"][f"('many{i}',)"] = {
                "key_metadata": keys,
                "value_metadata": value,
            }
    elif how == "steps":
        some["key_metadata"] = [{"key": "s", "key_type": 2}] * rng.choice((200, 257, 50_000))
    elif how == "items":
        for i in range(500):
            (root / f"item{i}").mkdir()
    else:
        (path.parent / "array_metadatas").mkdir(exist_ok=True)
        for i in range(500):
            (path.parent / "array_metadatas" / f"process_{i + 10}").write_text(
                '{"array_metadatas": []}'
            )
    path.write_text(json.dumps(document))
    return f"many {how}"
