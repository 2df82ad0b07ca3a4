"""Warnings of calls that return no report."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from reshard.errors import LayoutWarning

_BETWEEN = ("reshard.", "contextlib", "keras.")
"""Modules that may call this package for the user: ``with`` leaves a scope, a Keras model builds itself."""


def warn_caller(sentences: Iterable[str], kind: type[Warning] = LayoutWarning) -> None:
    """Gives one warning for each sentence, at the line of the program that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals["__name__"]).startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    for sentence in sentences:
        warnings.warn(sentence, kind, stacklevel=level)
