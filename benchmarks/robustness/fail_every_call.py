"""Every single call to the operating system fails once, in every case and for every reason: a table.

The tests make a call of each place in the code fail; this takes every call, which is thousands of
conversions::

    python -m benchmarks.robustness.fail_every_call [--cases scatter,keep] [--every 1]

Prints for each case and reason: calls that were made to fail, runs that were refused with a clear error,
runs that succeeded all the same with the right bytes, and what was wrong. Exit code 1 where anything was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

REASONS = (
    "FULL_DISK", "QUOTA", "WRITE_ERROR", "READ_ERROR", "READ_ONLY", "DENIED", "STALE", "TOO_MANY_FILES",
)  # fmt: skip


def main() -> int:
    """Runs the cases asked for and prints the table; 1 where anything was wrong."""
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    arguments = _arguments()
    from tests.robustness.faults.cases import CASES, clear, save_sources

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        save_sources(work)
        print(
            f"{'case':20} {'reason':16} {'failed':>7} {'refused':>8} {'succeeded':>10} {'wrong':>6}"
        )
        for case in CASES:
            if not arguments.cases or case.name in arguments.cases.split(","):
                case.run(work)  # loads all code
                clear(work)
                wrong += sum(_row(case, reason, work, arguments.every) for reason in REASONS)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fail every call to the operating system.")
    parser.add_argument("--cases", default="", help="names, separated by commas; all by default")
    parser.add_argument("--every", type=int, default=1, help="only every n-th call")
    return parser.parse_args()


def _row(case: object, reason: str, work: Path, every: int) -> int:
    from tests.robustness.faults import faults
    from tests.robustness.faults.cases import Case
    from tests.robustness.faults.disturbed import check_disturbed, undisturbed

    assert isinstance(case, Case)
    fault = getattr(faults, reason)
    calm = undisturbed(case, work)
    count = sum(call.kind in fault.kinds for call in calm.calls)
    outcomes = {"refused": 0, "succeeded": 0, "wrong": 0}
    for number in range(0, count, every):
        try:
            outcomes[check_disturbed(case, work, fault, number, calm)] += 1
        except Exception as error:  # noqa: BLE001  counted, and the next call is tried
            outcomes["wrong"] += 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    columns = f"{outcomes['refused']:8} {outcomes['succeeded']:10} {outcomes['wrong']:6}"
    print(f"{case.name:20} {reason:16} {len(range(0, count, every)):7} {columns}", flush=True)
    return outcomes["wrong"]


if __name__ == "__main__":
    sys.exit(main())
