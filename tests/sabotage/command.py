"""``python -m tests.sabotage [NAME…]``: sees that each sabotage, or each that is named, is caught by its tests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.sabotage.listed import SABOTAGES
from tests.sabotage.sabotage import LostTextError, Sabotage
from tests.sabotage.tree import ROOT, copied_tree, sabotaged
from tests.sabotage.trial import Trial, run_tests


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every sabotage is caught, 1 if one is not, 2 for a name that no sabotage has."""
    parser = argparse.ArgumentParser(prog="python -m tests.sabotage", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="sabotages to run; all if none is named"
    )
    parser.add_argument("--list", action="store_true", help="list all sabotages, and run none")
    options = parser.parse_args(arguments)
    if options.list:
        for one in SABOTAGES:
            print(f"{one.name:32} {one.what} ({one.file})")
        return 0
    by_name = {one.name: one for one in SABOTAGES}
    unknown = [name for name in options.names if name not in by_name]
    if unknown:
        parser.error(f"no sabotage is called {unknown[0]}; --list names all")
    return check([by_name[name] for name in options.names] or SABOTAGES)


def check(sabotages: Sequence[Sabotage]) -> int:
    """0 if every one of them is caught, and its tests pass without it; prints a row for each."""
    try:
        for one in sabotages:
            one.applied(ROOT)
    except LostTextError as error:
        print(error, file=sys.stderr)
        return 1
    with copied_tree() as root:
        tests = list(dict.fromkeys(test for one in sabotages for test in one.tests))
        sound = run_tests(root, tests)
        if sound.code != 0:
            print(f"without a sabotage the tests do not pass:\n{sound.output}", file=sys.stderr)
            return 1
        print(f"without a sabotage {len(tests)} tests pass in {sound.seconds:.1f} s\n", flush=True)
        print(f"{'sabotage':32} {'seconds':>7}  caught by")
        missed = [one.name for one in sabotages if not _is_caught(root, one)]
    print(f"\n{len(sabotages) - len(missed)} of {len(sabotages)} sabotages are caught")
    for name in missed:
        print(f"NOT CAUGHT: {name}", file=sys.stderr)
    return 1 if missed else 0


def _is_caught(root: Path, sabotage: Sabotage) -> bool:
    with sabotaged(root, sabotage):
        trial = run_tests(root, sabotage.tests)
    caught_by = trial.failed[0] if trial.has_caught else _why_not(trial)
    print(f"{sabotage.name:32} {trial.seconds:7.1f}  {caught_by}", flush=True)
    return trial.has_caught


def _why_not(trial: Trial) -> str:
    if trial.code is None:
        return f"nothing: the tests hang, and were ended after {trial.seconds:.0f} s"
    last = trial.output.strip().rpartition("\n")[2]
    return f"nothing: pytest ended with exit code {trial.code} ({last})"
