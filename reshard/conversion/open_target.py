"""OpenTarget: one target while a run writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from reshard.conversion.resume.journal import record_of
from reshard.conversion.target_job import TargetJob
from reshard.engine.books import Books
from reshard.engine.output import TargetOutput
from reshard.engine.progress import Progress
from reshard.engine.target_run import DoneUnits, TargetRun
from reshard.engine.task import Result
from reshard.storage.location import Location
from reshard.storage.target import recording_versions
from reshard.storage.transaction import Transaction


class OpenTarget(Struct):
    """A job with its transaction, and the work that is done.

    Attributes:
        progress: called with the progress of this target.
        done: units that an earlier run filled; None until this run has begun, or has taken over from an earlier one.
        put: the version of each metadata file that this run has put into a bucket, by its path.
        is_published: whether the target has appeared, so that only temporary files are left to remove.
    """

    job: TargetJob
    transaction: Transaction
    output: TargetOutput
    books: Books
    progress: Callable[[Progress], None] | None = None
    done: DoneUnits | None = None
    put: dict[str, str] = {}
    is_published: bool = False

    @property
    def noted_root(self) -> Location:
        """The root for the files that the format writes, whose versions are recorded where they are put into a bucket."""
        return recording_versions(self.transaction.root, self.put)

    @property
    def is_begun(self) -> bool:
        """Whether this run has begun the target, or has taken it over from an earlier run."""
        return self.done is not None

    @property
    def run(self) -> TargetRun:
        """The part that the engine needs."""
        return TargetRun(self.output, self.books, self.done, self._record)

    def _record(self, results: Sequence[Result]) -> None:
        self.transaction.append(record_of(results))
