"""The result as a picture: wall time and peak memory of each contender."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.conversion.contenders import CONTENDERS
from benchmarks.conversion.rounds import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS, COPY = "#4c78a8", "#f58518", "#9aa0a6"


def draw(results: Results, title: str, path: Path) -> None:
    """Write the picture; the file's suffix (.svg, .png) says in which form."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in CONTENDERS if name in results.costs][::-1]
    walls = [[c.wall_s for c in results.costs[name]] for name in names]
    peaks = [[c.peak_mib for c in results.costs[name]] for name in names]
    matplotlib.rcParams.update({"svg.hashsalt": "reshard", "font.size": 9})
    figure, (left, right) = pyplot.subplots(
        1, 2, sharey=True, figsize=(9, 0.9 + 0.36 * len(names)), layout="constrained"
    )
    _bars(left, names, walls, "{:.2f}", "wall time, s (sync counted)")
    _bars(right, names, peaks, "{:.0f}", "peak memory, MiB")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _bars(axes: Axes, names: list[str], values: list[list[float]], form: str, label: str) -> None:
    """A bar for each contender's median, and a dot on it for each round, so that noise is seen."""
    medians = list(map(statistics.median, values))
    colours = list(map(_colour, names))
    axes.barh([CONTENDERS[n].label for n in names], medians, color=colours)
    for row, (median, rounds) in enumerate(zip(medians, values, strict=True)):
        axes.plot(rounds, [row] * len(rounds), ".", color="#0008", markersize=4)
        axes.annotate(
            form.format(median), (max(rounds), row), (6, 0), textcoords="offset points", va="center"
        )
    axes.set_xlabel(label)
    axes.set_xlim(0, 1.18 * max(map(max, values)))
    axes.spines[["top", "right"]].set_visible(False)


def _colour(name: str) -> str:
    label = CONTENDERS[name].label
    return COPY if label.startswith("cp") else OURS if label.startswith("reshard") else THEIRS
