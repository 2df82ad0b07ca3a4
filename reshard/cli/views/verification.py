"""The output of ``verify``: differences, tensors without a record, leaves that are no tensors, the verdict; and that of ``fingerprint``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from reshard import (
    FileVerdict,
    Fingerprint,
    IdentityVerdict,
    LeafDiff,
    ReceiptVerdict,
    TensorVerdict,
    Verification,
)
from reshard.cli.tables import MOST_ROWS, Cell, first_rows, names_text, warning
from reshard.cli.text import (
    and_text,
    count_text,
    dtype_text,
    duration_text,
    rate_text,
    rule_words,
    safe,
    some_text,
)
from reshard.geometry.sizes import format_bytes
from reshard.verification.reports import AGREEING

MOST_DIGESTS = 8


def verification_view(
    found: Verification, show_all: bool, most: int = MOST_ROWS, deltas: int = 0
) -> Iterator[RenderableType]:
    """Damage, then tensors and files that differ, then tensors without a record, then the verdict.

    ``deltas``: the number of deltas that made the version of A that was verified.
    """
    yield from (Text.assemble(("damaged: ", "bold red"), safe(text)) for text in found.damage)
    unlike = [t for t in found.tensors if t.status not in AGREEING | {"not recorded"}]
    yield from _table("differences", unlike, found, show_all, most, deltas)
    yield from leaves_view(found.leaves, show_all, most)
    yield from _files([f for f in found.files if f.is_difference], found, show_all, most)
    if show_all:
        alike = [t for t in found.tensors if t.status in AGREEING]
        yield from _table("", alike, found, show_all, most, deltas)
    unknown = [t.name for t in found.tensors if t.status == "not recorded"]
    if 0 < len(unknown) < len(found.tensors):  # a warning says so if it is all of them
        names = some_text(unknown, len(unknown) if show_all else 5)
        yield Text(f"no digest was recorded for {count_text(len(unknown), 'tensor')}: {names}")
    yield from _rules(found, show_all)
    yield from map(warning, found.warnings)
    if found.identity is not None:
        yield from _identity(found.identity)
    if found.receipt is not None:
        yield from _receipt(found.receipt)
    yield _verdict(found, len(unknown), deltas)


def _rules(found: Verification, show_all: bool) -> Iterator[Text]:
    """The rules by which tensors were paired, and the tensors that they leave out."""
    if found.rules and found.rules.from_ == "recorded":
        rules = rule_words(found.rules)
        yield Text(f"rules that B records: {some_text(rules, len(rules) if show_all else 8)}")
    if found.map == "recorded":
        yield Text("compared with what the map makes of A that B records")
    if found.dropped:
        names = some_text(found.dropped, len(found.dropped) if show_all else 5)
        yield Text(
            f"left out by the rules: {count_text(len(found.dropped), 'tensor')} of A: {names}"
        )


def _files(
    verdicts: Sequence[FileVerdict], found: Verification, show_all: bool, most: int
) -> Iterator[RenderableType]:
    yield from first_rows(
        ("file", "status", "stored", "recorded"),
        verdicts,
        lambda f: (
            _file_name(f, found),
            Text(f.status, "bold red"),
            f.stored or "–",
            f.recorded or "–",
        ),
        "files",
        show_all=show_all,
        most=most,
        title="files that differ",
        below=lambda f: _sentence(_file_name(f, found), f.detail),
    )


def _file_name(file: FileVerdict, found: Verification) -> str:
    return file.name if found.b is None else f"{file.side}: {file.name}"


def _sentence(name: str, detail: str) -> Iterator[Text]:
    if detail:
        yield Text(f"{safe(name)}: {safe(detail)}")


def _table(
    title: str,
    verdicts: Sequence[TensorVerdict],
    found: Verification,
    show_all: bool,
    most: int,
    deltas: int,
) -> Iterator[RenderableType]:
    digests: tuple[str, ...] = ("digest of A", "digest of B")
    if found.b is None:
        # Deltas record checksums of several kinds, which the sentences below name.
        digests = () if deltas else ("stored", "recorded")
    titles = ("tensor", "status", *digests)
    yield from first_rows(
        titles,
        verdicts,
        lambda verdict: _row(verdict)[: len(titles)],
        "tensors",
        show_all=show_all,
        most=most,
        title=title,
        below=lambda verdict: _sentence(verdict.name, _detail(verdict, found)),
    )


def _row(verdict: TensorVerdict) -> tuple[Cell, ...]:
    is_fine = verdict.status in AGREEING
    is_alone = verdict.status.startswith("only in")
    return (
        names_text(verdict.source, verdict.name),
        Text(verdict.status, style="green" if is_fine else "bold red"),
        "–" if is_alone else verdict.digest_a or "–",
        "–" if is_alone else verdict.digest_b or "–",
    )


def _detail(verdict: TensorVerdict, found: Verification) -> str:
    """The difference, and the comparison if rules made B's tensor of A's; empty for a tensor on one side only."""
    if verdict.status.startswith("only in"):
        return ""
    how = f"cast {_cast(verdict)}" if verdict.comparison == "cast" else verdict.comparison
    return "; ".join(
        filter(None, [verdict.detail, how if found.rules or found.is_by_rules else ""])
    )


def _cast(verdict: TensorVerdict) -> str:
    dtypes = dtype_text(str(verdict.source_dtype), str(verdict.target_dtype))
    return f"{dtypes} saturating" if verdict.saturate else dtypes


def _kinds(verdicts: Sequence[TensorVerdict]) -> str:
    """`` (2 exact, 1 computed, 1 cast float32 → bfloat16)``; empty if all are exact."""
    counts = Counter(verdict.comparison for verdict in verdicts)
    kinds = Counter(_cast(v) for v in verdicts if v.comparison == "cast")
    words = [f"{counts[one]:,} {one}" for one in ("exact", "computed") if counts[one]]
    words += [f"{count:,} cast {kind}" for kind, count in kinds.items()]
    return f" ({', '.join(words)})" if counts["exact"] < len(verdicts) else ""


def _identity(found: IdentityVerdict) -> Iterator[Text]:
    yield Text(f"root:     {found.root or 'unknown'}")
    if found.is_difference:
        yield Text(f"expected: {found.expected}")
    if found.signer is not None:
        yield Text(f"signer:   {found.signer}")
    said = [safe(text) for text in (found.name, found.version, found.signed_at) if text]
    if said:
        yield Text(f"signed:   {', '.join(said)}")


def _receipt(found: ReceiptVerdict) -> Iterator[Text]:
    yield Text(f"root of A: {found.source or 'unknown'}")
    yield Text(f"root of B: {found.target or 'unknown'}")
    yield from (
        Text.assemble(("different: ", "bold red"), sentence) for sentence in found.differences
    )


def _expected(found: IdentityVerdict) -> str:
    if found.recorded_in is not None:
        return f"the root that {safe(found.recorded_in)} records"
    return "the root that was signed" if found.signer else "the root that was given"


def _verdict(found: Verification, unknown: int, deltas: int) -> Text:
    own = "what they record" if deltas else "its own record"
    against = f"B = {safe(found.b)}" if found.b is not None else own
    if found.identity is not None:
        against = _expected(found.identity)
    if found.receipt is not None:
        against += f" by the receipt that reshard {safe(found.receipt.reshard)} wrote"
    chain = f" with {count_text(deltas, 'delta')}" if deltas else ""
    where = f"A = {safe(found.a)}{chain} against {against}"
    total = len(found.tensors)
    if found.differences:
        return Text.assemble(("different: ", "bold red"), f"{_different(found)}; {where}")
    agreeing = total - unknown
    if not agreeing:
        return Text.assemble(
            ("nothing verified: ", "bold yellow"),
            f"no tensor has a record to compare with; {where}",
        )
    word = "equal: " if found.b is not None else "as recorded: "
    if found.identity is not None:
        word = "verified: "
    leaves = compared_leaves(found.leaves)
    parts = [
        f"{agreeing:,} of {count_text(total, 'tensor')}{_kinds(found.tensors)}",
        others_text(leaves) if leaves else "",
        count_text(len(found.files), "file") if found.files else "",
    ]
    return Text.assemble((word, "bold green"), f"{and_text(parts)}; {where}")


def _different(found: Verification) -> str:
    tensors = sum(t.is_difference for t in found.tensors)
    if found.identity is not None and found.identity.root and not tensors:
        return "the root is another; which tensors differ is not known without the identity's file"
    leaves = sum(x.is_difference for x in found.leaves)
    files = sum(f.is_difference for f in found.files)
    words = f"{tensors:,} of {count_text(len(found.tensors), 'tensor')}"
    words += f", {leaves:,} of {others_text(compared_leaves(found.leaves))}" if leaves else ""
    words += f", {files:,} of {count_text(len(found.files), 'file')}" if files else ""
    roots = 0 if found.receipt is None else len(found.receipt.differences)
    return words + (f", {roots} of 2 roots" if roots else "")


def fingerprint_view(found: Fingerprint, show_all: bool) -> Iterator[RenderableType]:
    """The headline, digests, and the files that contain them."""
    yield Text.assemble(
        ("recorded ", "bold green"),
        f"{count_text(len(found.tensors), 'tensor')}, {format_bytes(found.nbytes)}, and "
        f"{count_text(found.files, 'other file')} of {safe(found.uri)} in "
        f"{duration_text(found.seconds)} ({rate_text(found.nbytes, found.seconds)})",
    )
    yield from first_rows(
        ("tensor", "CRC-64/NVME"),
        list(found.tensors.values()),
        lambda one: (one.name, one.digest),
        "tensors",
        show_all=show_all,
        most=MOST_DIGESTS,
    )
    yield from (Text(f"written: {safe(path)}") for path in found.written)
    yield from map(warning, found.warnings)


MOST_TEXT = 24
"""Characters of a string that a table shows."""


def leaves_view(
    leaves: Sequence[LeafDiff], show_all: bool, most: int = MOST_ROWS
) -> Iterator[RenderableType]:
    """A row for each leaf that differs."""
    unlike = [x for x in leaves if x.is_difference]
    titles = ("other leaf", "in A", "in B")
    yield from first_rows(titles, unlike, _leaf_row, "leaves", show_all=show_all, most=most)


def compared_leaves(leaves: Sequence[LeafDiff]) -> int:
    """The number of leaves that were compared."""
    return sum(not x.status.startswith("no place") for x in leaves)


def others_text(count: int) -> str:
    """A count in words, such as ``3 other leaves``."""
    return f"{count:,} other {'leaf' if count == 1 else 'leaves'}"


def _leaf_row(leaf: LeafDiff) -> tuple[Cell, ...]:
    renamed = leaf.source not in (None, leaf.name)
    name = f"{leaf.name} ({leaf.source} in A)" if renamed else leaf.name
    pairs = zip(leaf.a or "", leaf.b or "", strict=False)
    alike = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    start = alike - 4 if alike > MOST_TEXT // 2 else 0
    return name, _brief(leaf.a, start), _brief(leaf.b, start)


def _brief(text: str | None, start: int) -> str:
    """The text, cut to the part where the two sides differ."""
    if text is None:
        return "–"
    found = safe(text)
    if len(found) <= MOST_TEXT:
        return found
    found = f"…{found[start:]}" if start else found
    return found if len(found) <= MOST_TEXT else f"{found[: MOST_TEXT - 1]}…"
