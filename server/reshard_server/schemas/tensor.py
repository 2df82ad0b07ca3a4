"""The query of a request for bytes of tensors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reshard_server.schemas.base import (
    LARGEST_STEP,
    CheckpointChoice,
    RootedPath,
    UnlistedChoice,
)
from reshard_server.schemas.conversion import Pattern

Rule = Annotated[str, Field(max_length=1033, pattern=r"^.+=[a-z0-9_]{1,32}(:saturate)?$")]


class TensorQuery(CheckpointChoice, UnlistedChoice):
    """A slice of one tensor (``name``), or the slices of one device of a layout (``shard``)."""

    checkpoint: RootedPath
    step: Annotated[int, Field(ge=0, le=LARGEST_STEP)] | Literal["latest"] | None = Field(
        None,
        description="A step of the training run at this path.",
        examples=["latest"],
    )
    name: str | None = Field(
        None, max_length=4096, description="A tensor.", examples=["params/layers/0/kernel"]
    )
    slice: str | None = Field(
        None,
        max_length=1000,
        description="start:stop for each dimension; missing ones are whole. Only with name.",
        examples=["0:128,:"],
    )
    dtype: str | None = Field(
        None,
        max_length=32,
        description="The dtype of the bytes, by the rules of a conversion's cast. Only with name.",
        examples=["bfloat16"],
    )
    shard: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="A device of the layout, counted from 0 in the mesh's row-major order.",
        examples=[3],
    )
    layout: str | None = Field(
        None,
        max_length=65536,
        description="A stored layout (name or name@version), or the content of a layout file as JSON; the default is "
        "the checkpoint's own. Only with shard.",
        examples=["serving"],
    )
    mesh: str | None = Field(
        None,
        max_length=1000,
        description="As for a conversion. Only with shard.",
        examples=["model=8"],
    )
    select: list[Pattern] = Field(
        default=[], max_length=100, description="As for a conversion. Only with shard."
    )
    drop: list[Pattern] = Field(
        default=[], max_length=100, description="As for a conversion. Only with shard."
    )
    cast: list[Rule] = Field(
        default=[],
        max_length=100,
        description="PATTERN=DTYPE, or float=DTYPE for every float. Only with shard.",
        examples=[["float=bfloat16"]],
    )
