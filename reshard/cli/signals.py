"""Signals that ask a run to stop: it ends in order, keeps what can be resumed, and says so.

Only the command line handles them; a program that uses the library has its own handlers.
"""

from __future__ import annotations

import signal
from types import FrameType

_HANDLED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Each signal with Python's first handler: a signal that was ignored (``nohup``) stays ignored."""


class Stopped(BaseException):
    """A signal asked to stop; not an Exception, so that no code treats it as a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As in shells: 128 plus the signal's number."""
        return 128 + self.number


class Detached(BaseException):
    """A signal ended the watching of a conversion that a server continues; not an Exception, like Stopped."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def stop_on_signals() -> None:
    """From now on the first SIGINT or SIGTERM raises Stopped in the main thread; a second one kills.

    A kill during the tidying leaves what any killed run leaves. A second exception would be worse: threads that still
    write would outlive the lock on their target.
    """
    for number, before in _HANDLED.items():
        if signal.getsignal(number) == before:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    for handled in _HANDLED:
        if signal.getsignal(handled) is _stop:
            signal.signal(handled, signal.SIG_DFL)
    raise Stopped(number)
