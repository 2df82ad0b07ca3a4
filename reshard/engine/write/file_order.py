"""The order in which chunks are written to files that grow from their beginning to their end."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from reshard.formats.file_map import Place


def in_order_of_files(places: Sequence[tuple[Place, ...]]) -> Iterator[list[int]]:
    """The numbers of all chunks, grouped by files; each group in an order in which every file grows.

    Args:
        places: of each chunk, in one or several files. Files that have a chunk in common are in one group.

    >>> list(in_order_of_files([(Place("a", 8),), (Place("b", 0),), (Place("a", 0),)]))
    [[2, 0], [1]]
    """
    by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, found in enumerate(places):
        for place in found:
            by_file[place.file].append((place.start, number))
    queues = {file: deque(number for _, number in sorted(of)) for file, of in by_file.items()}
    files = [[place.file for place in found] for found in places]
    for group in _groups(files, list(queues)):
        yield list(_merged({file: queues[file] for file in group}, files))


def _groups(files: Sequence[Sequence[str]], every: Sequence[str]) -> list[list[str]]:
    """The files that chunks connect, directly or through others."""
    above = {file: file for file in every}

    def top(file: str) -> str:
        while above[file] != file:
            above[file] = above[above[file]]
            file = above[file]
        return file

    for first, *others in files:
        for other in others:
            above[top(other)] = top(first)
    groups: dict[str, list[str]] = defaultdict(list)
    for file in every:
        groups[top(file)].append(file)
    return list(groups.values())


def _merged(queues: dict[str, deque[int]], files: Sequence[Sequence[str]]) -> Iterator[int]:
    """Each chunk once it is the next in all of its files. The files of one target have their chunks in one order."""
    ready = deque(queue[0] for queue in queues.values() if queue)
    waiting: dict[int, int] = defaultdict(int)
    while ready:
        number = ready.popleft()
        waiting[number] += 1
        if waiting[number] < len(files[number]):
            continue
        yield number
        for file in files[number]:
            queue = queues[file]
            queue.popleft()
            if queue:
                ready.append(queue[0])
