"""The output for the chunks of a target: TargetOutput, and TaskOutput, the part that tasks need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.engine.write.uploads import Uploads
from reshard.formats.encoding import Encoding
from reshard.formats.file_map import FileMap, Place
from reshard.geometry.grid import Box, Index
from reshard.storage.base import Traits
from reshard.storage.target import TargetPlace, traits_at
from reshard.storage.transaction import Elsewhere

if TYPE_CHECKING:
    import numpy.typing as npt

Put = Callable[[str, "tuple[int, ...]", "bytes | memoryview"], None]
"""Stores a whole chunk: tensor, index, and the encoded bytes."""

Keep = Callable[[str, Box, "npt.NDArray[Any]"], None]
"""Takes elements of a raw target in memory: tensor, box of it, and the box's elements, which change after the call."""


class TaskOutput(Struct, frozen=True):
    """The output of a task; it is sent to the workers with every batch.

    Attributes:
        root: text of the folder below which chunk files are written, a local path or a URL; the staging folder if there is one.
        put: stores whole chunks if the target is not made of plain files.
        name: of the target in errors, if a run has several; None if it has one.
        uploads: writes the files that chunks share if the store does not write in place.
        elsewhere: for tasks that do not run in this process; None for those that do.
        is_attempt: true if ``root`` is the folder of an attempt, in which tasks also make the files that chunks share.
        keep: takes the elements if the target has no files at all; only in this process.
    """

    root: str
    put: Put | None = None
    name: str | None = None
    uploads: Uploads | None = None
    elsewhere: Elsewhere | None = None
    is_attempt: bool = False
    keep: Keep | None = None

    @property
    def attempt(self) -> str:
        """The name of the folder of an attempt; "" if tasks write the target's own files."""
        return self.root.rpartition("/")[2] if self.is_attempt else ""

    @property
    def place(self) -> TargetPlace:
        """The place below which the task writes."""
        return TargetPlace(self.root, self.is_attempt)


class TargetOutput(Struct, frozen=True):
    """The output for the chunks of a target, and their encodings.

    Attributes:
        files: that make up the target.
        encodings: of the target's tensors, by name.
        root: text of the folder below which chunk files are written, a local path or a URL.
        name, uploads, elsewhere, keep: as in TaskOutput.
    """

    files: FileMap
    encodings: Mapping[str, Encoding]
    root: str
    name: str | None = None
    uploads: Uploads | None = None
    elsewhere: Elsewhere | None = None
    keep: Keep | None = None

    @property
    def traits(self) -> Traits:
        """The traits of the store below ``root``."""
        return traits_at(self.root)

    def places(self, tensor: str, index: Index) -> tuple[Place, ...]:
        """The places of a chunk below ``root``; none if a database stores it."""
        return self.files.places(tensor, index)

    @property
    def of_tasks(self) -> TaskOutput:
        """The part that tasks need."""
        put = None if self.files.database is None else self.files.database.put
        return TaskOutput(self.root, put, self.name, self.uploads, self.elsewhere, keep=self.keep)
