"""The digest that a band must have after a cast or a change of byte order.

Where elements keep their type and order, source and target have the same digest. Else what should
have been written is made a second time from the decoded band, apart from everything that cuts,
casts and places it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reshard.checksums.tensor_digest import CRC64NVME, linear_of_box
from reshard.engine.cast import SLAB_ELEMENTS, converted
from reshard.engine.task import Task, target_element_type
from reshard.geometry.box import Box

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def changes_bytes(task: Task) -> bool:
    """Whether source box and target tensor are not the same row-major bytes."""
    placement = task.placement
    return (
        placement.is_cast
        or placement.axis_order != tuple(range(len(placement.axis_order)))
        or placement.target_box.shape != task.target_shape
    )


def expected_crc(task: Task, band: Array, box: Box) -> int:
    """What ``band``, lying at ``box`` of the placement, adds to the target's digest."""
    placement, dtype = task.placement, target_element_type(task)
    crc = 0
    for elements, part in slabs(band, box):
        expected = elements
        if placement.is_cast:
            expected = converted(elements, dtype, saturate=placement.saturate)
        turned = expected.transpose(placement.axis_order)
        crc ^= linear_of_box(CRC64NVME, turned, placement.to_target(part), task.target_shape)
    return crc


def slabs(band: Array, box: Box) -> Iterator[tuple[Array, Box]]:
    """The band in parts of about SLAB_ELEMENTS, whose copies stay small, each with its box."""
    if band.size <= SLAB_ELEMENTS:
        if band.size:
            yield band, box
        return
    axis = next(d for d, n in enumerate(band.shape) if n > 1)
    step = max(1, SLAB_ELEMENTS * band.shape[axis] // band.size)
    for start in range(0, band.shape[axis], step):
        stop = min(start + step, band.shape[axis])
        part = Box(
            (*box.start[:axis], box.start[axis] + start, *box.start[axis + 1 :]),
            (*box.stop[:axis], box.start[axis] + stop, *box.stop[axis + 1 :]),
        )
        yield from slabs(band[(slice(None),) * axis + (slice(start, stop),)], part)
