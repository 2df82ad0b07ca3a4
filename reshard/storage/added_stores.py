"""Stores that other distributions add: entry points of the group ``reshard.stores``, named by their URLs' scheme.

The object of such an entry point takes a URL and gives its ``Location``. Checkpoints are read from there.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from reshard.errors import ReshardError, StorageError
from reshard.storage.location import Location

GROUP = "reshard.stores"


def locate_added(scheme: str, url: str) -> Location | None:
    """The location that a URL of an added scheme names; None for a scheme that none adds.

    Raises StorageError where the distribution is broken; its own ReshardErrors are passed on.
    """
    for point in entry_points(group=GROUP, name=scheme.lower()):
        where = f"the entry point {point.name} = {point.value} of the group {GROUP}"
        try:
            found = point.load()(url)
        except ReshardError:
            raise
        except Exception as error:  # a module of others may raise anything
            raise StorageError(
                f"{url}: {where} fails: {type(error).__name__}: {error}; repair or remove its distribution"
            ) from error
        if not isinstance(found, Location):
            raise StorageError(
                f"{url}: {where} gave no Location; repair or remove its distribution"
            )
        return found
    return None
