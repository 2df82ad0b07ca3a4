"""A conversion of pieces that are given by hand: planned, run, killed and resumed, and held against plain numpy."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reshard.engine.books import Books, DoneUnits, TargetRun, TensorResult
from reshard.engine.journal import read_results, record_of
from reshard.engine.output import TargetOutput
from reshard.engine.run import run_batches
from reshard.engine.task_stream import task_batches
from reshard.formats.contents import Encoding
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.grid import Box, Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import WantedPiece, make_multi_plan
from reshard.planning.plans import MultiPlan, Side
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, Folder, Store, tensor
from tests.equal import assert_same

MIB = 1 << 20
ENCODINGS = pytest.mark.parametrize("encoding", [RAW_CRC, ZSTD_CRC], ids=["in pieces", "assembled"])


@dataclass
class Conversion:
    """Sources on disk, the pieces of targets, and what plain numpy makes of them."""

    root: Path
    encoding: Encoding

    def __post_init__(self) -> None:
        self.stores = [Store(self.root / f"source{n}") for n in range(2)]
        self.requests: list[WantedPiece] = []
        self.expected: dict[str, np.ndarray] = {}
        self.targets: dict[str, TensorSpec] = {}

    def source(
        self, name: str, shape: Sequence[int], chunk: Sequence[int], checkpoint: int = 0
    ) -> np.ndarray:
        """A source of numbers that all differ."""
        spec = tensor(name, shape, chunk)
        seed = len(self.stores[checkpoint].tensors) + 100 * checkpoint
        values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        self.stores[checkpoint].add(spec, values, ZSTD, recorded=True)
        return values

    def target(self, name: str, values: np.ndarray, chunk: Sequence[int]) -> TensorSpec:
        """A target that must have these values."""
        self.expected[name] = values
        self.targets[name] = tensor(name, values.shape, chunk)
        return self.targets[name]

    def piece(self, piece: Piece) -> None:
        """One more piece of a target."""
        target = self.targets[piece.target]
        side = Side(target, str(self.encoding), self.encoding.compressor == "none", 1 << 16)
        if piece.fill is not None:
            spec = TensorSpec("", piece.shape, "float32", Grid.whole(piece.shape), piece.shape)
            source = Side(spec, "raw", True, 0)
        else:
            spec = self.stores[piece.checkpoint].tensors[piece.source].spec
            source = Side(spec, "zstd:1", False, 1 << 16)
        self.requests.append(WantedPiece(piece, source, side))

    def plan(self, memory: int = 64 * MIB) -> MultiPlan:
        return make_multi_plan([self.requests], memory, 2)

    def run(self, plan: MultiPlan, journal: Path, *, dies_after: int = 0) -> list[TensorResult]:
        """Does what the journal does not have; it dies after so many records."""
        folder, encodings = Folder(), dict.fromkeys(self.targets, self.encoding)
        output = TargetOutput(folder, encodings, str(self.root / "t"))
        (alone,) = plan.plans
        books, done = Books(alone, output), DoneUnits(alone)
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        for result in read_results(lines, alone):
            books.take(result)
            done.add(result.tensor, result.unit)
        count = 0

        def record(results) -> None:
            nonlocal count
            with journal.open("a") as file:
                file.write(record_of(results) + "\n")
            count += 1
            if count == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        target = TargetRun(output, books, done, record)
        batches = task_batches(plan, self.stores, [target])
        one_by_one = ((task,) for batch in batches for task in batch)
        self.read_bytes = run_batches(one_by_one, [target], alone.max_memory, 1)
        return books.results()

    def killed_and_resumed(self, plan: MultiPlan) -> list[TensorResult]:
        """Killed after its first record, and again after one more, by SIGKILL; the third run ends."""
        journal = self.root / "journal"
        context = multiprocessing.get_context("spawn")
        for _ in range(2):
            child = context.Process(target=self.run, args=(plan, journal), kwargs={"dies_after": 1})
            child.start()
            child.join(300)
            assert child.exitcode == -signal.SIGKILL
        assert len(journal.read_bytes().splitlines()) == 2
        return self.run(plan, journal)

    def check(self, plan: MultiPlan, results: Sequence[TensorResult]) -> None:
        """Every target has every bit, and its digest is the one of its bytes."""
        for tensor_plan, result in zip(plan.plans[0].tensors, results, strict=True):
            name = tensor_plan.name
            found = Folder().read(self.root / "t", self.targets[name], self.encoding)
            assert_same(found, self.expected[name])
            assert result.target_digest == digest_of(found.tobytes())


def moved(
    source: str,
    source_box: Box,
    target: str,
    target_box: Box,
    order: Sequence[int] | None = None,
    **more,
) -> Piece:
    order = tuple(range(source_box.rank)) if order is None else tuple(order)
    return Piece(source, source_box, target, target_box, order, "float32", "float32", **more)
