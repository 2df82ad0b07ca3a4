"""Examples of schedules in the API's description."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.models import Example

EACH_STEP: dict[str, Any] = {
    "when": {"directory": "data/run7/checkpoints", "every": 1000},
    "targets": [
        {
            "target": "data/served/{name}-{step}",
            "layout": "serving",
            "cast": [["float", "bfloat16"]],
        }
    ],
    "keep": 3,
}

NIGHTLY: dict[str, Any] = {
    "when": {
        "cron": "0 3 * * *",
        "source": "data/run7/checkpoints",
        "step": "latest",
        "catch_up": True,
    },
    "targets": [{"target": "data/nightly/{time}", "mesh": "data=4,model=2"}],
    "keep": 7,
}

VERSIONS: dict[str, Any] = {
    "when": {"directory": "data/run7/checkpoints"},
    "targets": [
        {"target": "data/published/weight_v{version}", "to": "safetensors", "map": "to_hf"}
    ],
    "delta": {"anchor_every": 20},
    "keep": 10,
}

BODIES: dict[str, Example] = {
    "each_step": {
        "summary": "Each step that is a multiple of 1000; keeps the last three outputs",
        "value": EACH_STEP,
    },
    "nightly": {"summary": "Every night at three, UTC", "value": NIGHTLY},
    "versions": {
        "summary": "Each new step as a delta on the version before, for serving",
        "value": VERSIONS,
    },
}

RUN_NOW: dict[str, Example] = {
    "newest": {"summary": "The newest step, or the source of a cron schedule", "value": {}},
    "step": {"summary": "A step that failed or was skipped", "value": {"step": 12000}},
}

_LAST: dict[str, Any] = {
    "key": "12000",
    "step": 12000,
    "at": "2026-11-21T03:00:00Z",
    "outcome": "started",
    "conversion": "019d7c3a5b1e9f2c6d8e4a7b0c31",
    "state": "succeeded",
    "detail": None,
}

SCHEDULE: dict[str, Any] = {
    "name": "serving",
    "schedule": EACH_STEP,
    "paused": False,
    "created_by": "training",
    "created_at": "2026-11-20T12:00:00Z",
    "updated_at": "2026-11-20T12:00:00Z",
    "next_at": None,
    "last": _LAST,
    "revision": 1,
}

_HEADERS = {
    "ETag": "Identifies this state of the schedule; for If-Match.",
    "Location": "Its URL.",
}


def schedule_response(description: str, *headers: str) -> dict[str, Any]:
    """A response with a schedule."""
    return _response(description, SCHEDULE, *headers)


def run_response(description: str, *headers: str) -> dict[str, Any]:
    """A response with a run."""
    return _response(description, _LAST, *headers)


def _response(description: str, example: dict[str, Any], *headers: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"example": example}},
        "headers": {
            name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in headers
        },
    }
