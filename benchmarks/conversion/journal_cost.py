"""What the journal of 100,000 small tasks costs: processor time to write and to read it, and its size.

python -m benchmarks.conversion.journal_cost
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from msgspec import to_builtins

from reshard.checksums.sums import Sums
from reshard.conversion.conversion_key import ConversionKey, plan_digest
from reshard.engine.journal import read_results, record_of
from reshard.engine.task import Result, StoredChunk
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Container
from reshard.formats.orbax.format import OrbaxForm
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.plans import Fill, Plan, Price, Side, TensorPlan
from reshard.storage.local.transaction import JournalHeader, new_journal, read_records

TASKS = 100_000
BATCH = 64


def _tensor(number: int) -> TensorPlan:
    spec = TensorSpec(
        f"layers/{number}/kernel", (64, 64), "float32", Grid.whole((64, 64)), (64, 64)
    )
    side = Side(spec, "raw+crc32c", True, 0)
    price = Price(1, 16384, 16384, 16388, 1, 1 << 20, 0.0)
    pieces, units = (Piece.whole(spec, spec),), Grid.whole((64, 64))
    return TensorPlan((Fill(pieces, (side,), side, "whole", units, 1 << 20, price),))


def main() -> None:
    """Prints processor seconds and bytes."""
    plan = Plan(tuple(map(_tensor, range(TASKS))), 1 << 30, 3)
    target = TargetCheckpoint(Container("v0", ()), {}, (), {}, form=OrbaxForm())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        before = time.process_time()
        plan_digest(plan, target)
        digested = time.process_time()
        made_by = to_builtins(ConversionKey("source", "files", {}))
        journal = new_journal(path, JournalHeader(made_by, "host", "boot", 1))
        for start in range(0, TASKS, BATCH):
            batch = [_result(n) for n in range(start, min(start + BATCH, TASKS))]
            journal.append(record_of(batch))
        journal.close()
        written = time.process_time()
        count = sum(1 for _ in read_results(read_records(path), plan))
        read = time.process_time()
        assert count == TASKS
        print(
            f"{TASKS:,} tasks: digest of the plan {digested - before:.2f} s, writing {written - digested:.2f} s, "
            f"reading {read - written:.2f} s, {path.stat().st_size / 2**20:.1f} MiB"
        )


def _result(number: int) -> Result:
    chunk = StoredChunk((0, 0), 0, 16384, 16388)
    total = (number * 0x9E3779B97F4A7C15) % 2**64
    return Result(number, 0, (Sums(total, total, 1, 1),), 16384, 9000, (chunk,))


if __name__ == "__main__":
    main()
