"""A conversion whose worker processes are killed: ``killed_workers.py SOURCE TARGET METHOD``; prints its error.

In a process of its own, which loads neither jax nor Orbax: where their threads run, a forked worker
may find a lock taken that nobody will ever give back.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from reshard.errors import ReshardError
from tests.robustness.leaks import nothing_leaks
from tests.robustness.races.small_tasks import KEPT, convert


def main() -> None:
    source, target, method = sys.argv[1:]
    assert not {"jax", "orbax"} & sys.modules.keys()
    with (
        nothing_leaks(Path(target).parent, KEPT),
        ProcessPoolExecutor(2, get_context(method)) as executor,
    ):

        def kill(_: object) -> None:
            """At the first look, when no part is done."""
            for pid in executor._processes or {}:
                with suppress(ProcessLookupError):  # told of more than once
                    os.kill(pid, signal.SIGKILL)

        try:
            convert(source, target, executor=executor, parts=4, progress=kill)
        except ReshardError as error:
            print(error)
        assert not Path(target).exists()
        convert(source, target, restart=True)  # the target is free again at once


if __name__ == "__main__":
    main()
