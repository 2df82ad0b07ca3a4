"""Turns errors into messages and exit codes; one place, so that all commands answer alike.

0 done; 1 refused or failed; 2 the command line makes no sense; 3 a difference was found;
130 and 143 stopped by a signal. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import typer

from reshard.cli.console import say
from reshard.cli.json_output import print_json
from reshard.cli.option_names import as_options
from reshard.cli.signals import Detached, Stopped
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
    """Prints what is wrong with the command line, and where its help is; returns the exit code."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "reshard"
    message = error.format_message().replace("Value error, ", "")
    hint = f"error: {message}\nsee: {path} --help"
    _say(hint, {"error": {"type": "UsageError", "message": message}}, as_json)
    return error.exit_code


def interrupted(error: KeyboardInterrupt, as_json: bool) -> int:
    """Prints which work was kept, and what to do; returns the exit code."""
    _say_stopped("interrupted", error, "KeyboardInterrupt", as_json)
    return INTERRUPTED


def stopped(stop: Stopped, as_json: bool) -> int:
    """The same for a signal."""
    word = "interrupted" if stop.exit_code == INTERRUPTED else "terminated"
    kind = "KeyboardInterrupt" if stop.exit_code == INTERRUPTED else str(stop)
    _say_stopped(word, stop, kind, as_json)
    return stop.exit_code


def detached(left: Detached, as_json: bool) -> int:
    """Prints where the work continues; returns the exit code of the signal."""
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
