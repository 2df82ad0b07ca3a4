"""The transaction of a target in a bucket, or of one part of it, in a block that excludes other runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from reshard.errors import StorageError
from reshard.storage.buckets import objects
from reshard.storage.buckets.target.take_lease import take
from reshard.storage.buckets.target.transaction import ObjectTransaction, bucket_of
from reshard.storage.commit_markers import UNFINISHED_MARK
from reshard.storage.local.staging import PARTIAL
from reshard.storage.location import Location, is_in_bucket, locate


def state_folder(target: Location, state: str | None = None) -> Location:
    """The folder of the lease and the records of a target: beside it, or below ``state``, the URL of a folder for several targets.

    Raises StorageError unless it is in a bucket.
    """
    if state is None:
        return target.parent / f".{target.name}{PARTIAL}"
    if not is_in_bucket(state):
        raise StorageError(
            f"state is {state!r}; expected a folder in a bucket, such as {target.parent / 'unfinished'}, since a run elsewhere must find it"
        )
    told = hashlib.sha256(str(target).encode()).hexdigest()[:8]
    return locate(state) / f".{target.name}-{told}{PARTIAL}"


def held_objects(
    target: Location, *, unsafe: bool = False, state: str | None = None
) -> AbstractContextManager[ObjectTransaction]:
    """The transaction of a target in a bucket, as the last run left it; no other run can have it in the block.

    Raises TargetBusyError, naming the holder, if another live run holds it. ``unsafe``: also takes a store that ignores
    conditions; two runs may mix there.
    """
    return _held(ObjectTransaction, target, state_folder(target, state), unsafe=unsafe)


def held_part_objects(
    target: Location, name: str, *, unsafe: bool = False, state: str | None = None
) -> AbstractContextManager[ObjectTransaction]:
    """The transaction of a part; no other process can have it in the block."""
    folder = state_folder(target, state) / "parts" / name
    return _held(PartTransaction, target, folder, unsafe=unsafe)


@contextmanager
def _held(
    kind: type[ObjectTransaction], target: Location, folder: Location, *, unsafe: bool
) -> Iterator[ObjectTransaction]:
    lease = take(bucket_of(folder), f"{folder.path}/lease", str(target), unsafe=unsafe)
    transaction = kind(target, folder, lease)
    try:
        yield transaction
    except StorageError as error:
        transaction.tell_if_lost(error)
        raise
    finally:
        transaction.end()


class PartTransaction(ObjectTransaction):
    """A held part. It removes no object: only the commit knows the objects of other parts."""

    def begin(self, made_by: Mapping[str, Any]) -> None:
        self._open()
        self._segments.start(made_by)
        self._is_begun = True

    def adopt(self) -> None:
        self._open()

    def files(self) -> Iterator[str]:
        """No files: objects without a record may be of another part."""
        return iter(())

    def remove(self, _file: str, _: int | None = None, /) -> None:
        """Does nothing: the same bytes are put there again."""

    def abort(self) -> None:
        with suppress(StorageError):
            self.check()
            self._segments.delete()
            self._is_dissolved = True

    def _open(self) -> None:
        """Writes the unfinished mark. It has no run number, so that a late one is harmless."""
        self.check()
        text = (
            f"Parts of a conversion are written here. `reshard commit {self._target}` makes a checkpoint of them, "
            f"`reshard clean {self._target}` removes them.\n"
        )
        with suppress(StorageError):  # another part may be putting it
            objects.put(self._store, f"{self._target.path}/{UNFINISHED_MARK}", text.encode())
