"""The result as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import CONTENDERS
from benchmarks.rounds import Results
from benchmarks.summary import median_cost, ratios

WIDTH = 118
YARDSTICKS = {"cp": "× cp", "orbax": "× Orbax", "orbax-tuned": "× tuned"}
"""Columns of ratios; a contender compared with another yardstick says so in its label's row."""


def print_table(results: Results, title: str) -> None:
    """Print medians, ratios and what was left out."""
    console = Console(width=None if Console().is_terminal else WIDTH)
    console.print(_table(results, title))
    for name, reason in results.left_out.items():
        console.print(f"left out: {CONTENDERS[name].label}: {reason}", markup=False)
    for name, reason in results.failed.items():
        console.print(f"FAILED: {CONTENDERS[name].label}: {reason}", markup=False)


def _table(results: Results, title: str) -> Table:
    table = Table(title=title)
    table.add_column("medians")
    heads = ("wall s", "start-up s", "CPU s", "peak MiB", "written MiB", *YARDSTICKS.values())
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("× other", justify="right")
    for name in CONTENDERS:
        if name in results.costs:
            table.add_row(CONTENDERS[name].label, *_cells(name, results))
    return table


def _cells(name: str, results: Results) -> list[str]:
    cost, found = median_cost(results.costs[name]), ratios(name, results)
    other = [f"{r:.2f} × {n}" for n, r in found.items() if n not in YARDSTICKS]
    return [
        f"{cost.wall_s:.2f}",
        "" if cost.startup_s is None else f"{cost.startup_s:.1f}",
        f"{cost.cpu_s:.2f}",
        f"{cost.peak_mib:.0f}",
        f"{cost.written_mib:.0f}",
        *(f"{found[y]:.2f}" if y in found else "" for y in YARDSTICKS),
        ", ".join(other),
    ]
