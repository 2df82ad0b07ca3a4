"""The output of ``doctor`` and ``clean`` about a place for targets."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from reshard import BucketCheck, BucketReport, Leftovers
from reshard.cli.tables import table
from reshard.cli.text import count_text, rate_text, safe
from reshard.geometry.sizes import format_bytes

_HOLDS = {True: ("holds", "green"), False: ("does not hold", "bold red"), None: ("–", "dim")}


def doctor_view(found: BucketReport) -> Iterator[RenderableType]:
    """The table, the link, and a sentence for each thing that does not hold."""
    rows = ((check.name, Text(*_HOLDS[check.holds]), _found(check)) for check in found.checks)
    yield table(found.url, ("tried", "result", "found"), rows)
    if found.latency_s is not None:
        yield Text(
            f"a request takes {1000 * found.latency_s:,.0f} ms; up {_rate(found.upload_bytes_per_s)}, "
            f"down {_rate(found.download_bytes_per_s)}"
        )
    failed = [check for check in found.checks if check.holds is False]
    for check in failed:
        yield Text.assemble((f"{check.name}: ", "bold red"), safe(check.found))
        yield Text(f"  what follows: {safe(check.follows)}")
    if failed:
        word = count_text(len(failed), "thing")
        yield Text.assemble(("not fine: ", "bold red"), f"{word} did not hold on {safe(found.url)}")
    else:
        yield Text.assemble(
            ("fine: ", "bold green"), f"all that was tried holds on {safe(found.url)}"
        )


def _found(check: BucketCheck) -> str:
    return "see below" if check.holds is False else check.found


def _rate(bytes_per_s: float | None) -> str:
    return "–" if bytes_per_s is None else rate_text(bytes_per_s, 1)


def clean_view(found: Leftovers) -> Iterator[RenderableType]:
    """One sentence, and another about uploads that the store cannot list."""
    uploads = f", {count_text(found.uploads, 'unfinished upload')}" if found.uploads else ""
    what = (
        f"{count_text(found.files, 'file')} ({format_bytes(found.nbytes)}) of {safe(found.target)}{uploads}, and "
        f"{safe(found.place)}"
    )
    if found.is_removed:
        yield Text.assemble(("removed: ", "bold green"), what)
    else:
        yield Text.assemble(("would remove: ", "bold"), what)
    if found.uploads is None:
        yield Text(
            "unfinished uploads in parts, if there are any, were not found: this store does not tell them; a lifecycle rule of "
            "the bucket removes them"
        )
