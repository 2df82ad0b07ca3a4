"""The command ``reshard work``: a host that carries conversions out, and answers no requests."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType

from reshard_server.auth.root_paths import Roots
from reshard_server.serve import prepare
from reshard_server.services import open_work
from reshard_server.settings import Settings

LOG = logging.getLogger(__name__)


def work(settings: Settings) -> None:
    """Carries out what servers with the same records accept, until the process gets SIGTERM or SIGINT.

    Then its children stop, and other hosts resume their work at once. Raises ReshardError for settings or records that cannot be used.
    """
    prepare(settings)
    ending = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        if ending.is_set():  # a second signal ends it at once, which loses nothing
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with open_work(settings, Roots.of(settings.roots)):
        labels = "".join(f", {key}={value}" for key, value in settings.labels.items())
        print(f"reshard works: {settings.running} at once{labels}", file=sys.stderr, flush=True)
        ending.wait()
        LOG.info("draining")
