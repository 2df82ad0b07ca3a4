"""The rooms of the library, and those of the service, floor by floor; imports run downwards only.

The floors are those that ``tests/test_imports.py`` holds the code to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from docs.pictures.svg import DEVICES, box, line, picture, text
from tests.test_imports import ORDER, SERVER_ORDER

FLOOR, TOP, MARGIN, STAIRS = 32, 76, 12, 36
"""Heights of a floor and of the roof; the space at the left, and that for the arrow at the right."""
HIDDEN = {"__main__", "version"}
LIBRARY = {
    "cli": "arguments, progress, tables",
    "demo": "a first conversion, step by step",
    "rules": "maps by example",
    "api": "the public functions, by subject",
    "checkpoint": "an opened checkpoint",
    "maps": "rules that make a target of several pieces",
    "engine": "moves bytes: decode, cut, write, within the budget",
    "planning": "decides what moves, and how; no I/O",
    "formats": "what is on disk: Orbax, zarr, OCDBT, safetensors",
    "storage": "staging, syncing, locks, publishing by one rename",
    "variables": "live arrays in pieces",
    "arguments": "checks of arguments, options as keywords",
    "options": "how an option is checked and shown",
    "layout": "meshes, layouts, layout files",
    "patterns": "regular expressions, in linear time",
    "checksums": "digests of tensors from pieces in any order",
    "geometry": "boxes, grids, row-major order, dtypes",
    "errors": "the tree of errors",
    "log": "the log, and warnings",
    "answers": "what calls return, and its JSON",
}
"""What each room of the library does, where there is space to say it."""
SERVICE = {
    "serve": "the command",
    "app": "the application",
    "refuse_before_body": "requests without a valid token",
    "pages": "web pages",
    "api": "the routes of /v1",
    "middleware": "what every request passes",
    "resources": "what routes and pages share",
    "services": "what every route works with",
    "schedules": "by the clock, and of each new step",
    "jobs": "conversions and questions, from accepted to ended",
    "worker": "the child process that converts",
    "deliveries": "URLs that are told of an end",
    "observability": "logs, metrics, the audit log",
    "auth": "tokens, sessions, paths, rates",
    "db": "SQLite or PostgreSQL, migrations",
    "server_process": "its process",
    "schemas": "documents of the API",
    "settings": "flags, file, environment",
    "host_clock": "one clock for all processes",
    "errors": "problem documents",
}
"""The same of the service."""
COLOURS = {
    DEVICES[
        0
    ]: "cli demo rules api checkpoint serve app server_process refuse_before_body pages middleware resources",
    DEVICES[
        1
    ]: "conversion saving restoring streaming verification inspection executors services schedules jobs",
    DEVICES[3]: "engine maps planning worker deliveries",
    DEVICES[2]: "formats storage db",
    DEVICES[5]: "variables options arguments layout patterns observability auth",
}
"""Rooms of one kind have one colour: entrances, use cases, what works, what stores, what describes; the others are ground."""


def library() -> str:
    """The picture of ``reshard``."""
    says = "The rooms of reshard, floor by floor; a room imports only from floors below it"
    return _house("reshard", "the library and the command", 700, ORDER, LIBRARY, says)


def service() -> str:
    """The picture of ``reshard_server``."""
    says = "The rooms of the service, floor by floor; a room imports only from floors below it"
    return _house(
        "reshard_server",
        "the service; it uses public names of reshard",
        540,
        SERVER_ORDER,
        SERVICE,
        says,
    )


def _house(
    name: str, below: str, width: float, order: Sequence[str], does: dict[str, str], says: str
) -> str:
    floors = [[room for room in parts.split() if room not in HIDDEN] for parts in order]
    floors = [floor for floor in floors if floor]
    parts = list(_roof(width, name, below))
    column = max(13 + len(floor[0]) * 8 + 14 for floor in floors if len(floor) == 1)
    for number, rooms in enumerate(floors):
        y, each = TOP + number * FLOOR, width / len(rooms)
        for place, room in enumerate(rooms):
            parts += _room(MARGIN + place * each, y, each, room, does, column / len(rooms))
    bottom, stairs = TOP + len(floors) * FLOOR, MARGIN + width + 14
    parts += [
        line(f"M{stairs:g} {TOP + 10:g} V{bottom - 10:g} m-6 -8 l6 8 l6 -8"),
        f'<g transform="translate({stairs + 11:g} {(TOP + bottom) / 2:g}) rotate(90)">'
        f"{text(0, 0, 'imports run down', 'small quiet')}</g>",
    ]
    return picture(MARGIN + width + STAIRS, bottom + MARGIN, says, parts)


def _roof(width: float, name: str, below: str) -> Iterator[str]:
    left, right, middle = MARGIN, MARGIN + width, MARGIN + width / 2
    yield line(f"M{left:g} {TOP - 4:g} L{middle:g} 8 L{right:g} {TOP - 4:g}")
    yield text(middle, TOP - 30, name, "name code")
    yield text(middle, TOP - 12, below, "small quiet")


def _room(
    x: float, y: float, width: float, room: str, does: dict[str, str], column: float
) -> Iterator[str]:
    """A room with its name, and with what it does where there is space."""
    colour = next((colour for colour, of in COLOURS.items() if room in of.split()), DEVICES[7])
    yield box(x + 1, y + 1, width - 2, FLOOR - 2, kind="card")
    yield box(x + 1, y + 1, 4, FLOOR - 2, fill=colour, radius=2)
    yield text(x + 13, y + 21, room, "code name", "start")
    words_at = max(column, 13 + len(room) * 8 + 14)
    if words_at + len(does.get(room, "")) * 6.4 < width:
        yield text(x + words_at, y + 21, does.get(room, ""), "small quiet", "start")
