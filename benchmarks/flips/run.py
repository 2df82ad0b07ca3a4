"""Flipped bits: what verify, convert and restore make of one wrong bit, wherever it lies.

``python -m benchmarks.flips.run [--trials 10000] [--seed 0] [--json FILE]`` makes small checkpoints,
output of this project and fingerprinted ones of stock Orbax, and flips one random bit per trial.
Every class of positions of every checkpoint gets its turn. Ends with 1 where a wrong result came
without an error, or where verify overlooked damage to this project's output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.flips.places import draw, places
from benchmarks.flips.specimens import Specimen, make_specimens
from benchmarks.flips.trials import Flip, Trial, run_trial

COLUMNS = ("trials", "found", "convert", "restore", "harmless", "silent")


def trials(specimens: Sequence[Specimen], count: int, seed: int, scratch: Path) -> Iterator[Trial]:
    """``count`` random flips, in turn over the classes of all checkpoints."""
    random = Random(seed)  # noqa: S311  repeatable, not secret
    turns = [(s, kind, ranges) for s in specimens for kind, ranges in places(s.path).items()]
    for specimen, kind, ranges in itertools.islice(itertools.cycle(turns), count):
        yield run_trial(specimen, kind, Flip(*draw(ranges, random)), scratch)


def summary(done: Iterable[Trial]) -> dict[tuple[str, str], dict[str, int]]:
    """Counts by whose checkpoint it was and class of position."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    for trial in done:
        row = counts["output" if trial.specimen.is_output else "fingerprinted", trial.kind]
        row["trials"] += 1
        row["found"] += trial.is_found
        row["convert"] += trial.convert == "refused"
        row["restore"] += trial.restore == "refused"
        row["harmless"] += trial.convert == trial.restore == "right"
        row["silent"] += trial.is_silent
    return dict(sorted(counts.items(), reverse=True))


def table(counts: dict[tuple[str, str], dict[str, int]]) -> str:
    """The counts in Markdown, with their sums."""
    heads = ("checkpoint", "where", "trials", "found by verify", "refused by convert",
             "refused by restore", "harmless", "silent")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * 2}{'---:|' * len(COLUMNS)}"]
    for (whose, kind), row in counts.items():
        lines.append(f"| {whose} | {kind} | {' | '.join(f'{row[c]:,}' for c in COLUMNS)} |")
    sums = [sum(row[c] for row in counts.values()) for c in COLUMNS]
    return "\n".join([*lines, f"| all | | {' | '.join(f'{n:,}' for n in sums)} |"])


def described(trial: Trial) -> dict[str, Any]:
    """A trial that must not be, so that it can be repeated."""
    return {
        "checkpoint": trial.specimen.name,
        "kind": trial.kind,
        "file": trial.flip.file,
        "byte": trial.flip.byte,
        "bit": trial.flip.bit,
        "found": trial.is_found,
        "convert": trial.convert,
        "restore": trial.restore,
    }


def main() -> int:
    """Parse the command line, flip, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the counts are written too")
    parser.add_argument("--dir", type=Path, help="where the checkpoints are made")
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    logging.disable(logging.WARNING)  # Orbax has a word on every small chunk
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        specimens = make_specimens(Path(folder))
        done = list(trials(specimens, arguments.trials, arguments.seed, Path(folder)))
    counts = summary(done)
    bad = [described(t) for t in done if t.is_silent or t.is_missed]
    print(table(counts))
    for trial in bad:
        print(json.dumps(trial))
    if arguments.json is not None:
        rows = [{"checkpoint": w, "where": k, **row} for (w, k), row in counts.items()]
        arguments.json.write_text(json.dumps({"seed": arguments.seed, "rows": rows, "bad": bad}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
