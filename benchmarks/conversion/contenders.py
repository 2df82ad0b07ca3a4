"""The contenders: for each a command line, from a source to a target."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Workplace:
    """The folders and files of one benchmark.

    Attributes:
        source: what stock Orbax saved from the (4, 2) mesh.
        options: what every command line of this project is given besides.
    """

    root: Path
    source: Path
    options: tuple[str, ...] = ()

    @property
    def target(self) -> Path:
        """What a contender writes; gone from there after each run."""
        return self.root / "target"

    @property
    def raw(self) -> Path:
        """The source converted by this project to the (8,) mesh, uncompressed."""
        return self.root / "raw"

    @property
    def zstd(self) -> Path:
        """The same, with zstd-1."""
        return self.root / "zstd"

    @property
    def to_target(self) -> Path:
        """Layout file of the (8,) mesh."""
        return self.root / "to_target.yaml"

    @property
    def to_source(self) -> Path:
        """Layout file of the (4, 2) mesh."""
        return self.root / "to_source.yaml"


Command = Callable[[Workplace], list[str]]


@dataclass(frozen=True)
class Contender:
    """One thing that is measured.

    Attributes:
        label: what it does, for the table.
        against: names of the contenders whose cost its own is divided by.
        memory_trees: memory that it is known to need, in sizes of the tree.
        needs: names of the contenders whose output it reads; made once, before the rounds.
    """

    label: str
    command: Command
    against: tuple[str, ...] = ()
    memory_trees: float = 0.0
    needs: tuple[str, ...] = ()


def _ours(work: Workplace, source: Path, layout: Path, *options: str) -> list[str]:
    words = ("-m", "reshard", "convert", source, work.target, "--layout", layout)
    return [sys.executable, *map(str, words), *options, *work.options]


def _orbax(program: str, *words: object) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.peers.{program}", *map(str, words)]


def _copy(source: Path, target: Path) -> list[str]:
    return ["cp", "-r", str(source), str(target)]


CONTENDERS = {
    "cp": Contender("cp -r of the source", lambda w: _copy(w.source, w.target)),
    "orbax": Contender(
        "Orbax restore + save",
        lambda w: _orbax("orbax_convert", "default", w.source, w.target),
        against=("cp",),
        memory_trees=2.4,
    ),
    "orbax-tuned": Contender(
        "Orbax restore + save, tuned",
        lambda w: _orbax("orbax_convert", "tuned", w.source, w.target),
        against=("cp",),
        memory_trees=1.6,
    ),
    "raw": Contender(
        "reshard, uncompressed",
        lambda w: _ours(w, w.source, w.to_target),
        against=("cp", "orbax", "orbax-tuned"),
    ),
    "zstd": Contender(
        "reshard, zstd-1",
        lambda w: _ours(w, w.source, w.to_target, "--compression", "zstd:1"),
        against=("cp", "orbax", "orbax-tuned"),
    ),
    "ocdbt": Contender(
        "reshard, into OCDBT",
        lambda w: _ours(w, w.source, w.to_target, "--ocdbt"),
        against=("cp", "orbax", "orbax-tuned"),
    ),
    "keep": Contender(
        "reshard, same grid and codec",
        lambda w: _ours(w, w.source, w.to_source, "--compression", "keep"),
        against=("cp",),
    ),
    "cp-raw": Contender(
        "cp -r of reshard's output", lambda w: _copy(w.raw, w.target), needs=("raw",)
    ),
    "raw-raw": Contender(
        "reshard, raw to raw",
        lambda w: _ours(w, w.raw, w.to_source),
        against=("cp-raw",),
        needs=("raw",),
    ),
    "restore-source": Contender(
        "Orbax restores the source",
        lambda w: _orbax("orbax_restore", w.source),
        memory_trees=2.4,
    ),
    "restore-raw": Contender(
        "Orbax restores reshard's output",
        lambda w: _orbax("orbax_restore", w.raw),
        against=("restore-source",),
        memory_trees=2.4,
        needs=("raw",),
    ),
    "restore-zstd": Contender(
        "Orbax restores reshard's zstd-1",
        lambda w: _orbax("orbax_restore", w.zstd),
        against=("restore-source",),
        memory_trees=2.4,
        needs=("zstd",),
    ),
}

LARGE_TENSORS = tuple(name for name in CONTENDERS if name != "ocdbt")
SMALL_TENSORS = ("cp", "orbax", "orbax-tuned", "raw", "ocdbt", "restore-source", "restore-raw")


def write_layouts(work: Workplace, many_small: bool) -> None:
    """The two layout files, with rules for the tensors that this tree has."""
    embedding = "" if many_small else '  - {match: "embedding", axes: [model, null]}\n'
    work.to_target.write_text(
        "mesh: {axes: [model], shape: [8]}\nrules:\n"
        f'{embedding}  - {{match: "kernel|scales", axes: [null, model]}}\n'
    )
    work.to_source.write_text(
        "mesh: {axes: [data, model], shape: [4, 2]}\nrules:\n"
        '  - {match: "embedding|kernel|scales", axes: [data, model]}\n'
    )
