"""What runs in a process of ``Processes``: a thread for each connection carries out the tasks that arrive there.

The main thread ends the process when its stdin closes, or when the process that started it is gone.
"""

from __future__ import annotations

import os
import pickle
import select
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, NoReturn

from reshard.errors import ReshardError

LOOK_SECONDS = 1.0
"""How often the parent is looked for: a process that it forked may hold our stdin open when the parent has ended."""


def main(parent: int, descriptors: Sequence[int]) -> NoReturn:
    """Serves the connections until the parent closes our stdin, or ends."""
    for descriptor in descriptors:
        Thread(target=_serve, args=(Connection(descriptor),), daemon=True).start()
    while os.getppid() == parent and not select.select([0], [], [], LOOK_SECONDS)[0]:
        pass
    os._exit(0)


def _serve(connection: Connection) -> None:
    """Answers each message, ``(work, arguments)``, with ``(result, error)``; ``work`` None is that of the message before."""
    work: Callable[..., Any] = _nothing
    connection.send(None)  # ready
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        try:
            given, arguments = pickle.loads(message)  # noqa: S301 - of the process that started this one
            work = given or work
            answer = pickle.dumps((work(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            answer = pickle.dumps((None, _with_traceback(error)))
        connection.send_bytes(answer)


def _nothing() -> None:
    """The work before any was given."""


def _with_traceback(error: BaseException) -> BaseException:
    """A traceback does not travel, and tells where a defect is."""
    if not isinstance(error, ReshardError):
        error.add_note(f"in another process:\n{traceback.format_exc()}")
    return error
