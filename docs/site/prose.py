"""Plain text of help and of the OpenAPI document as Markdown."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|])")
_CODE = re.compile(r"(`+[^`]+`+)")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*[a-z])")


def escaped(text: str) -> str:
    """Text in which nothing means anything to Markdown."""
    return _SPECIAL.sub(r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def prose(text: str) -> str:
    """Text in which code stands between backticks."""
    return "".join(
        f"`{part.strip('`')}`" if i % 2 else escaped(part)
        for i, part in enumerate(_CODE.split(text))
    )


def help_prose(text: str) -> str:
    """A help text, rich markup undone; names of options become code."""
    plain = text.replace("\\[", "[")
    return "".join(
        f"`{part}`" if i % 2 else escaped(part) for i, part in enumerate(_OPTION.split(plain))
    )
