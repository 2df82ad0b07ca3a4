"""Every page."""

from __future__ import annotations

from reshard_server.pages import (
    checkpoints,
    conversion_plans,
    conversions,
    new_conversion,
    new_schedule,
    overview,
    schedules,
    signing_in,
    statics,
)

ROUTERS = (
    overview.ROUTER,
    signing_in.ROUTER,
    conversions.ROUTER,
    conversion_plans.ROUTER,
    new_conversion.ROUTER,
    schedules.ROUTER,
    new_schedule.ROUTER,
    checkpoints.ROUTER,
    statics.ROUTER,
)
