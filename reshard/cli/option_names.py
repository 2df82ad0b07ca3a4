"""Rewrites the library's messages: names of arguments become options of the command line.

The library says "start over (restart)" and "allow max_memory of 64MiB"; on the command line they are ``--restart`` and
``--max-memory``.
"""

from __future__ import annotations

import re

from reshard import ConvertOptions
from reshard.conversion.options import LIBRARY_NAMES

_OPTION_NAMES = {argument: option for option, argument in LIBRARY_NAMES.items()}
_ARGUMENTS = (
    *ConvertOptions.__annotations__, "item", "max_memory", "step", "unlisted", "workers"
)  # fmt: skip
_ONE = "|".join(_ARGUMENTS)
_CHOSEN = re.compile(rf'(?<=\()({_ONE})="([a-z0-9]+)"(?=\))')
_LIST = re.compile(rf"\((?:{_ONE})(?:, (?:{_ONE}))*\)")
# Parts of paths and of tensors' names do not match: they have other characters beside them.
_CHOICE = re.compile(r"(?<![^\s(])(step|item)=('[^'\s]*'|[0-9]+|N)(?![^\s),;:])")
_WORD = re.compile(r"(?<![^\s(])(?:max_memory|chunk_bytes)(?![^\s),;:])")


_QUOTE = "'"


def as_options(message: str) -> str:
    """The message, in which every argument is written as its option.

    >>> as_options("start over (restart), or allow max_memory of 64MiB")
    'start over (--restart), or allow --max-memory of 64MiB'
    """
    message = _CHOSEN.sub(lambda found: f"{_name(found[1])} {found[2]}", message)
    listed = _LIST.sub(lambda found: re.sub(_ONE, _option, found[0]), message)
    chosen = _CHOICE.sub(lambda found: f"--{found[1]} {found[2].strip(_QUOTE)}", listed)
    return _WORD.sub(_option, chosen)


def _option(found: re.Match[str]) -> str:
    return _name(found[0])


def _name(argument: str) -> str:
    return "--" + _OPTION_NAMES.get(argument, argument).replace("_", "-")
