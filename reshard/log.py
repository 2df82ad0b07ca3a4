"""The library's messages to a program beside its results: a log, and warnings.

The log has one line for each operation that begins or ends, in the logger ``reshard``. Nothing is printed until the program sets
logging up. A warning of a report is a record of the level WARNING; calls that return no report warn as Python does.
"""

from __future__ import annotations

import sys
import warnings as python_warnings
from collections.abc import Iterable

_BETWEEN = ("reshard.", "contextlib", "keras.")
"""Modules that may call this package for the user: ``with`` leaves a scope, a Keras model builds itself."""


def log(message: str, *values: object, warnings: Iterable[str] = ()) -> None:
    """Logs a message at the level INFO, with its values as ``logging`` formats them, and then the warnings."""
    logging = sys.modules.get("logging")
    if logging is None:
        return  # the program has no logging, and loading it takes 5 ms
    logger = logging.getLogger("reshard")
    if not logger.hasHandlers():
        return  # Python would print the warnings, which the report has
    logger.info(message, *values)
    for sentence in warnings:
        logger.warning("%s", sentence)


def warn_caller(sentences: Iterable[str], kind: type[Warning]) -> None:
    """Gives one warning for each sentence, at the line of the program that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals["__name__"]).startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    for sentence in sentences:
        python_warnings.warn(sentence, kind, stacklevel=level)
