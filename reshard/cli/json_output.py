"""``--json``: one object on one line of stdout for each command, with stable keys."""

from __future__ import annotations

import json
import sys
from typing import Any

from reshard.record import plain


def print_json(document: dict[str, Any]) -> None:
    """Writes one line to stdout; only ASCII, so that no name can steer a terminal."""
    sys.stdout.write(json.dumps(plain(document), allow_nan=False) + "\n")
