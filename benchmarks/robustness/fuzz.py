"""Hostile checkpoints by the thousand: ``python -m benchmarks.robustness.fuzz --minutes 10 [--seed 1]``.

Prints cases per second, outcomes, the slowest and the largest case, and whatever is wrong, with the
seed that makes it again; the checkpoints that did it are kept below ``--work``. The exit code is 1
where anything is wrong. The tests run the first hundred.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.robustness.hostile.campaign import Findings, run_campaign


def main() -> int:
    """Runs the campaign that the arguments ask for; 1 where anything is wrong."""
    arguments = _arguments()
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tests.robustness.hostile.specimens import make_specimens

    work = Path(arguments.work or tempfile.mkdtemp(prefix="reshard-fuzz-"))
    specimens = work / "specimens"
    if not specimens.exists():
        specimens.mkdir(parents=True)
        make_specimens(specimens)
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 10**9
    print(f"seeds from {seed}, below {work}", flush=True)
    seeds = (
        itertools.count(seed) if arguments.cases is None else range(seed, seed + arguments.cases)
    )
    found = run_campaign(
        specimens, work, seeds, arguments.minutes * 60, lambda t: print(t, flush=True)
    )
    _print(found)
    return 1 if found.wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the first case's number")
    parser.add_argument("--cases", type=int, help="stop after so many")
    parser.add_argument("--work", help="folder for specimens and examples")
    return parser.parse_args()


def _print(found: Findings) -> None:
    print(
        f"{found.cases} cases in {found.seconds:.0f} s, {found.cases / max(1e-9, found.seconds):.1f} a second"
    )
    print(
        f"slowest {found.slowest_seconds:.1f} s, largest {found.peak_bytes >> 20} MiB above the start"
    )
    for outcome, count in sorted(found.outcomes.items()):
        print(f"  {outcome:45} {count:8}")
    print(f"{len(found.wrong)} wrong")


if __name__ == "__main__":
    sys.exit(main())
