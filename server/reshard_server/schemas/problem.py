"""Problem documents (RFC 9457)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Wrong(BaseModel):
    """One invalid field."""

    field: str
    detail: str


class Problem(BaseModel):
    """What was refused, why, and what to do (RFC 9457); it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(description="A URN that names the kind of problem.")
    title: str
    status: int
    detail: str = Field(description="What was expected, what was found, and what to do.")
    field: str | None = Field(
        None, description="The invalid member, as a JSON pointer, or parameter."
    )
    remedy: str | None = None
    instance: str | None = None
    errors: list[Wrong] | None = None
    error: str | None = Field(None, description="Class of the library's error.")
    smallest_bytes: int | None = Field(None, description="The smallest max_memory that works.")
