"""The result as a picture: wall time and peak memory of each contender."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders import CONTENDERS
from benchmarks.measure import Cost
from benchmarks.rounds import Results
from benchmarks.summary import median_cost

OURS, THEIRS, COPY = "#4c78a8", "#f58518", "#9aa0a6"


def draw(results: Results, title: str, path: Path) -> None:
    """Write the picture; the file's suffix (.svg, .png) says in which form."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in CONTENDERS if name in results.costs][::-1]
    medians = [median_cost(results.costs[name]) for name in names]
    matplotlib.rcParams.update({"svg.hashsalt": "reshard", "font.size": 9})
    figure, (left, right) = pyplot.subplots(
        1, 2, sharey=True, figsize=(9, 0.9 + 0.36 * len(names)), layout="constrained"
    )
    _bars(left, names, [c.wall_s for c in medians], "{:.2f}", "wall time, s (sync counted)")
    _bars(right, names, [c.peak_mib for c in medians], "{:.0f}", "peak memory, MiB")
    _spread(left, names, results.costs)
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _bars(axes, names: list[str], values: list[float], form: str, label: str) -> None:
    bars = axes.barh([CONTENDERS[n].label for n in names], values, color=list(map(_colour, names)))
    axes.bar_label(bars, [form.format(v) for v in values], padding=4)
    axes.set_xlabel(label)
    axes.margins(x=0.18)
    axes.spines[["top", "right"]].set_visible(False)


def _spread(axes, names: list[str], costs: dict[str, list[Cost]]) -> None:
    """Each round as a dot on its bar, so that noise is seen."""
    for row, name in enumerate(names):
        walls = [c.wall_s for c in costs[name]]
        axes.plot(walls, [row] * len(walls), ".", color="#0008", markersize=4)


def _colour(name: str) -> str:
    label = CONTENDERS[name].label
    return COPY if label.startswith("cp") else OURS if label.startswith("reshard") else THEIRS
