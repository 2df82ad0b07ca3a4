"""Turns errors and signals into messages and exit codes; one place, so that all commands answer alike.

0 done; 1 refused or failed; 2 the command line makes no sense; 3 a difference was found;
130 and 143 stopped by a signal. Any other exception is a bug and keeps its traceback.

A signal makes a run end in order, keep what can be resumed, and say so. Only the command line handles signals; a program
that uses the library has its own handlers.
"""

from __future__ import annotations

import signal
from types import FrameType

import typer

from reshard.cli.console import print_json, say
from reshard.cli.options import as_options
from reshard.errors import ReshardError, VerificationError

FAILED, USAGE, DIFFERENT, INTERRUPTED = 1, 2, 3, 130

_NOTHING_KEPT = "no target was published, and running the same command again starts over"


def refused(error: ReshardError, as_json: bool) -> int:
    """Prints the error's message; returns the exit code."""
    message = as_options(str(error))
    document: dict[str, object] = {"error": {"type": type(error).__name__, "message": message}}
    _say(f"error: {message}", document, as_json)
    return DIFFERENT if isinstance(error, VerificationError) else FAILED


def misused(error: typer.TyperException, as_json: bool) -> int:
    """Prints the error of the command line, and the command for its help; returns the exit code."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "reshard"
    message = error.format_message().replace("Value error, ", "")
    hint = f"error: {message}\nsee: {path} --help"
    _say(hint, {"error": {"type": "UsageError", "message": message}}, as_json)
    return error.exit_code


def interrupted(error: KeyboardInterrupt, as_json: bool) -> int:
    """Prints the work that was kept, and the next step; returns the exit code."""
    _say_stopped("interrupted", error, "KeyboardInterrupt", as_json)
    return INTERRUPTED


def stopped(stop: Stopped, as_json: bool) -> int:
    """The same for a signal."""
    word = "interrupted" if stop.exit_code == INTERRUPTED else "terminated"
    kind = "KeyboardInterrupt" if stop.exit_code == INTERRUPTED else str(stop)
    _say_stopped(word, stop, kind, as_json)
    return stop.exit_code


def detached(left: Detached, as_json: bool) -> int:
    """Prints the server that continues the work; returns the exit code of the signal."""
    _say(str(left), {"error": {"type": "Detached", "message": str(left)}}, as_json)
    return left.exit_code


def _say_stopped(word: str, error: BaseException, kind: str, as_json: bool) -> None:
    kept = getattr(error, "__notes__", None)
    what = "; ".join(kept) if kept else _NOTHING_KEPT
    message = as_options(f"{word}; {what}")
    _say(message, {"error": {"type": kind, "message": message}}, as_json)


def _say(text: str, document: dict[str, object], as_json: bool) -> None:
    from reshard.cli.text import safe

    if as_json:
        print_json(document)
    else:
        say(safe(text, keep="\n"))


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

    A kill during the tidying leaves the files of any killed run. A second exception would be worse: threads that still
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
