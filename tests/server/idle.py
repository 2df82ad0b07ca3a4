"""A server whose conversions nobody carries out, so that tests choose their states.

Run as a program it is ``reshard serve`` with that one difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa
from reshard_server import services
from reshard_server.db.conversions import executors
from reshard_server.errors.database_errors import Unavailable
from reshard_server.settings import Settings


@dataclass
class Idle:
    """Takes conversions and does nothing with them."""

    settings: Settings
    database: sa.Engine
    roots: object
    executor: str = "idle"
    enqueued: list[tuple[str, str, int]] = field(default_factory=list)
    lease_ends: float = float("inf")
    refused: Unavailable | None = None

    def launch(self) -> None:
        executors.beat(self.database, self.executor)

    def close(self) -> None: ...

    def enqueue(self, conversion_id: str, token: str, priority: int) -> None:
        self.enqueued.append((conversion_id, token, priority))


if __name__ == "__main__":
    from reshard.cli import main

    services.Durable = Idle  # type: ignore[misc, assignment]
    main()
