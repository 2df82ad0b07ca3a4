"""Errors that come out of a task say which tensor, and where it is known which chunk, they are about."""

from __future__ import annotations

from types import TracebackType

from reshard.engine.task import TargetChunk, Task
from reshard.errors import ReshardError


class about:  # noqa: N801 - reads as a sentence: with about(task, chunk)
    """Puts the tensor's name, and the chunk's index, before the message of an error in the block.

    The error keeps its type and its cause. One that names the tensor already is left as it is; one
    that is nobody's on purpose is given a note. A class, since it stands around every write.
    """

    __slots__ = ("_chunk", "_task")

    def __init__(self, task: Task, chunk: TargetChunk | None = None) -> None:
        self._task = task
        self._chunk = chunk

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not self._is_named(error):
            _name(error, self._where())

    def _is_named(self, error: Exception) -> bool:
        names = {self._task.placement.source, self._task.placement.target}
        said = [str(error), *getattr(error, "__notes__", ())]
        return any(repr(name) in text for name in names for text in said)

    def _where(self) -> str:
        tensor = f"tensor {self._task.placement.target!r}"
        return tensor if self._chunk is None else f"{tensor}, chunk {list(self._chunk.index)}"


def _name(error: Exception, where: str) -> None:
    if isinstance(error, (ReshardError, MemoryError)):
        error.args = (f"{where}: {error}", *error.args[1:])
    else:
        error.add_note(f"{where}: a task of it failed")
