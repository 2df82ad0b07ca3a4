"""The routers of all pages."""

from __future__ import annotations

from reshard_server.pages import api_docs, overview, sign_in, static_files
from reshard_server.pages.checkpoints import checkpoint_list, checkpoint_page
from reshard_server.pages.conversions import (
    cancel_page,
    conversion_pages,
    new_conversion,
    plan_page,
)
from reshard_server.pages.layouts import layout_pages
from reshard_server.pages.schedules import new_schedule, schedule_pages

ROUTERS = (
    overview.ROUTER,
    sign_in.ROUTER,
    cancel_page.ROUTER,
    conversion_pages.ROUTER,
    plan_page.ROUTER,
    new_conversion.ROUTER,
    schedule_pages.ROUTER,
    new_schedule.ROUTER,
    checkpoint_list.ROUTER,
    checkpoint_page.ROUTER,
    layout_pages.ROUTER,
    api_docs.ROUTER,
    static_files.ROUTER,
)
