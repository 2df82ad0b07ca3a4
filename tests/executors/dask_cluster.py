"""Clusters of Dask on this machine, and what their workers are told to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

BUDGET: dict[str, Any] = {"workers": 2, "max_memory": "256MiB"}
"""Of all workers together."""


@contextmanager
def cluster(folder: Path) -> Iterator[Client]:
    """A client of two processes with a thread each, which share nothing with this one but the file system."""
    made = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0,
        local_directory=str(folder), silence_logs=50,
    )  # fmt: skip
    with made, Client(made) as client:
        client.wait_for_workers(2)
        # So long Dask tries to fetch a result from a worker that is gone. To begin with, a busy machine takes longer.
        with dask.config.set({"distributed.comm.timeouts.connect": "3s"}):
            client.run(dask.config.set, {"distributed.comm.timeouts.connect": "3s"})
            yield client


def hold_back(client: Client, folder: Path) -> None:
    """Lets all batches of each worker but its first begin, and then wait until the file ``go`` is in ``folder``.

    Each of them notes in the folder that it began, and how it ended.
    """
    client.run(_hold_back, str(folder))


def _hold_back(folder: str) -> None:
    import time

    from reshard.engine import run

    inner, count = run.execute, 0

    def held(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            return inner(*arguments)
        note = Path(folder, f"{os.getpid()}-{count}")
        note.with_suffix(".begun").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        try:
            made = inner(*arguments)
        except BaseException as error:
            note.with_suffix(".ended").write_text(f"{type(error).__name__}: {error}")
            raise
        note.with_suffix(".ended").write_text("done")
        return made

    run.execute = held
