"""``--ray`` may stand without a value, which the command line's library does not know."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ADDRESS = re.compile(r"auto|[^/:\s]+:[0-9]+|\[[0-9a-fA-F:]+\]:[0-9]+", re.ASCII)

DEFAULTS = {"--ray": "auto"}
"""Options that may stand without a value, and the value that they have then."""


def completed(args: Sequence[str]) -> list[str]:
    """The words of a command line, with the value of each option that stands without one.

    A word after ``--ray`` is its value only if it is an address.

    >>> completed(["convert", "--ray", "src", "dst"])
    ['convert', '--ray', 'auto', 'src', 'dst']
    >>> completed(["convert", "src", "dst", "--ray", "10.0.0.1:6379"])
    ['convert', 'src', 'dst', '--ray', '10.0.0.1:6379']
    """
    found: list[str] = []
    for word, after in zip(args, (*args, "")[1:], strict=True):
        found.append(word)
        if word in DEFAULTS and not _ADDRESS.fullmatch(after):
            found.append(DEFAULTS[word])
    return found
