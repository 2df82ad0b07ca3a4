"""A server whose conversions nobody carries out, so that tests choose their states.

Run as a program it is ``reshard serve`` with that one difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from reshard_server import services
from reshard_server.db.conversions import executors
from reshard_server.db.conversions.executors import Host
from reshard_server.errors.error_handlers import Unavailable
from reshard_server.settings import Settings


@dataclass
class Idle:
    """Takes conversions and does nothing with them."""

    settings: Settings
    database: sa.Engine
    roots: object
    children: object
    executor: str = "idle"
    wakes: int = 0
    lease_ends: float = float("inf")
    refused: Unavailable | None = None

    def launch(self) -> None:
        settings = self.settings
        host = Host(settings.max_memory, settings.running, settings.labels)
        executors.beat(self.database, self.executor, host)

    def close(self) -> None: ...

    def wake(self) -> None:
        self.wakes += 1


if __name__ == "__main__":
    from reshard.cli import main

    services.JobQueue = Idle
    main()
