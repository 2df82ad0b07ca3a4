"""From an error to what is said and the exit code: one place, so that every command answers alike.

0 done; 1 refused or failed; 2 the command line makes no sense; 3 verification found a difference;
130 interrupted. An error that is not ours is a bug and keeps its traceback.
"""

from __future__ import annotations

import sys

import typer

from reshard.cli.json_output import failure, print_json
from reshard.errors import ReshardError, VerificationError

FAILED, USAGE, DIFFERENT, INTERRUPTED = 1, 2, 3, 130


def refused(error: ReshardError, as_json: bool) -> int:
    """Says what the error says; the exit code."""
    _say(f"error: {error}", failure(error), as_json)
    return DIFFERENT if isinstance(error, VerificationError) else FAILED


def misused(error: typer.TyperException, as_json: bool) -> int:
    """Says what is wrong with the command line, and where its help is; the exit code."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "reshard"
    message = error.format_message().replace("Value error, ", "")
    hint = f"error: {message}\nsee: {path} --help"
    _say(hint, {"error": {"type": "UsageError", "message": message}}, as_json)
    return error.exit_code


def interrupted(as_json: bool) -> int:
    """Says that nothing half-done was left, and what to do; the exit code."""
    message = "interrupted; no target was published, and running the same command again starts over"
    _say(message, {"error": {"type": "KeyboardInterrupt", "message": message}}, as_json)
    return INTERRUPTED


def _say(text: str, document: dict[str, object], as_json: bool) -> None:
    from reshard.cli.text import safe

    if as_json:
        print_json(document)
    else:
        sys.stderr.write(safe(text, keep="\n") + "\n")
