"""The progress of a conversion that resumed and has one task left."""

from __future__ import annotations

from reshard_server.schemas.conversion import ProgressState

PROGRESS = ProgressState(
    stage="copying", moved_bytes=40 << 20, total_bytes=50 << 20, resumed_bytes=10 << 20, tasks_done=4, tasks=5,
    tensor="params/kernel", bytes_per_second=2.5 * 2**20, seconds_left=200,
)  # fmt: skip
