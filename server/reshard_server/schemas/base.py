"""What every document of the API shares."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

import reshard
from reshard_server.schemas.bounds import check_members

LARGEST_STEP = 2**63 - 1

Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""In bodies: neither ``"1"`` nor ``true`` is taken for a number, nor ``0`` for false."""

StepNumber = Annotated[Whole, Field(ge=0, le=LARGEST_STEP)]


MissingAxes = Annotated[
    reshard.MissingAxes,
    Field(
        description="Axes of the source or of the layout that the mesh lacks: refused, or left out, so that what they "
        "split is replicated."
    ),
]


class Document(BaseModel):
    """Members that are not known are refused, so that a slip is no silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_members(cls, value: Any) -> Any:
        return check_members(value)


def _is_none(value: object) -> bool:
    return value is None


class OfRun(Document):
    """A request about a checkpoint, which may be a step of a training run, or one item of it.

    Records and answers name the checkpoint's own path, and leave step and item out.

    Attributes:
        checkpoint_member: which member names the checkpoint or the run's folder.
    """

    checkpoint_member: ClassVar[str] = "checkpoint"

    step: StepNumber | Literal["latest"] | None = Field(
        None,
        exclude_if=_is_none,
        description="The path is a training run's folder, and this step of it is meant; latest is the last one "
        "committed when the request comes in.",
        examples=["latest"],
    )
    item: str | None = Field(
        None,
        exclude_if=_is_none,
        max_length=255,
        description="One item of a checkpoint that has several; names then begin below it.",
        examples=["model"],
    )


class Answer(BaseModel):
    """What the server says; clients must accept members that they do not know."""

    model_config = ConfigDict(frozen=True)


DEFAULT_PAGE = 50
LARGEST_PAGE = 200

PageSize = Annotated[
    int,
    Field(
        ge=0,
        description=f"How many at most: {DEFAULT_PAGE} by default and for 0; more than {LARGEST_PAGE} counts as "
        f"{LARGEST_PAGE} (AIP-158).",
    ),
    AfterValidator(lambda size: min(size, LARGEST_PAGE) or DEFAULT_PAGE),
]


LONGEST_FIELDS = 4096
FIELDS_TEXT = "Members that the answer is to have, with commas between them, those of members as member.member; * is all (AIP-157)."


class Page(Document):
    """How much of a listing is asked for."""

    fields: Annotated[str | None, Field(max_length=LONGEST_FIELDS, description=FIELDS_TEXT)] = None
    page_size: PageSize = DEFAULT_PAGE
    page_token: str | None = Field(
        None, max_length=1024, description="next_page_token of the page before."
    )


RootedPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="ROOT/path: a storage root of the server, and a path below it.",
        examples=["data/run7/checkpoints/1000"],
    ),
]
"""Only its form is checked here; what it may name is decided in ``auth.paths``."""

Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$",
        examples=["serving"],
    ),
]
