"""A root with links of every kind, who may use it, and both ways to look paths up below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reshard_server.auth.local_root import Lookup, lookup_by_kernel, lookup_by_walk
from reshard_server.auth.root_paths import Roots
from reshard_server.auth.tokens import Caller
from reshard_server.errors.problems import ProblemError

from reshard.storage.location import locate

ANN = Caller("ann", frozenset({"read", "convert"}), frozenset({"data"}), frozenset({"data"}))
EVE = Caller("eve", frozenset({"read", "convert"}), frozenset({"data", "gone"}), frozenset())
LOOKUPS = [lookup_by_kernel, lookup_by_walk]


def build(folder: Path) -> Path:
    """A root with links of every kind, and secrets beside and above it."""
    root = folder / "data"
    (root / "run" / "1000" / "d").mkdir(parents=True)
    (root / "run" / "file").write_text("x")
    (folder / "secret").mkdir()
    (folder / "secret" / "key").write_text("secret")
    (folder / "database").mkdir()
    for name, leads in LINKS.items():
        (root / name).symlink_to(leads.format(root=root, folder=folder))
    (root / "run" / "up").symlink_to("..")
    (root / "run" / "out").symlink_to("../../secret")
    return root


LINKS = {
    "latest": "run/1000",
    "to_latest": "latest",
    "slash": "run/",
    "dots": "run/./1000/../1000",
    "odd": "run//1000",
    "outside": "../secret",
    "sibling": "../database",
    "round": "../data/run",
    "absolute": "{folder}/secret",
    "inside_absolute": "{root}/run",
    "etc": "/etc",
    "proc": "/proc/self/root",
    "through": "outside/key",
    "circle": "circle",
    "pair_a": "pair_b",
    "pair_b": "pair_a",
    "dangling": "nothing",
    "dangling_out": "../nothing",
    "to_file": "run/file",
    "through_file": "run/file/..",
    "file_slash": "run/file/",
    "itself": ".",
}


def roots_of(folders: dict[str, Path], lookup: Lookup) -> Roots:
    return Roots.of({name: locate(folder) for name, folder in folders.items()}, lookup)


def refused(call: Callable[..., object], *args: object, **more: object) -> ProblemError:
    with pytest.raises(ProblemError) as raised:
        call(*args, **more)
    return raised.value
