"""Adds the tensor, the chunk and the target to an error: a path alone says too little."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

from reshard.errors import ReshardError
from reshard.geometry.grid import Index


class _Context(ABC):
    """A block whose errors get the names of tensor, chunk and target. It is a class for speed: every write enters it."""

    __slots__ = ()

    def __enter__(self) -> None:  # noqa: B027 - there is nothing to do before the block
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self.add_to(error)

    @abstractmethod
    def add_to(self, error: Exception) -> None:
        """Changes the message of an error that leaves the block."""


class about_tensor(_Context):  # noqa: N801 - reads as a sentence: with about_tensor(name, index)
    """Puts a tensor's name, and a chunk's index, before the message of an error in the block.

    The error keeps its type and its cause. An error that names the tensor or its ``source`` already
    stays unchanged; a foreign one gets a note.
    """

    __slots__ = ("_index", "_source", "_tensor")

    def __init__(self, tensor: str, index: Index | None = None, source: str | None = None) -> None:
        self._tensor = tensor
        self._index = index
        self._source = source

    def add_to(self, error: Exception) -> None:
        """Names the tensor and the chunk."""
        if self._is_named(error):
            return
        if isinstance(error, (ReshardError, MemoryError)):
            error.args = (f"{self._where()}: {error}", *error.args[1:])
        else:
            error.add_note(f"{self._where()}: a task of it failed")

    def _is_named(self, error: Exception) -> bool:
        if isinstance(error, ReshardError) and error.target is not None:
            return True  # the tensor was named before the target
        names = {self._tensor, self._source or self._tensor}
        said = [str(error), *getattr(error, "__notes__", ())]
        return any(repr(name) in text for name in names for text in said)

    def _where(self) -> str:
        tensor = f"tensor {self._tensor!r}"
        return tensor if self._index is None else f"{tensor}, chunk {list(self._index)}"


class about_target(_Context):  # noqa: N801 - reads as a sentence: with about_target(name)
    """Puts a target's name before the message of an error in the block, and into its ``target``.

    For runs with several targets; None changes nothing. An error that names a target already stays
    unchanged.
    """

    __slots__ = ("_target",)

    def __init__(self, target: str | None) -> None:
        self._target = target

    def add_to(self, error: Exception) -> None:
        """Names the target."""
        if self._target is None or not isinstance(error, ReshardError) or error.target is not None:
            return
        error.target = self._target
        if repr(self._target) not in str(error):
            error.args = (f"target {self._target!r}: {error}", *error.args[1:])
