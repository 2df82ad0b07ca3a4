"""Adds the tensor, and where known the chunk, to an error: a path alone says too little."""

from __future__ import annotations

from types import TracebackType

from reshard.errors import ReshardError
from reshard.geometry.grid import Index


class about:  # noqa: N801 - reads as a sentence: with about(tensor, index)
    """Puts a tensor's name, and a chunk's index, before the message of an error in the block.

    The error keeps its type and its cause. One that names the tensor, or its ``source``, already is
    left as it is; one that is nobody's on purpose is given a note. A class, since it stands around
    every write.
    """

    __slots__ = ("_index", "_source", "_tensor")

    def __init__(self, tensor: str, index: Index | None = None, source: str | None = None) -> None:
        self._tensor = tensor
        self._index = index
        self._source = source

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
        if isinstance(error, ReshardError) and error.target is not None:
            return True  # who named the target has named the tensor in it
        names = {self._tensor, self._source or self._tensor}
        said = [str(error), *getattr(error, "__notes__", ())]
        return any(repr(name) in text for name in names for text in said)

    def _where(self) -> str:
        tensor = f"tensor {self._tensor!r}"
        return tensor if self._index is None else f"{tensor}, chunk {list(self._index)}"


class of_target:  # noqa: N801 - reads as a sentence: with of_target(name)
    """Puts a target's name before the message of an error in the block, and notes it in the error.

    For runs with several targets; ``None`` changes nothing. An error that names one already is left
    as it is.
    """

    __slots__ = ("_target",)

    def __init__(self, target: str | None) -> None:
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._target is None or not isinstance(error, ReshardError) or error.target is not None:
            return
        error.target = self._target
        if repr(self._target) not in str(error):
            error.args = (f"target {self._target!r}: {error}", *error.args[1:])


def _name(error: Exception, where: str) -> None:
    if isinstance(error, (ReshardError, MemoryError)):
        error.args = (f"{where}: {error}", *error.args[1:])
    else:
        error.add_note(f"{where}: a task of it failed")
