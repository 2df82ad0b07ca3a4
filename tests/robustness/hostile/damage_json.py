"""Damage to JSON that keeps it JSON: fields replaced, dropped, repeated, nested."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reshard.formats.slices.slice_file import digest_of

NAMES = (
    "..", ".", "", "/", "//", "a/../../b", "../../outside/canary", "/etc/passwd", "a\0b", "\x1b[2J\x1b]0;x\x07",
    "\ud800", "x" * 300, "y" * 5000, "c", "c.0", "zarr.json", ".zarray", "_METADATA", "manifest.ocdbt",
    "d", "a\nb", "\u202e", "%2e%2e/x", "a\\..\\b", "slices.json", "~", "a//b", "C:", "0", "-1", "[red]x[/red]",
)  # fmt: skip
"""Names that would do harm where they are believed."""

NUMBERS = (
    0, 1, -1, 2, 3, 7, 64, 1000, 2**16, 2**20 + 1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, -(2**63), 10**30,
    10**4000, 1.5, -0.0, 1e308, math.nan, math.inf, True, False,
)  # fmt: skip


def hostile_value(rng: random.Random) -> Any:
    """Something a field should not be."""
    kind = rng.randrange(6)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice(NAMES)
    if kind == 3:
        return rng.choice((None, [], {}, [[]], {"": {}}, "NaN", "0x", "null", "[" * 200))
    if kind == 4:
        return [rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 3, 40)))]
    return _deep(rng.choice((10, 60, 100)))


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def damage_json(rng: random.Random, document: Any) -> Any:
    """The document with one to three of its parts changed."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            return hostile_value(rng)
        container, key = rng.choice(places)
        rng.choice(_CHANGES)(rng, container, key)
    return document


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = (
        node.keys()
        if isinstance(node, dict)
        else range(len(node))
        if isinstance(node, list)
        else ()
    )
    for key in keys:
        yield node, key
        yield from _places(node[key])


def _replace(rng: random.Random, container: Any, key: Any) -> None:
    container[key] = hostile_value(rng)


def _nudge(rng: random.Random, container: Any, key: Any) -> None:
    value = container[key]
    if isinstance(value, int):
        container[key] = value + rng.choice((-1, 1, 2**20, value, 2**62))
    elif isinstance(value, str):
        container[key] = rng.choice((value + value, value[:-1], value + rng.choice(NAMES)))
    else:
        container[key] = [value]


def _drop(rng: random.Random, container: Any, key: Any) -> None:  # noqa: ARG001  all take the same
    del container[key]


def _rename(rng: random.Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[rng.choice(NAMES)] = container.pop(key)
    else:
        container.append(container[key])


def _exchange(rng: random.Random, container: Any, key: Any) -> None:
    other = rng.choice(
        list(container.keys()) if isinstance(container, dict) else range(len(container))
    )
    container[key], container[other] = container[other], container[key]


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _replace, _replace, _replace, _nudge, _nudge, _drop, _rename, _exchange,
)  # fmt: skip


def damage_json_file(rng: random.Random, path: Path) -> str:
    """Changes a JSON file; a sharding's inner JSON, and the own digest of slices.json, alike."""
    document = json.loads(path.read_bytes())
    if path.name == "_sharding" and document and rng.random() < 0.8:
        key = rng.choice(list(document))
        document[key] = json.dumps(damage_json(rng, json.loads(document[key])))
    else:
        document = damage_json(rng, document)
    data = _bend_text(rng, json.dumps(document, ensure_ascii=rng.random() < 0.5))
    path.write_bytes(sealed(data) if path.name == "slices.json" else data)
    return f"json of {path.name}"


def sealed(data: bytes) -> bytes:
    """The bytes of a slices.json with the digest at its end made right again."""
    body, found, _ = data.rpartition(b'"crc64nvme": "')
    if not found or data.count(b"}", len(body)) != 1:
        return data
    return body + found + digest_of(body + found).encode() + b'"}\n'


def _bend_text(rng: random.Random, text: str) -> bytes:
    """Mostly as it is; now and then what no JSON library writes."""
    data = text.encode("utf-8", "surrogatepass")
    how = rng.randrange(30)
    if how == 0:
        return data.replace(b"{", b'{"a": 1, "a": 2, ' if b'": ' in data else b"{", 1)
    if how == 1:
        return data + rng.choice((b"]", b"\0", b"{}", b" " * 1000, b"\xff"))
    if how == 2:
        return b"[" * rng.choice((65, 1000, 100_000)) + data
    if how == 3:
        return b"\xef\xbb\xbf" + data
    if how == 4:
        return data.replace(b" ", b"\xc2\xa0", 1)
    return data
