"""The version of this package, as a constant, since looking it up takes 20 ms; and the remedy for a missing package."""

from __future__ import annotations

__version__ = "0.1.0"

SOURCE = "."
"""The argument of pip: a checkout of this project, which is not published. Every message takes it from here."""


def how_to_install(extra: str) -> str:
    """The remedy for a missing optional package, at the end of a message.

    >>> how_to_install("cloud")
    "run pip install '.[cloud]' in a checkout of reshard"
    """
    return f"run pip install '{SOURCE}[{extra}]' in a checkout of reshard"
