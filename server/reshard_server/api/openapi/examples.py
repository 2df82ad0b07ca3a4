"""Examples in the API's description."""

from __future__ import annotations

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
    },
}

FINGERPRINTS: dict[str, Example] = {
    "first": {"summary": "A checkpoint without recorded digests", "value": _CHECKPOINT},
    "again": {
        "summary": "After an intended change",
        "value": {**_CHECKPOINT, "overwrite": True},
    },
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


def conversion_response(description: str, *headers: str) -> dict[str, Any]:
    """A response with a conversion."""
    return {
        "description": description,
        "content": {"application/json": {"example": CONVERSION}},
        **header_descriptions(*headers),
    }


def header_descriptions(*names: str) -> dict[str, Any]:
    """The headers of a response."""
    return {
        "headers": {
            name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in names
        }
    }
