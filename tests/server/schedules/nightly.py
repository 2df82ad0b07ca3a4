"""A schedule that is due every night at three, and one of these nights."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NIGHT = at("2026-11-21T03:00:00")
NIGHTLY: dict[str, Any] = {
    "when": {"cron": "0 3 * * *", "source": "data/run"},
    "targets": [{"target": "data/out/{name}-{time}"}],
}
