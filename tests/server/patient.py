"""A server that waits for storage as long as it takes, so that a slow machine gets whole listings and forms.

Run as a program it is ``reshard serve`` with that one difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from reshard_server.pages import checkpoint_pages, new_conversion
from reshard_server.resources import browse

SECONDS = 60.0


def waits() -> Iterator[tuple[ModuleType, str]]:
    """Each time limit after which an answer has less in it, by its module and name."""
    yield browse, "MOST_SECONDS"
    yield checkpoint_pages, "MOST_SECONDS"
    yield checkpoint_pages, "PATIENCE_SECONDS"
    yield new_conversion, "PATIENCE_SECONDS"


if __name__ == "__main__":
    from reshard.cli import main

    for module, name in waits():
        setattr(module, name, SECONDS)
    main()
