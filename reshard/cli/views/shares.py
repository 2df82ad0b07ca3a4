"""The source shards of each target shard's bytes, and the share of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from reshard.cli.tables import cap_note, table
from reshard.cli.text import parts_text, safe
from reshard.planning.shares import Share, shares

if TYPE_CHECKING:
    from reshard import PlannedTensor
    from reshard.cli.grouping import TensorGroup
    from reshard.cli.views.plan import Groups

MOST_GROUPS = 8
MOST_SHARDS = 16
MOST_SOURCES = 6


def shares_view(groups: Groups, show_all: bool) -> Iterator[RenderableType]:
    """A table for each group's first tensor; the others of the group have the same shares."""
    cut = [g for g in groups if _is_cut(g.first)]
    shown = cut if show_all else cut[:MOST_GROUPS]
    for group in shown:
        yield from _group(group)
    if note := cap_note(len(shown), len(cut), "tensors that are cut"):
        yield Text(note, style="dim")


def _is_cut(tensor: PlannedTensor) -> bool:
    return tensor.source.slices.count > 1 or tensor.target.slices.count > 1


def _group(group: TensorGroup[PlannedTensor]) -> Iterator[RenderableType]:
    source, target = group.first.source.slices, group.first.target.slices
    cut = f"source shards {parts_text(source)} → target shards {parts_text(target)}"
    yield Text.assemble((safe(group.name), "bold"), f"\n{cut}")
    by_target = groupby(shares(group.first.plan), key=lambda share: share.target)
    rows = [(str(shard), _sources(found)) for shard, found in islice(by_target, MOST_SHARDS)]
    yield table("", (">target shard", "source shard: share of the target's bytes"), rows)
    if target.count > len(rows):
        note = f"… and {target.count - len(rows):,} more target shards; --json has each"
        yield Text(note, style="dim")


def _sources(found: Iterable[Share]) -> str:
    """The source shards in order, or the largest shares if there are many."""
    largest = sorted(found, key=lambda s: (-s.share, s.source))
    shown = sorted(largest[:MOST_SOURCES], key=lambda s: s.source)
    text = ", ".join(f"{s.source}: {100 * s.share:.4g}%" for s in shown)
    more = len(largest) - len(shown)
    return f"{text}, and {more:,} more" if more else text
