"""What programs call: inspect, plan, convert and verify checkpoints.

Paths are local. Everything that is returned is frozen data; everything that is raised on purpose
is a ``ReshardError``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reshard.errors import PlanError, StorageError
from reshard.layout.changes import Changes

if TYPE_CHECKING:
    from reshard.engine.checkpoint_info import CheckpointInfo
    from reshard.engine.compare import Verification
    from reshard.engine.conversion import ConversionPlan
    from reshard.engine.lay_out import LayoutPreview
    from reshard.engine.layouts import Layout
    from reshard.engine.options import Check, Options
    from reshard.engine.read_digests import ReadLimits
    from reshard.engine.report import ConversionReport, Progress
    from reshard.formats.base import Style
    from reshard.layout.layout_file import LayoutFile
    from reshard.layout.layout_map import LayoutMap
    from reshard.layout.mesh import DeviceMesh

    Path = str | os.PathLike[str]
    LayoutLike = Path | Mapping[str, Any] | LayoutFile | LayoutMap | None
    Rules = Sequence[str]
    PairRules = Sequence[tuple[str, str]] | Mapping[str, str]


def inspect(path: Path) -> CheckpointInfo:
    """What a checkpoint holds: names, shapes, dtypes, chunks, layouts. Reads metadata only."""
    from reshard.engine.checkpoint_info import describe
    from reshard.formats.detect import open_reader

    return describe(open_reader(_path("checkpoint", path)))


def lay_out(
    src: Path, layout: LayoutLike, *, mesh: str | DeviceMesh | None = None
) -> LayoutPreview:
    """How a layout would cut each tensor of a checkpoint; reads metadata only.

    Arguments as for ``plan``. Raises what ``plan`` would raise for this layout.
    """
    from reshard.engine.lay_out import preview
    from reshard.engine.layouts import layout_of

    found = layout_of(layout, mesh)
    return preview(inspect(src), found)


def plan(
    src: Path,
    dst: Path,
    *,
    layout: LayoutLike = None,
    mesh: str | DeviceMesh | None = None,
    select: Rules = (),
    drop: Rules = (),
    rename: PairRules = (),
    cast: PairRules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    compression: str = "none",
    chunk_bytes: int | str | None = None,
    ocdbt: bool = False,
    style: Style | None = None,
    overwrite: bool = False,
) -> ConversionPlan:
    """What ``convert`` with the same arguments would do, and what it would cost; moves nothing.

    Args:
        layout: a layout file's path or content, or a LayoutMap; None keeps the source's layouts.
        mesh: takes the place of the layout file's mesh; ``"data=4,model=2"``. Without a layout
            every tensor keeps the source's axes, over this mesh.
        select, drop: patterns searched in names: what is kept, and what is left out of that.
        rename, cast: pairs of a pattern and a replacement, or a dtype; the first that matches counts.
        max_memory: bytes, or text such as ``"512MiB"``; the default is a quarter of the memory
            that the machine or its cgroup allows, or 1 GiB, the smaller.
        workers: tasks at once; the default is the number of processors and one more, at most 16.
        compression: ``none``, ``zstd[:level]``, ``gzip[:level]``, ``blosc`` or ``keep``.
        chunk_bytes: target chunks above this are subdivided; the default is 256 MiB.
        ocdbt: pack the target into one OCDBT database instead of plain files.
        style: form of the target, ``"v0"`` or ``"v1"``; None keeps the source's.
        overwrite: whether an existing target may be replaced.
    """
    from reshard.engine.conversion import prepare

    goal = _goal(layout, mesh, _changes(select, drop, rename, cast))
    limits = _limits(max_memory, workers)
    options = _options(goal, limits, compression, chunk_bytes, ocdbt, style, overwrite)
    return prepare(_path("source", src), _path("target", dst), options).summary


def convert(
    src: Path,
    dst: Path,
    *,
    layout: LayoutLike = None,
    mesh: str | DeviceMesh | None = None,
    select: Rules = (),
    drop: Rules = (),
    rename: PairRules = (),
    cast: PairRules = (),
    max_memory: int | str | None = None,
    workers: int | None = None,
    compression: str = "none",
    chunk_bytes: int | str | None = None,
    ocdbt: bool = False,
    style: Style | None = None,
    overwrite: bool = False,
    verify: Check = "written",
    executor: Executor | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> ConversionReport:
    """Converts the checkpoint ``src`` to ``dst``, which appears whole or not at all.

    Arguments as for ``plan``, and:

    Args:
        verify: ``"readback"`` reads the output again before it appears, and only then does the
            report say "proved".
        executor: where tasks run; None makes threads.
        progress: called from this thread after each task.
    """
    from reshard.engine.conversion import carry_out, prepare

    goal = _goal(layout, mesh, _changes(select, drop, rename, cast))
    limits = _limits(max_memory, workers)
    options = replace(
        _options(goal, limits, compression, chunk_bytes, ocdbt, style, overwrite), check=verify
    )
    return carry_out(
        prepare(_path("source", src), _path("target", dst), options), options, executor, progress
    )


def verify(
    a: Path,
    b: Path | None = None,
    *,
    max_memory: int | str | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compares two checkpoints bit by bit, or one with the digests recorded when it was written."""
    from reshard.engine.compare import compare_recorded, compare_stored
    from reshard.formats.detect import open_reader

    limits = _limits(max_memory, workers)
    reader = open_reader(_path("checkpoint", a))
    if b is None:
        return compare_recorded(reader, limits, progress)
    return compare_stored(reader, open_reader(_path("checkpoint", b)), limits, progress)


def _path(what: str, path: Path) -> str:
    if not isinstance(path, str | bytes | os.PathLike):
        raise StorageError(f"the {what} is {path!r}; expected a path")
    return os.fsdecode(path)


def _changes(select: Rules, drop: Rules, rename: PairRules, cast: PairRules) -> Changes:
    return Changes(
        _patterns("select", select),
        _patterns("drop", drop),
        _pairs("rename", rename, "a replacement"),
        _pairs("cast", cast, "a dtype"),
    )


def _patterns(kind: str, rules: Rules) -> tuple[str, ...]:
    given = () if isinstance(rules, str) or not isinstance(rules, Iterable) else tuple(rules)
    if (rules and not given) or not all(isinstance(pattern, str) for pattern in given):
        raise PlanError(
            f"{kind} is {rules!r}; expected a list of regular expressions such as ['^params/']"
        )
    return given


def _pairs(kind: str, rules: PairRules, to: str) -> tuple[tuple[str, str], ...]:
    items = rules.items() if isinstance(rules, Mapping) else rules
    pairs = () if isinstance(items, str) or not isinstance(items, Iterable) else tuple(items)
    if (rules and not pairs) or not all(map(_is_pair, pairs)):
        raise PlanError(
            f"{kind} is {rules!r}; expected pairs of a regular expression and {to}, such as [('^a/', ...)]"
        )
    return tuple((pattern, new) for pattern, new in pairs)


def _is_pair(rule: object) -> bool:
    return (
        isinstance(rule, tuple | list)
        and len(rule) == 2
        and all(isinstance(part, str) for part in rule)
    )


def _limits(max_memory: int | str | None, workers: int | None) -> ReadLimits:
    from reshard.engine.options import bytes_of, check_limits
    from reshard.engine.read_digests import ReadLimits
    from reshard.storage.host import default_max_memory, default_workers

    memory = bytes_of("max_memory", max_memory)
    limits = ReadLimits(
        default_max_memory() if memory is None else memory,
        default_workers() if workers is None else workers,
    )
    check_limits(limits.max_memory, limits.workers)
    return limits


def _goal(
    layout: LayoutLike, mesh: str | DeviceMesh | None, changes: Changes
) -> tuple[Layout | None, Changes]:
    """The layout, and every change: a layout file's own come first."""
    from reshard.engine.layouts import layout_of
    from reshard.layout.layout_file import LayoutFile

    found = layout_of(layout, mesh)
    return found, found.changes + changes if isinstance(found, LayoutFile) else changes


def _options(
    goal: tuple[Layout | None, Changes],
    limits: ReadLimits,
    compression: str,
    chunk_bytes: int | str | None,
    ocdbt: bool,
    style: Style | None,
    overwrite: bool,
) -> Options:
    from reshard.engine.options import Options, bytes_of, parse_compression
    from reshard.planning.chunking import SPLIT_ABOVE_BYTES

    layout, changes = goal
    limit = bytes_of("chunk_bytes", chunk_bytes)
    return Options(
        max_memory=limits.max_memory,
        workers=limits.workers,
        layout=layout,
        changes=changes,
        encoding=parse_compression(compression),
        chunk_bytes=SPLIT_ABOVE_BYTES if limit is None else limit,
        ocdbt=ocdbt,
        style=style,
        overwrite=overwrite,
    )
