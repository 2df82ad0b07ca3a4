"""Moves a small chunk that holds the same elements on all sides: decode, encode and write at once.

Checkpoints have thousands of small tensors of one chunk each. The other strategies cut bands into pieces and
sum pieces up row by row, which takes longer than moving so few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.checksums.coverage import coverage_of
from reshard.checksums.tensor_digest import CRC64NVME, linear_of_box
from reshard.engine.decode.chunk_decoder import StoredChunks, chunk_bytes, decode_into
from reshard.engine.error_context import about_target, about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.task import Task, TaskResult, source_element_type
from reshard.engine.write.chunk_files import store_chunk

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


def move_whole(
    task: Task, outputs: Sequence[TaskOutput], memory: Bytes, encoded: Bytes
) -> list[TaskResult]:
    """Moves the task's one chunk to all its targets, through ``memory``, which holds it decoded.

    ``encoded`` is memory for the encoded bytes, where they are decoded at once. The source's digest is taken
    after decoding, and a target's after writing, of the memory that was written.
    """
    (source,) = task.sources
    stored = StoredChunks(
        task.placement.source, task.placement.source_dtype, task.source_encoding, task.fill
    )
    dtype = source_element_type(task)
    memory = memory[: chunk_bytes(source, task.placement.source_dtype)]
    decode_into(memory, stored, source, encoded)
    elements: Array = memory.view(dtype).reshape(source.stored_shape)
    read_crc = linear_of_box(CRC64NVME, elements, source.box, task.placement.shape)
    return [_written(t, outputs[t.target], memory, read_crc) for t in task.all]


def _written(task: Task, output: TaskOutput, memory: Bytes, read_crc: int) -> TaskResult:
    (source,), (target,) = task.sources, task.targets
    with (
        about_target(output.target),
        about_tensor(task.placement.target, source=task.placement.source),
    ):
        written = store_chunk(task, target, memory, output)
    target = written.target
    elements: Array = written.data.view(source_element_type(task)).reshape(target.box.shape)
    written_crc = linear_of_box(CRC64NVME, elements, target.box, task.target_shape)
    return TaskResult(
        task.move,
        read_crc,
        written_crc,
        elements.nbytes,
        source.extent.length if source.extent else 0,
        (written.part(elements.nbytes),),
        source_cover=coverage_of(task.placement.from_source(source.box)),
        target_cover=coverage_of(target.box),
    )
