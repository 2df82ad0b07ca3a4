"""A cluster of Dask on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
from distributed import Client, LocalCluster


@contextmanager
def cluster(folder: Path) -> Iterator[Client]:
    """A client of two processes with a thread each, which share nothing with this one but the file system."""
    made = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0,
        local_directory=str(folder), silence_logs=50, resources={"reshard": 1},
    )  # fmt: skip
    with made, Client(made) as client:
        client.wait_for_workers(2)
        # So long Dask tries to fetch a result from a worker that is gone. To begin with, a busy machine takes longer.
        with dask.config.set({"distributed.comm.timeouts.connect": "3s"}):
            client.run(dask.config.set, {"distributed.comm.timeouts.connect": "3s"})
            yield client
