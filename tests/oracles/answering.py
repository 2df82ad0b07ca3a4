"""The loop of a process that is asked: one JSON request a line in, one JSON answer a line out.

Import it before whatever prints: standard output is kept for answers alone, and what libraries print goes to standard error.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer_all(*functions: Callable[..., Any]) -> None:
    """Calls the function that each request names, until standard input ends."""
    by_name = {function.__name__: function for function in functions}
    for line in sys.stdin:
        print(
            json.dumps(_answer(by_name, json.loads(line)), default=_bytes), file=ANSWERS, flush=True
        )


def _answer(functions: dict[str, Callable[..., Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": functions[request["function"]](**request["arguments"])}
    except Exception as error:  # noqa: BLE001  what a client raises is an answer too
        return {"error": type(error).__name__, "text": str(error)}


def _bytes(value: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(value).decode()}
