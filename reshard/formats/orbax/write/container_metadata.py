"""The metadata of the container: the markers of a checkpoint, its items and their handlers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from reshard.formats.contents import Container, Item, Style
from reshard.formats.orbax.write.item_tree import V1_HANDLERS, item_directory

CHECKPOINT_METADATA = "_CHECKPOINT_METADATA"
V1_MARKER = "orbax.checkpoint"

_TIMES = ("init_timestamp_nsecs", "commit_timestamp_nsecs")

_TREE_HANDLER: dict[Style, str] = {
    "v0": "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler",
    "v1": "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler",
}


def checkpoint_metadata(container: Container, items: Iterable[Item]) -> bytes:
    """``_CHECKPOINT_METADATA``: the source's, with the handlers of the items that were written.

    Time stamps are the source's, or null if it has none, so that converting twice gives equal files. A tree that was
    never saved before gets the time of now.
    """
    now = time.time_ns()
    document = {
        "item_handlers": item_handlers(container, items),
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": now,
        "commit_timestamp_nsecs": now,
        "custom_metadata": {},
    }
    times = {k: v for k, v in container.meta.items() if k in _TIMES}
    recorded = {k: v for k, v in container.meta.items() if k != "item_handlers" and v is not None}
    recorded |= times
    return json.dumps(document | recorded).encode()


def item_handlers(container: Container, items: Iterable[Item]) -> str | dict[str, str]:
    """One handler for a checkpoint that is one tree, else a handler by item folder."""
    found = {
        item_directory(container, item): _handler(container.style or "v0", item) for item in items
    }
    return found[""] if "" in found else {k: v for k, v in found.items() if v}


def _handler(style: Style, item: Item) -> str:
    """The item's recorded handler; the default if a tree's handler is of the other style."""
    fits = item.handler.startswith(V1_HANDLERS) == (style == "v1")
    return item.handler if item.handler and (fits or not item.is_tree) else _default(style, item)


def _default(style: Style, item: Item) -> str:
    return _TREE_HANDLER[style] if item.is_tree else ""
