"""Moves a small chunk that holds the same elements on all sides: decode, encode and write at once.

Checkpoints have thousands of small tensors of one chunk each. The other strategies cut bands into pieces and
sum pieces up row by row, which takes longer than moving so few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reshard.checksums.sums import Sums, coverage_of, sum_of_box
from reshard.engine.decode.chunk_reader import StoredChunks, chunk_bytes, decode_into
from reshard.engine.error_context import about_target, about_tensor
from reshard.engine.output import TaskOutput
from reshard.engine.task import Result, SourceRead, Task, Unit, source_element_type
from reshard.engine.write.chunk_files import store_chunk

if TYPE_CHECKING:
    import numpy.typing as npt

    from reshard.engine.buffers import Bytes

    Array = npt.NDArray[Any]


def move_whole(
    task: Task, outputs: Sequence[TaskOutput], memory: Bytes, encoded: Bytes
) -> list[Result]:
    """Moves the task's one chunk to all its targets, through ``memory``, which holds it decoded.

    ``encoded`` is memory for the encoded bytes, where they are decoded at once. The source's digest is taken
    after decoding, and a target's after writing, of the memory that was written.
    """
    (read,) = task.reads
    (source,) = read.chunks
    dtype = source_element_type(task.units[0].pieces[0])
    memory = memory[: chunk_bytes(source, read.dtype)]
    decode_into(memory, StoredChunks.of_read(read), source, encoded)
    elements: Array = memory.view(dtype).reshape(source.stored_shape)
    found = sum_of_box(elements, source.box, read.shape)
    stored = 0 if read.crcs is None else read.crcs.sum_of_box(elements, source.box, read.shape)
    sums = Sums(found, found, read=coverage_of(source.box), stored=stored)
    return [_written(unit, read, outputs[unit.target], memory, sums) for unit in task.units]


def _written(unit: Unit, read: SourceRead, output: TaskOutput, memory: Bytes, sums: Sums) -> Result:
    (target,), (piece,) = unit.chunks, unit.pieces
    with about_target(output.target), about_tensor(unit.name, source=read.name):
        encoded = store_chunk(unit, target, memory, output)
    target = encoded.target
    elements: Array = encoded.data.view(source_element_type(piece)).reshape(target.box.shape)
    written = Sums(
        target=sum_of_box(elements, target.box, unit.shape), written=coverage_of(target.box)
    )
    return Result(
        unit.tensor,
        unit.number,
        (sums.merge(written),),
        elements.nbytes,
        read.stored_bytes,
        (encoded.stored,),
        target=unit.target,
    )
