"""A model of a disk that forgets: what is on it after a power cut at any moment of a recorded run.

``Disk`` is a hook for ``at_the_seam``. It follows every write, sync and rename, and knows for each file
which bytes were synced and for each folder which names were. ``after_cut`` then gives what somebody
finds who switches the machine on again, where the caller chooses for everything that was not synced
whether the device happened to have it: the bytes of each file by themselves, and each change of names
by itself, but a rename whole or not at all (what file systems with a journal promise).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.robustness.faults.seam import Call, Go

Choose = Callable[[], bool]


@dataclass(slots=True, eq=False)
class Node:
    """A file or a folder: what it holds now, and what of that the device has for sure."""

    is_folder: bool
    now: Any
    durable: Any
    is_synced: bool = False


Change = tuple[Node, str, "Node | None"]
"""In this folder that name now means this node, or nothing."""


@dataclass(slots=True)
class Disk:
    """The state of everything below ``root``, which is empty or durable at the beginning.

    Attributes:
        events: what happened, in order: kind and path below the root.
        pending: changes of names that no sync has made durable, each a transaction.
    """

    root: Path
    events: list[tuple[str, str]] = field(default_factory=list)
    pending: list[list[Change]] = field(default_factory=list)
    top: Node = field(init=False)
    watch: Callable[[Disk], None] = lambda _: None

    def __post_init__(self) -> None:
        self.top = _loaded(self.root)

    def __call__(self, call: Call, go: Go) -> Any:
        path = self._below(call.path)
        if call.kind == "rename" or call.kind == "exchange":
            self._tell(call.kind, path)
        result = go()
        step = getattr(self, f"_after_{call.kind}", None)
        if step is not None:
            step(call, path, result)
            if call.kind not in ("rename", "exchange"):
                self._tell(call.kind, path)
        return result

    def _tell(self, kind: str, path: str) -> None:
        self.events.append((kind, path))
        self.watch(self)

    def _below(self, path: str) -> str:
        return path.removeprefix(str(self.root)).lstrip("/")

    def node(self, path: str) -> Node | None:
        """What a path means now."""
        found: Node | None = self.top
        for part in path.split("/") if path else []:
            if found is None or not found.is_folder:
                return None
            found = found.now.get(part)
        return found

    def _entry(self, path: str) -> tuple[Node, str]:
        folder, _, name = path.rpartition("/")
        node = self.node(folder)
        assert node is not None, f"{folder} is not known; something made it beside the seam"
        return node, name

    def _change(self, *changes: Change) -> None:
        for folder, name, node in changes:
            if node is None:
                folder.now.pop(name, None)
            else:
                folder.now[name] = node
        self.pending.append(list(changes))

    def _after_create(self, _: Call, path: str, fd: int) -> None:
        node = self.node(path)
        if node is None:
            self._change((*self._entry(path), Node(False, b"", b"")))
        elif os.fstat(fd).st_size == 0:  # opened with O_TRUNC
            node.now, node.is_synced = b"", False

    def _after_mkdir(self, _: Call, path: str, __: None) -> None:
        self._change((*self._entry(path), Node(True, {}, {})))

    def _written(self, call: Call, path: str, _: Any) -> None:
        """The bytes are taken from the real file, whichever call wrote them."""
        node = self.node(path)
        assert node is not None, f"{path} is written, but was never made"
        node.now, node.is_synced = Path(call.path).read_bytes(), False

    _after_write = _after_pwrite = _after_ftruncate = _after_copy_file_range = _after_sendfile = (
        _after_ioctl
    ) = _written

    def _after_unlink(self, _: Call, path: str, __: None) -> None:
        self._change((*self._entry(path), None))

    _after_rmdir = _after_unlink

    def _after_rename(self, call: Call, path: str, _: Any) -> None:
        source = self._source(call)
        moved = self.node(source)
        self._change((*self._entry(source), None), (*self._entry(path), moved))

    def _after_exchange(self, call: Call, path: str, _: Any) -> None:
        source = self._source(call)
        one, other = self.node(source), self.node(path)
        self._change((*self._entry(source), other), (*self._entry(path), one))

    def _source(self, call: Call) -> str:
        at = 1 if len(call.arguments) > 3 else 0
        return self._below(os.fsdecode(call.arguments[at]))

    def _after_fsync(self, _: Call, path: str, __: None) -> None:
        node = self.node(path)
        if node is not None:
            self._sync(node)

    def _after_syncfs(self, *_: Any) -> None:
        self.pending = self._applied(self.pending, lambda _: True)
        for node in _all(self.top):
            node.is_synced = True
            if not node.is_folder:
                node.durable = node.now

    def _sync(self, node: Node) -> None:
        node.is_synced = True
        if not node.is_folder:
            node.durable = node.now
            return
        self.pending = self._applied(
            self.pending, lambda change: any(n is node for n, _, _ in change)
        )

    @staticmethod
    def _applied(
        pending: list[list[Change]], is_due: Callable[[list[Change]], bool]
    ) -> list[list[Change]]:
        """Makes the changes that are due durable; those that remain."""
        left = []
        for change in pending:
            if not is_due(change):
                left.append(change)
                continue
            for folder, name, node in change:
                _set(folder.durable, name, node)
        return left

    def after_cut(self, choose: Choose) -> dict[str, bytes]:
        """What is found below the root; of a file whose bytes are lost, nothing."""
        names = {id(node): dict(node.durable) for node in _everything(self) if node.is_folder}
        for change in self.pending:
            if choose():
                for folder, name, node in change:
                    _set(names[id(folder)], name, node)
        return dict(_found(self.top, "", names, choose))


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _found(
    node: Node, path: str, names: dict[int, dict[str, Node]], choose: Choose
) -> Iterator[tuple[str, bytes]]:
    for name, child in names[id(node)].items():
        below = f"{path}/{name}" if path else name
        if child.is_folder:
            yield below, b"folder"
            yield from _found(child, below, names, choose)
        else:
            yield below, child.durable if child.is_synced or not choose() else child.now


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.now.values() if node.is_folder else ():
        yield from _all(child)


def _everything(disk: Disk) -> Iterator[Node]:
    """Also what was removed or replaced and may be there again after the cut."""
    seen: dict[int, Node] = {}
    waiting = [disk.top, *(n for change in disk.pending for f, _, m in change for n in (f, m) if n)]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            if node.is_folder:
                waiting += [*node.now.values(), *node.durable.values()]
    return iter(seen.values())


def _loaded(path: Path) -> Node:
    """What was there before the run is durable."""
    if path.is_dir():
        children = {p.name: _loaded(p) for p in path.iterdir()}
        return Node(True, dict(children), dict(children), is_synced=True)
    data = path.read_bytes()
    return Node(False, data, data, is_synced=True)
