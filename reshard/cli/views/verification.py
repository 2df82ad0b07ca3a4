"""What ``verify`` shows: differences first, then what could not be told, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard.cli.tables import Cell, Name, cap_note, capped, table, warning
from reshard.cli.text import count_text, safe, some_text
from reshard.engine.compare import AGREEING, TensorVerdict, Verification
from reshard.formats.orbax.folder_record import FileVerdict


def verification_view(found: Verification, show_all: bool) -> Iterator[RenderableType]:
    """What cannot be read, tensors and files that differ, those without a record, and the verdict."""
    yield from (Text.assemble(("damaged: ", "bold red"), safe(text)) for text in found.damage)
    unlike = [t for t in found.tensors if t.status not in AGREEING | {"not recorded"}]
    yield from _table("differences", unlike, found, show_all)
    yield from _files([f for f in found.files if f.is_difference], found, show_all)
    if show_all:
        alike = [t for t in found.tensors if t.status in AGREEING]
        yield from _table("", alike, found, show_all)
    unknown = [t.name for t in found.tensors if t.status == "not recorded"]
    if unknown:
        names = some_text(unknown, len(unknown) if show_all else 5)
        yield Text(f"no digest was recorded for {count_text(len(unknown), 'tensor')}: {names}")
    yield from map(warning, found.warnings)
    yield _verdict(found, len(unknown))


def _files(
    verdicts: Sequence[FileVerdict], found: Verification, show_all: bool
) -> Iterator[RenderableType]:
    shown = capped(verdicts, show_all)
    if shown:
        titles = ("file", "status", "stored\nrecorded", "detail")
        yield table("files that differ", titles, (_file_row(f, found) for f in shown))
    if note := cap_note(len(shown), len(verdicts), "files"):
        yield Text(note, style="dim")


def _file_row(file: FileVerdict, found: Verification) -> tuple[Cell, ...]:
    name = file.name if found.b is None else f"{file.side}: {file.name}"
    digests = f"{file.stored or '–'}\n{file.recorded or '–'}"
    return Name(name), Text(file.status, style="bold red"), digests, safe(file.detail)


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
    is_fine = verdict.status in AGREEING
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
        return Text.assemble(("different: ", "bold red"), f"{_different(found)}; {where}")
    agreeing = total - unknown
    if not agreeing:
        return Text.assemble(
            ("nothing verified: ", "bold yellow"), f"no tensor could be told; {where}"
        )
    word = "equal: " if found.b is not None else "as recorded: "
    files = f" and {count_text(len(found.files), 'file')}" if found.files else ""
    return Text.assemble(
        (word, "bold green"), f"{agreeing:,} of {count_text(total, 'tensor')}{files}; {where}"
    )


def _different(found: Verification) -> str:
    tensors = sum(t.is_difference for t in found.tensors)
    files = sum(f.is_difference for f in found.files)
    words = f"{tensors:,} of {count_text(len(found.tensors), 'tensor')}"
    return words + (f", {files:,} of {count_text(len(found.files), 'file')}" if files else "")
