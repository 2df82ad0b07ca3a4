"""A transaction in a bucket: objects under the target's own name, and the commit marker last.

A bucket renames no folder, so that objects have their final names from the start. No reader takes them for a checkpoint
without ``commit_success.txt``, which is put last and only if there is none. Formats whose own readers know no marker
have ``reshard_unfinished.txt`` until then. A folder beside the target has the lease (``lease``) and the records (``segments``),
with which a later run can resume::

    run/1000/…                                 the objects
    run/.1000.reshard-partial/lease            the run that writes them
    run/.1000.reshard-partial/journal/…        the finished work
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from reshard.errors import (
    MissingError,
    SourceChangedError,
    StorageError,
    TargetBusyError,
    TargetExistsError,
)
from reshard.storage.buckets import objects
from reshard.storage.buckets.aws import abort_uploads
from reshard.storage.buckets.lease import Lease, acquire_lease
from reshard.storage.buckets.segments import Segments
from reshard.storage.buckets.store import BucketStore
from reshard.storage.buckets.views import with_files
from reshard.storage.commit_markers import (
    COMMIT_MARKER,
    COMMITTED,
    UNFINISHED_MARK,
    is_left_unfinished,
    numbered,
    run_of,
)
from reshard.storage.local.staging import PARTIAL
from reshard.storage.location import Location, is_in_bucket, locate
from reshard.storage.transaction import CheckReplaced, Earlier, Prove

_TICK_S = 0.5

_BY_OTHERS = (TargetExistsError, SourceChangedError, MissingError)
"""Errors of a run after another one has taken its target."""


def bucket_of(place: Location) -> BucketStore:
    """The bucket of a place."""
    if not isinstance(place.store, BucketStore):
        raise TypeError(f"{place} is in no bucket")
    return place.store


class ObjectTransaction:
    """A held target in a bucket; implements ``transaction.Transaction``."""

    def __init__(self, target: Location, state: Location, lease: Lease) -> None:
        self._target = target
        self._store = bucket_of(target)
        self._state = state
        self._lease = lease
        self._segments = Segments(bucket_of(state), state.path, lease.fence)
        self._marks: dict[str, bytes] = {}
        self._is_begun = self._is_committing = self._is_committed = self._is_dissolved = False
        self._failure: StorageError | None = None
        self._is_over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="reshard.lease", daemon=True)
        self._keeper.start()

    @property
    def target(self) -> str:
        return str(self._target)

    @property
    def place(self) -> str:
        return str(self._state)

    @property
    def root(self) -> Location:
        return self._target

    def left_by(self) -> Mapping[str, Any] | None:
        return self._segments.left_by()

    def has_parts(self) -> bool:
        return self._segments.has_parts

    def earlier(self) -> Earlier | None:
        made_by = self.left_by()
        if made_by is None or next(self.records(), None) is None:
            return None
        return Earlier(made_by, is_trusted=True)  # an answered put is durable

    def check(self) -> None:
        self._lease.check()
        if self._failure is not None:
            raise self._failure

    def raise_if_lost(self, error: StorageError) -> None:
        """Raises TargetBusyError if another run has the target, and ``error`` is one that it may have caused."""
        if isinstance(error, TargetBusyError) or not isinstance(error, _BY_OTHERS):
            return
        try:
            self._lease.renew()
        except TargetBusyError as lost:
            raise lost from error
        except StorageError:
            return

    def records(self) -> Iterator[bytes]:
        self._flush()
        return self._segments.records()

    def begin(self, made_by: Mapping[str, Any]) -> None:
        self._open()
        self._end_uploads()
        self._delete(self._unmarked())
        self._segments.start(made_by)
        self._is_begun = True

    def keep_files(self) -> None:
        self._open()
        self._end_uploads()
        self._unmarked()

    def rewrite(self, made_by: Mapping[str, Any], records: Iterable[str]) -> None:
        self._segments.start(made_by, records)
        self._is_begun = True

    def append(self, record: str) -> None:
        self.check()  # no record of a run that has lost the target
        self._segments.append(record)

    def close(self) -> None:
        self._flush()

    def files(self) -> Iterator[str]:
        return (file for file in self._store.files(self._target.path) if file != UNFINISHED_MARK)

    def remove(self, file: str, _: int | None = None, /) -> None:
        self._delete([file])

    def mark(self, files: Mapping[str, bytes]) -> None:
        self._marks = {name: data for name, data in files.items() if name != COMMIT_MARKER}
        self._marks[COMMIT_MARKER] = COMMITTED  # the last one

    def written(self) -> Location:
        return self.staged()

    def staged(self) -> Location:
        return with_files(self._target, self._marks)

    def commit(
        self,
        *,
        overwrite: bool,  # noqa: ARG002  what was there is gone since the begin
        check: CheckReplaced | None = None,  # noqa: ARG002  of the interface
        prove: Prove | None = None,
    ) -> None:
        self.check()
        self._refuse_marked()
        self._lease.renew()  # against another run that takes the lease while the marks are put
        self._is_committing = True
        try:
            self._put_marks(prove)
        except StorageError:
            if not self.is_committed():  # the answer of the last put may be lost
                raise
        self._lease.check()  # a marker that came late does not count: another run may have the target
        self._is_committed = True

    def _put_marks(self, prove: Prove | None) -> None:
        """Puts the marks of a whole target: commit markers last, after ``prove`` has checked all other files."""
        markers = [name for name in self._marks if name.rpartition("/")[2] == COMMIT_MARKER]
        others = [name for name in self._marks if name not in markers]
        put = {f"{self._target.path}/{name}": self._put_mark(name) for name in others}
        if prove is not None:
            prove(put)
            self.check()  # a listing may take long
        for name in markers:
            self._put_mark(name)

    def _put_mark(self, name: str) -> str:
        """Puts one of these marks, perhaps in place of one of a run that lost the target; returns its version."""
        path, number = f"{self._target.path}/{name}", numbered(self._lease.fence)
        data = self._marks[name]
        if not self._lease.is_conditional:
            return objects.put(self._store, path, data, number)
        try:
            return objects.put_new(self._store, path, data, number)
        except TargetExistsError:
            # A late mark of an earlier run is replaced, but only in the version that was looked at.
            known = objects.known_version(self._store, path)
            if known is None:
                raise
            self._refuse_marked()
            return objects.replace(self._store, path, data, known, number)

    def _refuse_marked(self) -> None:
        """Refuses a commit marker of anything else: readers would believe it, whatever the objects are.

        A marker of an earlier run that lost the target counts for no reader.
        """
        if objects.known_version(self._store, f"{self._target.path}/{COMMIT_MARKER}") is None:
            return
        if not 0 < run_of(self._target / COMMIT_MARKER) < self._lease.fence:
            raise TargetExistsError(
                f"somebody else put {self._target / COMMIT_MARKER} before this run had written the whole target; remove that object, "
                "and run the same command again"
            )

    def is_committed(self) -> bool:
        if self._is_committed or not self._is_committing or self._lease.is_lost:
            return self._is_committed
        marker, expected = self._target / COMMIT_MARKER, self._marks[COMMIT_MARKER]
        try:
            return marker.open().read(0, len(expected) + 1) == expected
        except StorageError:
            return False

    def unpublish(self, index: str) -> None:
        if self._target.status() is None:
            raise MissingError(f"{self._target} is gone; another run removed it: run again")
        self.keep_files()
        self._delete([index])

    def abort(self) -> None:
        with suppress(StorageError):
            if self._is_own():  # never the objects of a finished checkpoint
                self._delete(list(self.files()))
            self._delete([UNFINISHED_MARK])
            self.check()
            self._segments.delete()
            self._is_dissolved = True

    def end(self) -> None:
        """Gives the target back."""
        self._is_over.set()
        self._keeper.join()
        with suppress(StorageError):
            self._flush()
        if self._is_dissolved:
            self._lease.remove()
        else:
            self._lease.release()

    def _flush(self) -> None:
        """Puts the waiting records, unless another run has the target: it has records of its own."""
        if not self._lease.is_lost:
            self._segments.flush()

    def _open(self) -> None:
        """Writes the unfinished mark into the target."""
        self.check()
        text = (
            f"A run of reshard writes this checkpoint, which is not whole yet. What is done is recorded in {self._state}; "
            f"`reshard clean {self._target}` removes both once no run writes here.\n"
        )
        path = f"{self._target.path}/{UNFINISHED_MARK}"
        objects.put(self._store, path, text.encode(), numbered(self._lease.fence))
        # Deletes an object that never exists: credentials without that permission are refused before the first chunk.
        objects.delete(self._store, [f"{path}.{self._lease.fence}"])

    def _end_uploads(self) -> None:
        """Aborts uploads in parts that an earlier run began, if the store lists them."""
        if self._segments.has_earlier:
            abort_uploads(self._target)

    def _is_own(self) -> bool:
        """True if the objects below the target belong to an unfinished run, and to no checkpoint."""
        return not self._is_committed and is_left_unfinished(self._target)

    def _unmarked(self) -> list[str]:
        """Removes the commit markers, that of the target before those of its items; returns the other files.

        A target that is deleted or written in part must be no checkpoint, nor any of its items. A missing marker is not deleted:
        a late request would remove the marker of a later run.
        """
        files = list(self.files())
        markers = [file for file in files if file.rpartition("/")[2] == COMMIT_MARKER]
        self._delete([marker for marker in markers if marker == COMMIT_MARKER])
        self._delete([marker for marker in markers if marker != COMMIT_MARKER])
        return [file for file in files if file.rpartition("/")[2] != COMMIT_MARKER]

    def _delete(self, files: list[str]) -> None:
        paths = [f"{self._target.path}/{file}" for file in files]
        # Checked before each request, against deleting objects of a run that took the target meanwhile.
        objects.delete(self._store, paths, self.check)

    def _keep(self) -> None:
        """Renews the lease and puts records; the next call of the transaction raises its failures."""
        while not self._is_over.wait(_TICK_S):
            try:
                if self._lease.is_due():
                    self._lease.renew()
                self._segments.flush(if_due=True)
            except StorageError as error:
                if self._lease.is_lost:
                    self._failure = error
                    return


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


def lock_in_bucket(
    target: Location, *, unsafe: bool = False, state: str | None = None
) -> AbstractContextManager[ObjectTransaction]:
    """The transaction of a target in a bucket, as the last run left it; no other run can have it in the block.

    Raises TargetBusyError, naming the holder, if another live run holds it. ``unsafe``: also takes a store that ignores
    conditions; two runs may mix there.
    """
    return _locked(ObjectTransaction, target, state_folder(target, state), unsafe=unsafe)


def lock_part_in_bucket(
    target: Location,
    name: str,
    *,
    unsafe: bool = False,
    state: str | None = None,
    is_staged: bool = False,
) -> AbstractContextManager[ObjectTransaction]:
    """The transaction of a part; no other process can have it in the block. ``is_staged``: the target is to be overwritten."""
    folder = state_folder(target, state) / "parts" / name
    return _locked(StagedPart if is_staged else PartTransaction, target, folder, unsafe=unsafe)


@contextmanager
def _locked(
    kind: type[ObjectTransaction], target: Location, folder: Location, *, unsafe: bool
) -> Iterator[ObjectTransaction]:
    lease = acquire_lease(bucket_of(folder), f"{folder.path}/lease", str(target), unsafe=unsafe)
    transaction = kind(target, folder, lease)
    try:
        yield transaction
    except StorageError as error:
        transaction.raise_if_lost(error)
        raise
    finally:
        transaction.end()


class PartTransaction(ObjectTransaction):
    """A held part. It removes no object: only the commit knows the objects of other parts."""

    def begin(self, made_by: Mapping[str, Any]) -> None:
        self._open()
        self._segments.start(made_by)
        self._is_begun = True

    def keep_files(self) -> None:
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


class StagedPart(PartTransaction):
    """A held part of a conversion that overwrites its target: its objects wait in the folder of all parts, and the commit copies them."""

    @property
    def root(self) -> Location:
        return self._state.parent / STAGED_OBJECTS

    def _open(self) -> None:
        self.check()  # and no mark: the old target stays whole


STAGED_OBJECTS = "objects"
"""The folder of the objects of all staged parts."""


def remove_staged(parts: Location) -> None:
    """Removes the objects of staged parts below the folder of all parts."""
    objects.delete_folder(bucket_of(parts), (parts / STAGED_OBJECTS).path)
