"""Examples of deltas in the API's description."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.models import Example

from reshard_server.api.openapi.examples import CONVERSION, header_descriptions

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


def delta_response(description: str, *headers: str) -> dict[str, Any]:
    """A response with the conversion that makes a delta."""
    example = {**CONVERSION, "request": ONE_DELTA}
    return {
        "description": description,
        "content": {"application/json": {"example": example}},
        **header_descriptions(*headers),
    }
