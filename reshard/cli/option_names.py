"""Messages of the library, which name its arguments, in the words of the command line.

The library says "start over (restart)" and "allow max_memory of 64MiB"; who typed a command looks for
``--restart`` and ``--max-memory``.
"""

from __future__ import annotations

import re

_ARGUMENTS = (
    "cast",
    "chunk_bytes",
    "compression",
    "drop",
    "layout",
    "max_memory",
    "mesh",
    "overwrite",
    "rename",
    "restart",
    "select",
    "workers",
)
_ONE = "|".join(_ARGUMENTS)
_LIST = re.compile(rf"\((?:{_ONE})(?:, (?:{_ONE}))*\)")
# Part of a path or of a tensor's name it is none: those have other characters beside it.
_WORD = re.compile(r"(?<![^\s(])(?:max_memory|chunk_bytes)(?![^\s),;:])")


def as_options(message: str) -> str:
    """The message with every argument that it names written as the option.

    >>> as_options("start over (restart), or allow max_memory of 64MiB")
    'start over (--restart), or allow --max-memory of 64MiB'
    """
    listed = _LIST.sub(lambda found: re.sub(_ONE, _option, found[0]), message)
    return _WORD.sub(_option, listed)


def _option(found: re.Match[str]) -> str:
    return "--" + found[0].replace("_", "-")
