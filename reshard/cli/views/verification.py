"""What ``verify`` shows: differences first, then what could not be told, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard.cli.tables import Cell, Name, cap_note, capped, table
from reshard.cli.text import count_text, safe, some_text
from reshard.engine.compare import TensorVerdict, Verification

_AGREEING = frozenset({"equal", "recorded"})


def verification_view(found: Verification, show_all: bool) -> Iterator[RenderableType]:
    """Tensors that differ, those without a record, and one line that sums it up."""
    unlike = [t for t in found.tensors if t.status not in _AGREEING | {"not recorded"}]
    yield from _table("differences", unlike, found, show_all)
    if show_all:
        alike = [t for t in found.tensors if t.status in _AGREEING]
        yield from _table("", alike, found, show_all)
    unknown = [t.name for t in found.tensors if t.status == "not recorded"]
    if unknown:
        names = some_text(unknown, len(unknown) if show_all else 5)
        yield Text(f"no digest was recorded for {count_text(len(unknown), 'tensor')}: {names}")
    yield _verdict(found, len(unknown))


def _table(
    title: str, verdicts: Sequence[TensorVerdict], found: Verification, show_all: bool
) -> Iterator[RenderableType]:
    shown = capped(verdicts, show_all)
    if shown:
        a, b = ("digest of A", "digest of B") if found.b is not None else ("stored", "recorded")
        rows = list(map(_row, shown))
        columns = 4 if any(row[-1] for row in rows) else 3
        titles = ("tensor", "status", f"{a}\n{b}", "detail")
        yield table(title, titles[:columns], (row[:columns] for row in rows))
    if note := cap_note(len(shown), len(verdicts), "tensors"):
        yield Text(note, style="dim")


def _row(verdict: TensorVerdict) -> tuple[Cell, ...]:
    is_fine = verdict.status in _AGREEING
    is_alone = verdict.status.startswith("only in")
    digests = f"{verdict.digest_a or '–'}\n{verdict.digest_b or '–'}"
    return (
        Name(verdict.name),
        Text(verdict.status, style="green" if is_fine else "bold red"),
        "–" if is_alone else digests,
        "" if is_alone else verdict.detail,
    )


def _verdict(found: Verification, unknown: int) -> Text:
    against = f"B = {safe(found.b)}" if found.b is not None else "its own record"
    where = f"A = {safe(found.a)} against {against}"
    total = len(found.tensors)
    if found.differences:
        return Text.assemble(
            ("different: ", "bold red"),
            f"{found.differences:,} of {count_text(total, 'tensor')}; {where}",
        )
    agreeing = total - unknown
    if not agreeing:
        return Text.assemble(
            ("nothing verified: ", "bold yellow"), f"no tensor could be told; {where}"
        )
    word = "equal: " if found.b is not None else "as recorded: "
    return Text.assemble(
        (word, "bold green"), f"{agreeing:,} of {count_text(total, 'tensor')}; {where}"
    )
