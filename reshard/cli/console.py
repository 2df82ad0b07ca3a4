"""Writes text: answers to stdout, progress and errors to stderr.

Standard output and error: closed at the start, closed by a reader, or on a full disk.

A reader that has seen enough (``reshard inspect ckpt | head -1``) closes the pipe. The work continues and ends with its
own exit code: output without a reader is not a failure.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reshard.answers.record import answer_of, plain
from reshard.errors import StorageError
from reshard.storage.local.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from _typeshed import ReadableBuffer
    from msgspec import Struct
    from rich.console import Console, RenderableType
    from rich.text import Text


_STDOUT, _STDERR = 1, 2


class Descriptor(io.RawIOBase):
    """A descriptor for output, which drops everything after a failed write.

    Attributes:
        failure: the error of the failed write; None also if the reader closed the pipe.
    """

    failure: StorageError | None = None

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: ReadableBuffer, /) -> int | None:
        try:
            return os.write(self._number, data)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            if error.errno != errno.EPIPE:
                self.failure = storage_error("write to", self._name, error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._number)
            os.close(nowhere)
            return memoryview(data).nbytes


def open_streams() -> Descriptor:
    """Puts text streams over such descriptors into ``sys``; returns the descriptor of stdout.

    A character that a stream cannot encode is written as its escape.
    """
    _open_closed()
    out = Descriptor(_STDOUT, "stdout")
    sys.stdout = _text(out, sys.stdout, is_line_buffered=out.isatty())
    sys.stderr = _text(Descriptor(_STDERR, "stderr"), sys.stderr, is_line_buffered=True)
    return out


def _text(raw: Descriptor, before: TextIO, *, is_line_buffered: bool) -> TextIO:
    before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors="backslashreplace",
        line_buffering=is_line_buffered,
    )


def _open_closed() -> None:
    """Opens /dev/null for streams that were closed at the start, so that no file of a run gets their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


_WORD = re.compile(r"\S+")

UNLIMITED = 1 << 20
"""Width of output that is not on a screen, such as a pipe."""

MOST_ROWS = 40
"""Most rows of a table on a screen; ``--all`` and a pipe show the rest."""


def stdout_console() -> Console:
    """The console for answers; as wide as the terminal, or as ``COLUMNS`` says, else without a limit."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """The console for progress and warnings; a separate stream, so that answers can be piped."""
    return _console(stderr=True)


def say(text: str) -> None:
    """Prints plain text on stderr, on a terminal broken between words; without ``rich``, which takes a while to load."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or UNLIMITED
    except (OSError, ValueError):  # not a terminal, or no file at all
        columns = UNLIMITED
    print(between_words(text, columns), file=sys.stderr, flush=True)


def warn(texts: Iterable[str]) -> None:
    """Prints each warning once on stderr, for a command that prints no report."""
    from reshard.cli.text import safe

    for text in dict.fromkeys(texts):
        say(safe(f"warning: {text}"))


def between_words(text: str, columns: int) -> str:
    r"""The text in lines of at most ``columns``, broken at spaces only: a longer word stays whole.

    >>> between_words("cannot write to /a/long/path", 12)
    'cannot write\nto\n/a/long/path'
    """
    return "\n".join("\n".join(_parts(line, columns)) for line in text.split("\n"))


def _parts(line: str, columns: int) -> Iterator[str]:
    places = [0, *line_starts(line, columns), len(line)]
    yield from (line[start:end].rstrip() for start, end in pairwise(places))


def line_starts(line: str, columns: int) -> list[int]:
    """The starts of the second and further lines if a line is broken between words."""
    starts = [0]
    if _cells(line) > columns:
        for word in _WORD.finditer(line):
            is_first = not line[starts[-1] : word.start()].strip()
            if not is_first and _cells(line[starts[-1] : word.end()]) > columns:
                starts.append(word.start())
    return starts[1:]


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def print_all(views: Iterable[RenderableType]) -> None:
    """Prints an answer, part by part."""
    console = stdout_console()
    for view in views:
        show(console, view)


def show_view(name: str, *shown: Any) -> None:
    """Prints an answer by a function of ``reshard.cli.views``, named by its module and itself, which is loaded only now."""
    module, function = name.split(".")
    print_all(getattr(import_module(f"reshard.cli.views.{module}"), function)(*shown))


def most_rows() -> int:
    """Most rows of a table on stdout: a pipe gets all of them, so that ``inspect | grep NAME`` finds every tensor."""
    return MOST_ROWS if _is_sized(sys.stdout) else sys.maxsize


def _is_sized(stream: TextIO) -> bool:
    """True for a stream with a width: a terminal's, or that in ``COLUMNS``."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) < UNLIMITED if columns.isdigit() else stream.isatty()


def show(console: Console, view: RenderableType) -> None:
    """Prints one part. Text is broken between words only, so that names and paths stay whole."""
    from rich.text import Text

    lines = _lines(view, console.width) if isinstance(view, Text) else [view]
    for line in lines:
        console.print(line, crop=False, overflow="ignore")


def _lines(text: Text, columns: int) -> Iterator[Text]:
    for line in text.split("\n", allow_blank=True):
        for part in line.divide(line_starts(line.plain, columns)):
            part.rstrip()
            yield part


def _console(stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        width=None if _is_sized(stream) else UNLIMITED,
        markup=False,
        emoji=False,
        highlight=False,
    )


def print_answer(command: str, record: Struct | None = None, **more: Any) -> None:
    """Prints the JSON object of a command, made of ``more`` and of the record that a call returned."""
    print_json(answer_of(command, record, **more))


def print_json(document: dict[str, Any]) -> None:
    """Writes one line to stdout; only ASCII, so that no name can steer a terminal."""
    sys.stdout.write(json.dumps(plain(document), allow_nan=False) + "\n")
