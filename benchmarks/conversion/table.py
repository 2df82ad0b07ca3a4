"""The result as a table: for a terminal, or as Markdown for a document."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.conversion.contenders import CONTENDERS
from benchmarks.conversion.rounds import Results
from benchmarks.conversion.summary import median_cost, ratios

WIDTH = 140
YARDSTICKS = {"cp": "× cp", "orbax": "× Orbax", "orbax-tuned": "× tuned"}
"""Columns of ratios; a contender compared with anything else names it in the last column."""

COSTS = ("wall s", "start-up s", "CPU s", "peak MiB", "written MiB")
HEADS = ("medians", *COSTS, *YARDSTICKS.values(), "× other")


def print_table(results: Results, title: str) -> None:
    """Print medians, ratios and what was left out."""
    console = Console(width=None if Console().is_terminal else WIDTH)
    table = Table(*HEADS, title=title)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in _rows(results):
        table.add_row(*row)
    console.print(table)
    for line in _remarks(results):
        console.print(line, markup=False, highlight=False)


def as_markdown(results: Results, title: str) -> str:
    """The same table for a document."""
    lines = [HEADS, ("---", *["---:"] * (len(HEADS) - 1)), *_rows(results)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    remarks = "".join(f"\n- {line}" for line in _remarks(results))
    return f"{title}\n\n{table}\n{remarks}\n"


def _rows(results: Results) -> list[tuple[str, ...]]:
    return [_row(name, results) for name in CONTENDERS if name in results.costs]


def _row(name: str, results: Results) -> tuple[str, ...]:
    cost, found = median_cost(results.costs[name]), ratios(name, results)
    return (
        CONTENDERS[name].label,
        f"{cost.wall_s:.2f}",
        "" if cost.startup_s is None else f"{cost.startup_s:.1f}",
        f"{cost.cpu_s:.2f}",
        f"{cost.peak_mib:.0f}",
        f"{cost.written_mib:.0f}",
        *(f"{found[y]:.2f}" if y in found else "" for y in YARDSTICKS),
        ", ".join(f"{r:.2f} × {n}" for n, r in found.items() if n not in YARDSTICKS),
    )


def _remarks(results: Results) -> list[str]:
    left_out = [f"left out: {CONTENDERS[n].label}: {why}" for n, why in results.left_out.items()]
    failed = [f"FAILED: {CONTENDERS[n].label}: {why}" for n, why in results.failed.items()]
    return left_out + failed
