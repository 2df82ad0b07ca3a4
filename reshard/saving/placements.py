"""Which processes have each array: agreed on by all of them, since none can tell it alone.

An array on devices of one process only may be a pipeline stage, of which the other processes have no element, or a copy that
every process has of its own. In the process with the devices both look alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reshard.saving.tree import LiveLeaf, refuse

if TYPE_CHECKING:
    import jax


def local_placements(leaves: Sequence[LiveLeaf]) -> bytes:
    """The processes whose devices have each jax array of this process's tree, by name, as JSON."""
    import jax

    arrays = {x.leaf.name: x.array for x in leaves if isinstance(x.array, jax.Array)}
    return json.dumps({n: _processes(array.sharding) for n, array in arrays.items()}).encode()


def own_copies(posted: Sequence[bytes]) -> frozenset[str]:
    """The arrays of which every process has a copy of its own.

    Args:
        posted: the ``local_placements`` of all processes, in their order.

    Raises TreeError, naming the arrays that are neither one array of all processes nor a copy in each.
    """
    placements: list[Mapping[str, list[int]]] = [json.loads(each) for each in posted]
    if len(placements) == 1:
        return frozenset()
    named = set(placements[0]).intersection(
        *placements[1:]
    )  # other differences are found in the plans
    found = {
        name: [tuple(each[name]) for each in placements] for name in placements[0] if name in named
    }
    own = [(process,) for process in range(len(posted))]
    refuse({name: _unlike(on) for name, on in found.items() if len(set(on)) > 1 and on != own})
    return frozenset(name for name, on in found.items() if on == own)


@lru_cache(maxsize=4096)
def _processes(sharding: jax.sharding.Sharding) -> tuple[int, ...]:
    devices: Any = sharding.device_set  # jax does not annotate its devices
    return tuple(sorted({device.process_index for device in devices}))


def _unlike(on: Sequence[tuple[int, ...]]) -> str:
    other = next(process for process, each in enumerate(on) if each != on[0])
    return (
        f"is on devices of processes {list(on[0])} in process 0, and of processes {list(on[other])} in process "
        f"{other}; expected one array with the same sharding in every process (without data where none of its "
        "devices is), or a whole copy in every process"
    )
