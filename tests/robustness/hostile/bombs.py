"""Small files whose content or whose error would fill memory, or take hours, if anything of them were made whole: ``python -m … FOLDER``.

The process that opens them has a limit of memory and of processor time. It prints one line of JSON: what each was answered.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

import reshard
from reshard.errors import ReshardError
from tests.dcp_files import Item, archive, entry, write_dcp, write_items
from tests.state_files import packed

MEMORY_BYTES = 2 << 30
CPU_SECONDS = 60
"""Of all bombs together; they take about one."""

LEVELS = 60
P2 = b"\x80\x02"


def shared_parts(last: bytes) -> bytes:
    """A pickle of tuples that have the one before 16 times, so that the whole text of the last has 16^60 parts."""
    code = b")q\x00"
    for number in range(LEVELS):
        code += b"0(" + (b"h" + bytes([number])) * 16 + b"tq" + bytes([number + 1])
    return P2 + code + last + b"."  # fmt: skip


APPENDED = shared_parts(b"K\1a")
AS_KEY = P2 + b"}" + shared_parts(b"K\1s")[2:]
CALLED = P2 + b"}X\1\0\0\0v" + shared_parts(b"")[2:-1] + b"h\x01Rs."
NAMED = P2 + b"}X\1\0\0\0v" + b"X" + struct.pack("<I", 1 << 20) + b"m" * (1 << 20) + b"q\0h\0\x93s."
COUNT = 60_000


def shared_among(begin: bytes, each: bytes) -> bytes:
    """A list of objects that share a long list of objects: as arguments, or as their state."""
    return P2 + b"(" + b")" * COUNT + begin + b"0](" + each * COUNT + b"e."


ARGUMENTS = shared_among(b"tq\0", b"cm\nC\nh\0R")
STATES = shared_among(b"tq\x000}q\1X\1\0\0\0ah\0s", b"cm\nC\n)\x81h\1b")
MODULES = P2 + b")" + b"".join(
    b"q" + bytes([n]) + b"0cm\nC\n)\x81}X\x08\0\0\0_modules}(X\1\0\0\0ah" + bytes([n]) + b"X\1\0\0\0bh" + bytes([n]) + b"usb"
    for n in range(LEVELS)
) + b"."  # fmt: skip
LONG_KEYS = (
    P2
    + b"cm\nC\n)\x81}X"
    + struct.pack("<I", 1 << 20)
    + b"k" * (1 << 20)
    + b"]("
    + b")" * COUNT
    + b"esb."
)
CIRCLE = P2 + b"cm\nC\n)\x81q\0}X\1\0\0\0ah\0sb."
STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\1tQ"
DEEP = (
    P2
    + b"cm\nC\n("
    + b"ctorch._utils\n_rebuild_tensor_v2\n("
    + STORAGE
    + b"K\0))\x89NtR"
    + b"\x85" * 300
    + b"tR."
)
DIGITS = P2 + b"}\x8b" + struct.pack("<I", 1 << 12) + b"\x01" * (1 << 12) + b"K\1s."
WIDEST = P2 + b"}\x8b" + struct.pack("<I", 1 << 10) + b"\x01" * (1 << 10) + b"]s."
CHAIN = P2 + b"cm\nf\n" + b")R" * 200_000 + b"."
"""Calls of what a call returned."""


def state(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "x.pt").write_bytes(packed(data, {}))
        return folder / "x.pt"

    return write


def metadata(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_dcp(folder / "dcp", {"w": np.ones(2)})
        (folder / "dcp" / ".metadata").write_bytes(data)
        return folder / "dcp"

    return write


def item(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return write_items(folder / "dcp", {"v": entry(1)}, [Item("v", None, archive(data))])

    return write


def header(text: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        file = folder / "x.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text)
        return file

    return write


def tree(text: str) -> Callable[[Path], Path]:
    """A checkpoint of Orbax whose tree is that text."""

    def write(folder: Path) -> Path:
        reshard.save(folder / "x", {"w": np.ones(2)})
        (folder / "x" / "slices.json").unlink()
        (folder / "x" / "_METADATA").write_text(text)
        return folder / "x"

    return write


def msgpack(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "x").mkdir()
        (folder / "x" / "checkpoint").write_bytes(data)
        return folder / "x"

    return write


def hdf5(folder: Path) -> Path:
    """The name of a type has 60,000 characters."""
    file = folder / "x.weights.h5"
    with h5py.File(file, "w") as made:
        made["layers/dense/vars/0"] = np.zeros(4, "V2")
        made["layers/dense/vars/0"].attrs["dtype"] = np.bytes_(b"n" * 60_000)
    return file


WIDE = "[" + ",".join(["[1,2,3]"] * 100_000) + "]"
BOMBS: dict[str, Callable[[Path], Path]] = {
    "metadata, appended to": metadata(APPENDED),
    "metadata, in place of a dict": metadata(shared_parts(b"")),
    "state, appended to": state(APPENDED),
    "state, as a key": state(AS_KEY),
    "state, as a value": state(P2 + b"}X\1\0\0\0v" + shared_parts(b"")[2:-1] + b"s."),
    "state, called": state(CALLED),
    "state, a long name": state(NAMED),
    "state, a chain of calls": state(CHAIN),
    "state, shared arguments": state(ARGUMENTS),
    "state, shared states": state(STATES),
    "state, modules that share modules": state(MODULES),
    "state, long keys": state(LONG_KEYS),
    "state, an object in itself": state(CIRCLE),
    "state, a tensor far below": state(DEEP),
    "state, a key of many digits": state(DIGITS),
    "state, a key of as many as are read": state(WIDEST),
    "state, as the root": state(shared_parts(b"")),
    "item, appended to": item(APPENDED),
    "item, as the value": item(shared_parts(b"")),
    "safetensors, a wide entry": header(f'{{"w": {WIDE}}}'.encode()),
    "safetensors, deep": header(b'{"w": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "orbax, a wide tree": tree(f'{{"tree_metadata": {WIDE}}}'),
    "orbax, a wide value": tree(f'{{"tree_metadata": {{"w": {{"key_metadata": 1, "value_metadata": {WIDE}}}}}}}'),
    "msgpack, many entries": msgpack(b"\x81\xa1w\xdd\xff\xff\xff\xff"),
    "msgpack, deep": msgpack(b"\x91" * 500_000),
    "hdf5, a long attribute": hdf5,
}  # fmt: skip


def given(options: dict[str, object]) -> Callable[[Path], None]:
    """A layout or a map that is given to a conversion of a checkpoint in the folder."""

    def plan(folder: Path) -> None:
        reshard.save(folder / "x", {"w": np.ones(2)})
        reshard.plan(folder / "x", folder / "y", **options)

    return plan


def laughs(ending: str) -> str:
    """YAML of lists that have the one before nine times, and what ends it."""
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, LEVELS)]
    return "\n".join([*lines, ending])


def written(option: str, name: str, text: str) -> Callable[[Path], None]:
    def plan(folder: Path) -> None:
        (folder / name).write_text(text)
        given({option: folder / name})(folder)

    return plan


ASKED: dict[str, Callable[[Path], None]] = {
    "layout, laughs": written("layout", "l.yaml", laughs("mesh: *a9")),
    "map, laughs": written("map", "m.yaml", laughs("map: *a9")),
    "layout, a long anchor": written("layout", "l.yaml", f"mesh: *{'a' * 1_000_000}"),
    "layout, a long tag": written("layout", "l.yaml", f"mesh: !{'a' * 1_000_000} 1"),
    "layout, a key twice": written("layout", "l.json", f'{{"{"a" * 1_000_000}": 1, "{"a" * 1_000_000}": 1}}'),
    "layout, a wide value": written("layout", "l.json", f'{{"mesh": {WIDE[:600_000].rpartition("]")[0]}]]}}'),
    "map, a wide value": written("map", "m.json", f'{{"map": {WIDE[:600_000].rpartition("]")[0]}]]}}'),
}  # fmt: skip


def main(folder: Path) -> None:
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_SECONDS)):
        resource.setrlimit(limit, (most, most))
    said = {}
    for number, (name, make) in enumerate(BOMBS.items()):
        (place := folder / f"b{number}").mkdir()
        said[name] = answer(reshard.inspect, make(place))
    for number, (name, ask) in enumerate(ASKED.items()):
        (place := folder / f"a{number}").mkdir()
        said[name] = answer(ask, place)
    print(json.dumps(said))


def answer(ask: Callable[[Path], object], place: Path) -> str:
    """The message of an error of this project."""
    try:
        ask(place)
        return "answered"
    except ReshardError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
