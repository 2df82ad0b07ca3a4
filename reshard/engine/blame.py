"""Errors of the file system told with the tensor they hit: a path alone says too little of what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.errors import StorageError


@contextmanager
def storage_errors_of(tensor: str) -> Iterator[None]:
    """Puts the tensor's name before a StorageError of the block that does not have it yet."""
    try:
        yield
    except StorageError as error:
        if repr(tensor) in str(error):
            raise
        raise type(error)(f"tensor {tensor!r}: {error}") from error
