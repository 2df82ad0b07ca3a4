"""The transaction of one part of a target in a bucket: a lease and records of its own, and objects below the target's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from reshard.errors import StorageError
from reshard.storage.buckets import objects
from reshard.storage.buckets.target.lease import take
from reshard.storage.buckets.target.transaction import ObjectTransaction, bucket_of, state_folder
from reshard.storage.commit_markers import UNFINISHED_MARK
from reshard.storage.location import Location


@contextmanager
def held_part_objects(
    target: Location, name: str, *, unsafe: bool = False, state: str | None = None
) -> Iterator[PartTransaction]:
    """The transaction of a part; in the block no other process can have it."""
    folder = state_folder(target, state) / "parts" / name
    lease = take(bucket_of(folder), f"{folder.path}/lease", str(target), unsafe=unsafe)
    transaction = PartTransaction(target, folder, lease)
    try:
        yield transaction
    except StorageError as error:
        transaction.tell_if_lost(error)
        raise
    finally:
        transaction.end()


class PartTransaction(ObjectTransaction):
    """A held part. It removes no object: which of them are of other parts, only the commit knows."""

    def begin(self, identity: Mapping[str, Any]) -> None:
        self._open()
        self._segments.start(identity)
        self._is_begun = True

    def adopt(self) -> None:
        self._open()

    def files(self) -> Iterator[str]:
        """None: what no record names may be of another part."""
        return iter(())

    def remove(self, file: str) -> None:
        """Nothing: the same bytes are put there again."""

    def abort(self) -> None:
        with suppress(StorageError):
            self.check()
            self._segments.delete()
            self._is_dissolved = True

    def _open(self) -> None:
        """Says in the target that it is in the making. The mark has no run number, so that one that is late counts for nobody."""
        self.check()
        text = (
            f"Parts of a conversion are written here. `reshard commit {self._target}` makes a checkpoint of them, "
            f"`reshard clean {self._target}` removes them.\n"
        )
        with suppress(StorageError):  # another part may put it now
            objects.put(self._store, f"{self._target.path}/{UNFINISHED_MARK}", text.encode())
