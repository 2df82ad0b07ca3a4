"""Every page."""

from __future__ import annotations

from reshard_server.pages import (
    api_docs,
    cancelling,
    checkpoint,
    checkpoints,
    conversion_plans,
    conversions,
    layouts,
    new_conversion,
    new_schedule,
    overview,
    schedules,
    signing_in,
    static_files,
)

ROUTERS = (
    overview.ROUTER,
    signing_in.ROUTER,
    cancelling.ROUTER,
    conversions.ROUTER,
    conversion_plans.ROUTER,
    new_conversion.ROUTER,
    schedules.ROUTER,
    new_schedule.ROUTER,
    checkpoints.ROUTER,
    checkpoint.ROUTER,
    layouts.ROUTER,
    api_docs.ROUTER,
    static_files.ROUTER,
)
