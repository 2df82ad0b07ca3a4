"""Decides whether a target is already the finished result of this very conversion."""

from __future__ import annotations

from contextlib import ExitStack

from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.finish import check_complete
from reshard.conversion.resume.conversion_key import ConversionKey
from reshard.conversion.resume.journal import key_left
from reshard.errors import CorruptError, ReshardError, ResumeError, StorageError
from reshard.formats.base import Reader
from reshard.formats.known_formats import files_of
from reshard.formats.registry import open_reader
from reshard.storage.location import locate
from reshard.storage.targets import has_leftovers, is_link, lock_target, make_name_durable
from reshard.storage.transaction import Transaction


def open_result(target: str, key: ConversionKey) -> Reader | None:
    """The target, if it can be opened and its record names this conversion of this source; else None.

    Raises CorruptError where a chunk of it is missing or cut short: it was damaged since.
    """
    try:
        place = locate(target)
        if is_link(place) or not (place.exists() or files_of(place)):
            return None
        reader = open_reader(target)
        made_by = reader.conversion
    except (ReshardError, OSError):
        return None
    if made_by != key.output:
        return None
    _refuse_incomplete(target, reader)
    return reader


def _refuse_incomplete(target: str, reader: Reader) -> None:
    try:
        check_complete(reader)
    except CorruptError as error:
        raise CorruptError(
            f"the target {target!r} is the finished result of this conversion, but was damaged since: {error}; "
            "make it again (overwrite), or choose another target"
        ) from error


def clean_published(asked: CheckedTarget, key: ConversionKey) -> None:
    """Removes the files of a run of this conversion that was killed after it published.

    It may have been killed before the target's name was durable, so that is done here.
    """
    target, options = locate(asked.target), asked.options
    if not has_leftovers(target, state=options.state):
        return
    with ExitStack() as stack:
        try:
            held = lock_target(target, unsafe=options.unsafe_commit, state=options.state)
            transaction = stack.enter_context(held)
        except StorageError:
            return
        make_name_durable(target)
        abort_own(transaction, key)


def abort_own(transaction: Transaction, key: ConversionKey) -> None:
    """Removes the files of an earlier run, unless another conversion can resume it."""
    try:
        left = key_left(transaction.left_by())
    except ResumeError:
        return
    if left is None or left.output == key.output:
        transaction.abort()
