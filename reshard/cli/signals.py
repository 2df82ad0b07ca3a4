"""Signals that ask a run to stop: it ends in order, keeps what can be resumed, and says so.

Only the command line listens to them; a program that uses the library has its own handlers.
"""

from __future__ import annotations

import signal
from types import FrameType

_HANDLED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Each with what Python begins with: a signal that was ignored (``nohup``) stays so."""


class Stopped(BaseException):
    """A signal asked to stop; no Exception, so that nothing takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As shells give it: 128 and the signal's number."""
        return 128 + self.number


class Detached(BaseException):
    """A signal ended the watching of what goes on elsewhere; no Exception, as Stopped."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def stop_on_signals() -> None:
    """From now on the first SIGINT or SIGTERM raises Stopped in the main thread; a second one kills.

    What is half tidied up then is what any killed run leaves. An exception in its midst would be
    worse: threads that still write would outlive the lock on what they write to.
    """
    for number, before in _HANDLED.items():
        if signal.getsignal(number) == before:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    for handled in _HANDLED:
        if signal.getsignal(handled) is _stop:
            signal.signal(handled, signal.SIG_DFL)
    raise Stopped(number)
