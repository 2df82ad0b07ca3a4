"""Examples of requests and answers in the API's description."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi.openapi.models import Example

ONE_TARGET: dict[str, Any] = {
    "source": "data/run7/1000",
    "target": "data/served/1000",
    "layout": {
        "mesh": {"axes": ["model"], "shape": [8]},
        "rules": [{"match": ".*/kernel", "axes": [None, "model"]}],
    },
    "select": ["^params/"],
    "cast": [["float", "bfloat16"]],
    "max_memory": "512MiB",
    "labels": {"run": "7"},
}

SEVERAL_TARGETS: dict[str, Any] = {
    "source": "data/run7/1000",
    "targets": [
        {"target": "data/served/1000", "layout": "serving"},
        {"target": "data/eval/1000", "layout": "evaluation@3", "cast": [[".", "float32"]]},
    ],
}

REQUESTS: dict[str, Example] = {
    "one_target": {"summary": "To one target", "value": ONE_TARGET},
    "several_targets": {
        "summary": "To several targets, by stored layouts; the source is read once",
        "value": SEVERAL_TARGETS,
    },
    "mapped": {
        "summary": "To Hugging Face shards, by a stored map",
        "value": {
            "source": "data/run7/1000",
            "target": "data/hf/1000",
            "to": "safetensors",
            "map": "to_hf",
        },
    },
    "in_parts": {
        "summary": "As parts on all hosts with a label",
        "value": {
            "source": "data/run7/1000",
            "target": "data/served/1000",
            "layout": "serving",
            "parts": 8,
            "host_labels": {"disk": "nvme"},
        },
    },
}

CONVERSION: dict[str, Any] = {
    "id": "019d7c3a5b1e9f2c6d8e4a7b0c31",
    "state": "running",
    "done": False,
    "request": ONE_TARGET,
    "progress": {
        "stage": "copying",
        "moved_bytes": 805306368,
        "total_bytes": 3221225472,
        "resumed_bytes": 0,
        "tasks_done": 12,
        "tasks": 48,
        "tensor": "params/layers/3/kernel",
        "bytes_per_second": 412000000.0,
        "seconds_left": 5.9,
    },
    "result": None,
    "read_bytes": None,
    "error": None,
    "attempts": 1,
    "part_counts": None,
    "parts": None,
    "waiting_for": None,
    "priority": 0,
    "schedule": None,
    "created_by": "training",
    "created_at": "2026-11-21T03:00:00Z",
    "started_at": "2026-11-21T03:00:01Z",
    "ended_at": None,
    "revision": 7,
}

LAYOUT: dict[str, Any] = {
    "mesh": {"axes": ["model"], "shape": [8]},
    "rules": [{"match": ".*/kernel", "axes": [None, "model"]}],
}

STORED: dict[str, Any] = {
    "name": "serving",
    "version": 3,
    "layout": LAYOUT,
    "created_at": "2026-11-21T03:00:00Z",
    "created_by": "training",
}

LAYOUTS: dict[str, Example] = {
    "eight_devices": {"summary": "Kernels over eight devices", "value": {"layout": LAYOUT}}
}

MAP_CONTENT: dict[str, Any] = {
    "map": [
        {"from": "params/layers/up/kernel", "to": "layers.{l}.up.weight", "shape": "e l f -> f e"}
    ],
    "drop": ["^opt_state/", "^step$"],
}

STORED_MAP: dict[str, Any] = {
    "name": "to_hf",
    "version": 3,
    "map": MAP_CONTENT,
    "created_at": "2026-11-21T03:00:00Z",
    "created_by": "training",
}

MAPS: dict[str, Example] = {
    "object": {"summary": "As an object", "value": {"map": MAP_CONTENT}},
    "text": {
        "summary": "As the text of a map file, whose lines errors name",
        "value": {"map": "map:\n- {from: params/kernel, to: weight, shape: i o -> o i}\n"},
    },
}

RULES: dict[str, Any] = {"source": "data/run7", "step": "latest", "map": "to_hf", "config": "data/llama"}  # fmt: skip
_NAMED = {name: value for name, value in STORED.items() if name != "layout"}
STORED_VIEW: dict[str, Any] = {**_NAMED, "view": {**RULES, "map": MAP_CONTENT}}
VIEWS: dict[str, Example] = {"latest": {"summary": "The newest step as a model of Hugging Face", "value": {"view": RULES}}}  # fmt: skip

_CHECKPOINT = {"checkpoint": "data/run7/1000"}

PREVIEWS: dict[str, Example] = {
    "stored": {"summary": "A stored layout", "value": {**_CHECKPOINT, "layout": "serving"}},
    "content": {
        "summary": "A layout's content, on another mesh",
        "value": {**_CHECKPOINT, "layout": LAYOUT, "mesh": "model=4"},
    },
}

INSPECTIONS: dict[str, Example] = {"one": {"summary": "A checkpoint", "value": _CHECKPOINT}}

_ROOT = "d0c8a21f4e0a6f6c2b7f1f8d5c9e3b7a6d4c2b1a0f9e8d7c6b5a493827160504"

_PUBLIC_KEY = (
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
    "-----END PUBLIC KEY-----\n"
)

VERIFICATIONS: dict[str, Example] = {
    "itself": {"summary": "With its own recorded digests", "value": _CHECKPOINT},
    "another": {
        "summary": "With another checkpoint",
        "value": {**_CHECKPOINT, "other": "data/served/1000", "max_memory": "256MiB"},
    },
    "rules": {
        "summary": "With a checkpoint that does not record its rules",
        "value": {
            **_CHECKPOINT,
            "other": "data/served/1000",
            "select": ["^params/"],
            "cast": [["kernel$", "bfloat16"]],
        },
    },
    "root": {
        "summary": "With a root that was published",
        "value": {**_CHECKPOINT, "identity": _ROOT},
    },
    "key": {
        "summary": "With the root that a key has signed",
        "value": {**_CHECKPOINT, "key": _PUBLIC_KEY},
    },
}

IDENTITIES: dict[str, Example] = {
    "one": {
        "summary": "The root of a checkpoint's weights",
        "value": {**_CHECKPOINT, "max_memory": "256MiB"},
    }
}

FINGERPRINTS: dict[str, Example] = {
    "first": {"summary": "A checkpoint without recorded digests", "value": _CHECKPOINT},
    "again": {"summary": "After an intended change", "value": {**_CHECKPOINT, "overwrite": True}},
}

PLANS: dict[str, Example] = {
    "content": {
        "summary": "With a layout's content",
        "value": {name: value for name, value in ONE_TARGET.items() if name != "labels"},
    },
    "stored": {
        "summary": "With a stored layout, and the source of each shard's bytes",
        "value": {
            "source": "data/run7/1000",
            "target": "data/served/1000",
            "layout": "serving@3",
            "shares": True,
        },
    },
    "several": {
        "summary": "Several targets; the source is read once",
        "value": {
            "source": "data/run7/1000",
            "targets": [
                {"target": "data/served/1000", "layout": "serving"},
                {"target": "data/evaluated/1000", "mesh": "model=2"},
            ],
        },
    },
}

_HEADERS = {
    "Location": "URL of the conversion.",
    "Retry-After": "Seconds to wait before the next request.",
    "ETag": "Identifies this state; for If-None-Match.",
}


_SCHEDULE_HEADERS = {
    "ETag": "Identifies this state of the schedule; for If-Match.",
    "Location": "Its URL.",
}


def header_descriptions(*names: str, texts: Mapping[str, str] = _HEADERS) -> dict[str, Any]:
    """The headers of a response."""
    return {
        "headers": {
            name: {"description": texts[name], "schema": {"type": "string"}} for name in names
        }
    }


def _response(
    example: dict[str, Any], description: str, *headers: str, texts: Mapping[str, str] = _HEADERS
) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"example": example}},
        **header_descriptions(*headers, texts=texts),
    }


conversion_response = partial(_response, CONVERSION)
"""A response with a conversion: its description, and the names of its headers."""

DELIVERY: dict[str, Any] = {
    "id": f"{CONVERSION['id']}-9-0",
    "event": f"{CONVERSION['id']}-9",
    "outcome": "succeeded",
    "url": "https://hooks.example/reshard",
    "state": "waiting",
    "tries": 2,
    "status": 503,
    "error": "the answer was 503; expected 2xx",
    "created_at": "2026-11-21T03:01:00Z",
    "next_at": "2026-11-21T03:01:31Z",
    "ended_at": None,
}

delivery_response = partial(_response, DELIVERY)
"""A response with a delivery."""

ONE_DELTA: dict[str, Any] = {
    "old": "data/published/weight_v000006",
    "new": "data/run7/2000",
    "target": "data/published/weight_v000007",
    "map": "to_hf",
}

DELTAS: dict[str, Example] = {
    "on_a_version": {"summary": "A step, on a full version of the weights", "value": ONE_DELTA},
    "two_steps": {
        "summary": "Two steps of a run, by the same map; a full version where no delta can be made",
        "value": {
            "old": "data/run7/2000",
            "new": "data/run7",
            "step": "latest",
            "target": "data/published/weight_v000008",
            "map": "to_hf",
            "checksum": "blake3",
            "or_full": True,
        },
    },
}


delta_response = partial(_response, {**CONVERSION, "request": ONE_DELTA})
"""A response with the conversion that makes a delta."""


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

schedule_response = partial(_response, SCHEDULE, texts=_SCHEDULE_HEADERS)
run_response = partial(_response, _LAST, texts=_SCHEDULE_HEADERS)
"""Responses with a schedule and with a run."""
