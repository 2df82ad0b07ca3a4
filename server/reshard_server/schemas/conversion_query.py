"""The query of a listing of conversions."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Field

from reshard_server.schemas.base import Page
from reshard_server.schemas.conversion import State

Label = Annotated[str, Field(max_length=321, pattern="^[^=]{1,64}=")]


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _with_zone(text: object) -> object:
    """Refuses numbers, and times without a zone."""
    if isinstance(text, str) and not _RFC_3339.fullmatch(text):
        raise ValueError("expected a time with its zone, such as 2026-11-21T03:00:00Z")
    return text


Moment = Annotated[AwareDatetime, BeforeValidator(_with_zone)]


class ConversionQuery(Page):
    """The filters of a listing of conversions."""

    state: list[State] = Field(default=[], max_length=6, description="Any of these states.")
    source: str | None = Field(None, max_length=4096, description="Prefix of the source.")
    schedule: str | None = Field(None, max_length=128, description="Made by this schedule.")
    label: list[Label] = Field(
        default=[],
        max_length=32,
        description="key=value; the conversion has all of these.",
        examples=[["run=7"]],
    )
    created_after: Moment | None = Field(None, description="At this time or later.")
    created_before: Moment | None = Field(None, description="Before this time.")
