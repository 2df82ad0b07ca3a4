"""``reshard serve`` that looks into its records once an hour while it is told of changes."""

from __future__ import annotations

from reshard_server.db import notify

if __name__ == "__main__":
    notify.SELDOM_SECONDS = 3600.0

    from reshard.cli import main

    main()
