"""The log of the library: one line for what begins and for what has ended, to the logger ``reshard``.

Nothing is printed until the program sets logging up. A warning of a report is a record of the level WARNING.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


def log(message: str, *values: object, warnings: Iterable[str] = ()) -> None:
    """Logs a message at the level INFO, with its values as ``logging`` formats them, and then the warnings."""
    logging = sys.modules.get("logging")
    if logging is None:
        return  # nobody listens, and to load it takes 5 ms
    logger = logging.getLogger("reshard")
    if not logger.hasHandlers():
        return  # Python would print the warnings, which the report has
    logger.info(message, *values)
    for sentence in warnings:
        logger.warning("%s", sentence)
