"""Requests about checkpoints, and their answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from reshard_server.schemas.base import (
    FIELDS_TEXT,
    LARGEST_STEP,
    LONGEST_FIELDS,
    Answer,
    CheckpointChoice,
    ComputedChoice,
    Flag,
    Page,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
    Whole,
)
from reshard_server.schemas.conversion import (
    Deltas,
    MapContent,
    Pairs,
    Pattern,
    Patterns,
    Sizes,
)
from reshard_server.schemas.job_options import Size


class CheckpointQuery(Page):
    """The root and the folder to list."""

    root: str = Field(max_length=128, description="Name of a storage root.", examples=["data"])
    prefix: str = Field(
        "",
        max_length=4096,
        description="A folder below the root; only checkpoints in it are listed.",
    )


class CheckpointRequest(CheckpointChoice, UnlistedChoice):
    """One checkpoint."""

    checkpoint: RootedPath


class InspectRequest(CheckpointRequest, ComputedChoice):
    """A checkpoint to describe."""


class FingerprintRequest(CheckpointChoice):
    """A checkpoint whose digests are recorded beside its metadata."""

    checkpoint: RootedPath
    overwrite: Flag = Field(False, description="Replace an existing record.")
    max_memory: Size | None = None


class IdentifyRequest(CheckpointRequest):
    """A checkpoint whose root is computed."""

    max_memory: Size | None = None


_PRIVATE = re.compile(r"PRIVATE KEY", re.IGNORECASE)


def _public(key: str) -> str:
    if _PRIVATE.search(key):
        raise ValueError(
            "a private key was sent, and nothing of it is kept; take it as known to others from now on, and send the public key "
            "(openssl pkey -in KEY -pubout)"
        )
    if not key.lstrip().startswith("-----BEGIN PUBLIC KEY-----"):
        raise ValueError(
            "expected a public key as the text of a PEM file, which begins with -----BEGIN PUBLIC KEY-----"
        )
    return key


PublicPem = Annotated[
    str,
    Field(
        max_length=4096,
        description="The public key that signed the checkpoint's root, as PEM; the root is computed anew.",
    ),
    AfterValidator(_public),
]


class VerifyRequest(CheckpointRequest, ComputedChoice):
    """A checkpoint to compare with ``other``, or with its own recorded digests.

    ``other`` records the rules by which it was made from ``checkpoint``; rules in the request replace all of them.
    """

    other: RootedPath | None = Field(None, description="Its own path; step and item do not apply.")
    deltas: Deltas
    select: Patterns | None = None
    drop: Patterns | None = None
    rename: Pairs | None = Field(None, description="[pattern, replacement] each.")
    cast: Pairs | None = Field(None, description="[pattern, dtype] each.")
    map: MapContent = Field(
        None, description="The map by which other was made: an object, or text of several lines."
    )
    sizes: Sizes | None = None
    reverse: Flag = False
    identity: str | None = Field(
        None,
        pattern=r"^[0-9a-fA-F]{64}$",
        description="The root that the weights must have, 64 hex digits; it is computed anew. Without other.",
    )
    key: PublicPem | None = None
    name: str | None = Field(
        None, max_length=200, description="Of the model, which the key must have signed. With key."
    )
    min_version: Whole | str | None = Field(
        None, description="The earliest version that the key may have signed. With key and name."
    )
    max_memory: Size | None = None

    @property
    def operands(self) -> Iterator[tuple[str, str]]:
        yield from ((f"/deltas/{number}", path) for number, path in enumerate(self.deltas))
        yield from super().operands


class FoundCheckpoint(Answer):
    """A checkpoint below a root, the folder of a training run's steps, or the folder of versions of weights.

    The path of a TensorFlow checkpoint is the prefix with which the names of its files begin.
    """

    path: RootedPath
    kind: str = Field(
        description="The checkpoint's format, such as orbax, safetensors, dcp, tensorflow or torch; or steps, for the directory of a "
        "training run; or versions, for a folder of versions of weights."
    )
    steps: list[int] | None = Field(default=None, description="Committed steps, ascending.")
    folders: list[str] | None = Field(
        default=None,
        description="The name of each step's folder, or the prefix of its files, below the path, in the same order.",
    )
    versions: list[str] | None = Field(
        default=None,
        description="The names of the versions of weights in the folder, such as weight_v000001; see :versions.",
    )
    modified_at: datetime | None = Field(
        description="Time of the last change of the folder, or of the files of a prefix; null in a bucket, whose folders have no time."
    )


class CheckpointPage(Answer):
    """Checkpoints by path; a page may be short or empty without being the last."""

    checkpoints: list[FoundCheckpoint]
    next_page_token: str | None = None


Rule = Annotated[str, Field(max_length=1033, pattern=r"^.+=[a-z0-9_]{1,32}(:saturate)?$")]


class StoredQuery(CheckpointChoice, UnlistedChoice):
    """A checkpoint, or a step of a training run, named in a query."""

    checkpoint: RootedPath
    step: Annotated[int, Field(ge=0, le=LARGEST_STEP)] | Literal["latest"] | None = Field(
        None, description="A step of the training run at this path.", examples=["latest"]
    )


class IdentityQuery(StoredQuery):
    """A checkpoint that records the identity of its weights."""

    fields: Annotated[str | None, Field(max_length=LONGEST_FIELDS, description=FIELDS_TEXT)] = None


class VersionsQuery(RequestDocument):
    """A folder of versions of weights, or the folder of one delta."""

    checkpoint: Annotated[
        RootedPath,
        Field(
            description="The folder of the versions, such as data/published, or of one delta in it.",
            examples=["data/published"],
        ),
    ]
    fields: Annotated[str | None, Field(max_length=LONGEST_FIELDS, description=FIELDS_TEXT)] = None


class ProofQuery(IdentityQuery):
    """A slice of one tensor, which cuts no tile of the identity."""

    name: str = Field(max_length=4096, description="A tensor.", examples=["params/layers/0/kernel"])
    slice: str | None = Field(
        None,
        max_length=1000,
        description="start:stop for each dimension; missing ones are whole.",
        examples=["0:128,:"],
    )


class TensorQuery(StoredQuery):
    """A slice of one tensor (``name``), or the slices of one device of a layout (``shard``)."""

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


class RecordedTensor(Answer):
    """A tensor of a recorded identity."""

    name: str
    dtype: str
    shape: list[int]
    top: str = Field(description="The hash of its tree, 64 hex digits.")
    crc64nvme: str = Field(description="CRC-64/NVME, 16 hex digits.")


class RecordedIdentity(Answer):
    """The content of identity.json. It is no evidence by itself: compare its root with one that you trust."""

    format: str
    version: int
    root: str = Field(description="64 hex digits.")
    contents: str = Field(description="The same without names.")
    rest: str = Field(description="Digest of the leaves that are no tensors.")
    tensors: list[RecordedTensor]


class SliceProofAnswer(Answer):
    """The proof that a slice is part of a tensor of the identity that a checkpoint records."""

    root: str = Field(description="Of the identity, 64 hex digits.")
    name: str
    dtype: str
    shape: list[int] = Field(description="Of the whole tensor.")
    top: str = Field(description="The hash of the tensor's tree, 64 hex digits.")
    slice: str = Field(description="The slice, with a start:stop for each dimension.")
    proof: str = Field(
        description="The hashes of the largest nodes of the tree outside of the slice, from the left, 32 bytes each; base64."
    )
