"""Requests of deltas: what differs between two versions of weights, published for serving."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from reshard import DeltaChecksum, DeltaEncoding, DeltaReceiver
from reshard.deltas.declared_options import OPTIONS as OF_DELTAS
from reshard_server.schemas.base import (
    CheckpointChoice,
    Flag,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
    Whole,
    at_most,
)
from reshard_server.schemas.job import JobOptions, MapContent, Pairs, Patterns, Size, Sizes


def _is_empty(value: object) -> bool:
    return value == ()


Deltas = Annotated[
    tuple[RootedPath, ...],
    Field(
        default=(),
        max_length=1000,
        exclude_if=_is_empty,
        description="Deltas over the source, in any order: the version that they make of it is read. The source is a full version then, "
        "safetensors with whole tensors.",
    ),
    at_most(1000),
]


class DeltaForm(RequestDocument):
    """How the payloads of a delta are written."""

    encoding: DeltaEncoding = Field("xor", description=OF_DELTAS["encoding"].description)
    checksum: DeltaChecksum = Field("xxh3-128", description=OF_DELTAS["checksum"].description)
    file_bytes: Size | None = Field(None, description=OF_DELTAS["file_bytes"].description)


class OneDelta(CheckpointChoice, UnlistedChoice, DeltaForm, JobOptions):
    """A delta: what turns ``old`` into what a conversion of ``new`` to safetensors by the same map and rules would give."""

    checkpoint_member: ClassVar[str] = "new"

    old: Annotated[
        RootedPath,
        Field(
            description="The version before: already converted, or an earlier step, to which the same map and rules are applied."
        ),
    ]
    new: Annotated[
        RootedPath, Field(description="The step to publish; step and item choose it below this.")
    ]
    target: Annotated[
        RootedPath,
        Field(
            description="The folder of the new version; its name says which, such as data/published/weight_v000007."
        ),
    ]
    layout: str | dict[str, Any] | None = Field(
        None,
        description="A stored layout, or a layout file's content, of which the rules and the map count; its axes split nothing.",
    )
    select: Patterns = ()
    drop: Patterns = ()
    rename: Pairs = ()
    cast: Pairs = ()
    map: MapContent = Field(
        None, description="A stored map, a recipe, or a map's content: an object, or text."
    )
    sizes: Sizes | None = None
    reverse: Flag = False
    receiver: DeltaReceiver = Field("pull_weights", description=OF_DELTAS["receiver"].description)
    base_version: str | Whole | None = Field(
        None,
        description="Of old. By default what its index or its folder's name says, else the number before that of target.",
    )
    or_full: Flag = Field(
        False,
        description="Where no delta can be made, since tensors were added, removed or reshaped, or old cannot be read: publish a full version, "
        "and say why among its warnings.",
    )

    @property
    def source(self) -> str:
        """The step that is published, by which listings find the job."""
        return self.new
