"""How long planning takes: 1e12 parameters in 2,000 tensors, from 16,384 to 1,024 devices.

``python -m benchmarks.conversion.plan_scale [--tensors 2000]`` prints time and peak memory. Nothing is read
or written: the tensors exist as specs only.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

from reshard.geometry.grid import Grid
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec

SHAPE = (16384, 30720)
"""5.03e8 elements; 2,000 of them are 1.007e12 parameters."""

SOURCE = TensorLayout(("data", "model"), DeviceMesh((128, 128), ("data", "model")))
TARGET = TensorLayout((None, "model"), DeviceMesh((1024,), ("model",)))


def specs(count: int, layout: TensorLayout) -> Iterator[TensorSpec]:
    """Tensors stored as this layout cuts them: one chunk for each shard."""
    grid: Grid = layout.grid(SHAPE)
    for number in range(count):
        name = f"layers/{number:04d}/kernel"
        yield TensorSpec(name, SHAPE, "bfloat16", grid, layout.shard_shape(SHAPE), layout)


def plan_tree(count: int, max_memory: int) -> int:
    """Plan them all and return the number of tasks; the one place that knows the planner."""
    from reshard.planning.piece import Piece
    from reshard.planning.planner import WantedPiece, make_plan
    from reshard.planning.plans import Side

    pairs = zip(specs(count, SOURCE), specs(count, TARGET), strict=True)
    wanted_pieces = [
        WantedPiece(
            Piece.whole(source, target),
            Side(source, "zstd:1", raw=False, stream_bytes=2 << 20),
            Side(target, "raw+crc32c", raw=True, stream_bytes=0),
        )
        for source, target in pairs
    ]
    return make_plan(wanted_pieces, max_memory, workers=2).tasks


def main() -> None:
    """Parse the command line, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=2000)
    parser.add_argument("--max-memory-mib", type=int, default=1024)
    arguments = parser.parse_args()
    before = _peak_mib()
    started = time.perf_counter()
    tasks = plan_tree(arguments.tensors, arguments.max_memory_mib * 2**20)
    seconds = time.perf_counter() - started
    parameters = arguments.tensors * SHAPE[0] * SHAPE[1]
    print(f"{parameters:.3g} parameters in {arguments.tensors} tensors, 16,384 to 1,024 devices:")
    print(f"{tasks} tasks planned in {seconds:.2f} s; peak {_peak_mib():.0f} MiB", end=" ")
    print(f"({before:.0f} MiB before planning)")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
