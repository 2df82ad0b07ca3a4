"""Deliveries: the end of a conversion, told to each URL of its ``notify``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from reshard_server.schemas.base import Answer

DeliveryState = Literal["waiting", "delivered", "gone", "failed"]


class Delivery(Answer):
    """One event for one URL.

    ``state`` is ``waiting`` (for its first or next try), ``delivered`` (the answer was 2xx), ``gone`` (the answer was 410) or ``failed``
    (no try succeeded for a day).
    """

    id: str
    event: str = Field(
        description="Id of the event, in webhook-id and in the body; equal for all URLs, and when it is sent again."
    )
    outcome: Literal["succeeded", "failed", "cancelled"] = Field(
        description="The state in which the conversion ended."
    )
    url: str
    state: DeliveryState
    tries: int
    status: int | None = Field(None, description="Of the last answer.")
    error: str | None = Field(None, description="Why the last try was no success.")
    created_at: datetime
    next_at: datetime | None = Field(
        None, description="The time of the next try; null if there is none."
    )
    ended_at: datetime | None = None


class DeliveryList(Answer):
    """The deliveries of a conversion, newest first."""

    deliveries: list[Delivery]
