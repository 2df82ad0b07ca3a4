"""Runs ``reshard serve``, but looks for new records only once an hour; notifications wake it at once."""

from __future__ import annotations

from reshard_server.db import connections

if __name__ == "__main__":
    connections.SELDOM_SECONDS = 3600.0

    from reshard.cli import main

    main()
