"""A server that only works: ``replica.py STATE ROOT URL OPTIONS``; OPTIONS are further settings as JSON.

Its clock goes wrong by as many seconds as the variable SKEW_SECONDS says.

Says ``ready`` once launched, ends in good order on SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from reshard_server.db.database import open_database, state_locked
from reshard_server.jobs.queue import JobQueue
from reshard_server.settings import Settings
from reshard_server.worker.children import Children


@dataclass(frozen=True)
class OneRoot:
    """The root ``data``; these tests use no other roots."""

    folder: Path

    def recheck(self, text: str, *, target: bool = False) -> Path:  # noqa: ARG002  of the interface
        root, _, below = text.partition("/")
        assert root == "data"
        return self.folder / below


def _skew(seconds: float) -> None:
    right = time.time
    time.time = lambda: right() + seconds


def main() -> None:
    state, root, url, options = sys.argv[1:]
    _skew(float(os.environ["SKEW_SECONDS"]))
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    settings = Settings(
        state=state, roots={"data": root}, database_url=url or None, **json.loads(options)
    )
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    with state_locked(settings):
        children = Children()
        queue = JobQueue(settings, open_database(settings), OneRoot(Path(root)), children)
        queue.launch()
        print("ready", flush=True)
        ending.wait()
        queue.close()
        children.close()


if __name__ == "__main__":
    main()
