"""The audit log: each sign-in and each change, with its caller, address, objects and outcome.

One line for each, with the fields of every line of the log (``at``, ``request_id``, ``caller``, ``conversion``). They are
appended to a file of their own, or go into the log under the name ``reshard_server.audit``, at any log level. The file
is opened anew if it was moved away, so rotating it needs no signal to the server. A line that cannot be
written there goes into the log as an error; the request is carried out all the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from reshard.errors import ReshardError
from reshard_server.observability.logs import JsonLines

NAME = "reshard_server.audit"
"""The logger of the audit lines."""

LOG = logging.getLogger("reshard_server.audit_file")
"""Logs errors of the audit file; the audit logger would write to that file again."""

_AUDIT = logging.getLogger(NAME)

Event = Literal[
    "change", "sign-in", "sign-out", "refused", "tokens", "scheduled", "removed", "paused"
]
"""``refused``: a request with an unknown token. ``tokens``: the tokens file was read again. Schedules write the last three."""


def audit(
    event: Event, *, caller: str | None, targets: Sequence[str] = (), **fields: str | int | None
) -> None:
    """Writes one line.

    Args:
        caller: name of the token; None for an unknown one.
        targets: paths, as clients write them.
    """
    members = {"caller": caller, "targets": list(targets) or None, **fields}
    _AUDIT.info(event, extra={name: value for name, value in members.items() if value is not None})


def set_up_audit(file: Path | None) -> None:
    """Sends the lines to this file, or to the log if it is None. Raises ReshardError if it cannot be written."""
    for handler in list(_AUDIT.handlers):
        _AUDIT.removeHandler(handler)
        handler.close()
    _AUDIT.setLevel(logging.INFO)
    _AUDIT.propagate = file is None
    if file is not None:
        _AUDIT.addHandler(AppendedLines(file))


class AppendedLines(logging.Handler):
    """Appends each line to a file by one write; reopens the path if the file was moved away."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self._file = file
        self._open, self._is_cut = -1, False
        try:
            self._reopen()
        except OSError as error:
            raise ReshardError(
                f"the audit log {str(file)!r} cannot be written: {error.strerror}; make its folder, or correct the path"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line; called by one thread at a time."""
        line = self.format(record)
        try:
            if not self._is_in_place():
                self._reopen()
            self._append(line)
        except OSError as error:
            LOG.error(
                "the audit log cannot be written (%s), so this line is here: %s",
                error.strerror,
                line,
            )

    def _append(self, line: str) -> None:
        left = f"{line}\n".encode()
        if self._is_cut:
            left = b"\n" + left
        while left:
            written = os.write(self._open, left)
            left = left[written:]
            self._is_cut = bool(left)

    def close(self) -> None:
        """Closes the file."""
        super().close()
        if self._open >= 0:
            os.close(self._open)
            self._open = -1

    def _is_in_place(self) -> bool:
        try:
            return self._open >= 0 and os.path.samestat(os.fstat(self._open), self._file.stat())
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        before = self._open
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._open, self._is_cut = os.open(self._file, flags, 0o600), False
        if before >= 0:
            os.close(before)
