"""Proves that the objects of a save are in the bucket before it is published.

A CheckpointManager or a lifecycle rule may delete objects during a save. Readers would take the holes for zeros. Each
process adds up the names and versions of the chunks that it put, and process 0 compares the sum with one listing. Process 0 puts
all metadata, and compares that one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from hashlib import blake2b
from operator import xor

from reshard.errors import StorageError
from reshard.saving.plan import SavePlan
from reshard.storage.location import Location
from reshard.storage.put_versions import first_changed


def put_mark(file: str, version: str) -> int:
    """What an object adds to the sum (by exclusive or): a hash of its path below the root and its version."""
    return int.from_bytes(blake2b(f"{file}\0{version}".encode(), digest_size=8).digest(), "big")


def check_put(
    plan: SavePlan, root: Location, put_sums: Iterable[int], metadata: Mapping[str, str]
) -> None:
    """Raises StorageError, naming a tensor and its chunk where one is gone, unless ``root`` has everything as it was put.

    Args:
        put_sums: of every process that put chunks.
        metadata: the version of each other object, by its path.
    """
    listed, found_sum = root.view(), 0
    if (changed := first_changed(listed, metadata)) is not None:
        raise StorageError(
            f"{changed}: it was put, but is not there now, or is another object; {_REMEDY}"
        )
    for name, tensor in plan.target.tensors.items():
        for index in tensor.spec.storage.indices():
            for place in plan.files.places(name, index):
                found = (listed / place.file).status()
                if found is None or found.kind != "file":
                    raise StorageError(
                        f"tensor {name!r}, chunk {list(index)}: it was put below {root}, but is not there now; {_REMEDY}"
                    )
                found_sum ^= put_mark(place.file, found.version)
    if found_sum != reduce(xor, put_sums, 0):
        raise StorageError(f"objects below {root} are not those that were put; {_REMEDY}")


_REMEDY = (
    "nothing was published; make sure that nothing else writes or removes there, and save again"
)
