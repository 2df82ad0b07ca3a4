"""The route that Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from reshard_server.api.caller import Serving, read_metrics

ROUTER = APIRouter(tags=["operation"])


class MetricsText(Response):
    """The text format of Prometheus."""

    media_type = "text/plain"


@ROUTER.get("/metrics", response_class=MetricsText, dependencies=[Depends(read_metrics)])
def get_metrics(serving: Serving) -> Response:
    """Returns queue depth, conversions by state, bytes, durations, memory and latency.

    Needs a token with the scope read, unless the setting ``metrics_open`` is on.
    """
    text = generate_latest(serving.metrics.registry)
    return MetricsText(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
