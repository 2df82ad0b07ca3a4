"""Medians and ratios of the measurements, as plain data."""

from __future__ import annotations

import statistics
from dataclasses import asdict, fields
from typing import Any

from benchmarks.conversion.contenders import CONTENDERS
from benchmarks.conversion.rounds import Results
from benchmarks.measure import Cost


def median_cost(costs: list[Cost]) -> Cost:
    """The median of each part of the cost."""
    medians: dict[str, Any] = {
        f.name: _median([getattr(c, f.name) for c in costs]) for f in fields(Cost)
    }
    return Cost(**medians)


def ratio(ours: list[Cost], theirs: list[Cost]) -> float:
    """Median over the rounds of our wall time divided by theirs in the same round."""
    pairs = zip(ours, theirs, strict=False)
    return statistics.median(a.wall_s / b.wall_s for a, b in pairs)


def ratios(name: str, results: Results) -> dict[str, float]:
    """A contender's ratio against each of those it is compared with and that were measured too."""
    costs = results.costs
    others = [other for other in CONTENDERS[name].against if other in costs]
    return {other: ratio(costs[name], costs[other]) for other in others}


def as_json(results: Results) -> dict[str, Any]:
    """Everything that was measured."""
    contenders = {
        name: {
            "label": CONTENDERS[name].label,
            "median": asdict(median_cost(costs)),
            "wall_ratio": ratios(name, results),
            "rounds": [asdict(c) for c in costs],
        }
        for name, costs in results.costs.items()
    }
    return {
        "contenders": contenders,
        "left_out": results.left_out,
        "failed": results.failed,
    }


def _median(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None
