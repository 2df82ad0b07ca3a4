"""Types and base classes of the API's documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

import reshard
from reshard.arguments import adapter_of
from reshard.conversion.declared_options import OPTIONS

MOST_MEMBERS = 100
"""Limit for an object with named members; no valid request has as many."""


def at_most(number: int) -> BeforeValidator:
    """For a list or an object with free names: refuses more members than this before validating them."""

    def check(value: Any) -> Any:
        if isinstance(value, list | tuple | dict) and len(value) > number:
            raise PydanticKnownError(
                "too_long",
                {"field_type": "List", "max_length": number, "actual_length": len(value)},
            )
        return value

    return BeforeValidator(check)


def check_members(value: Any) -> Any:
    """Refuses an object with too many members, each of which would otherwise be reported as unknown."""
    if isinstance(value, dict) and len(value) > MOST_MEMBERS:
        raise PydanticCustomError(
            "too_many_members",
            "expected at most {most} members, found {found}",
            {"most": MOST_MEMBERS, "found": len(value)},
        )
    return value


LARGEST_STEP = 2**63 - 1

Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""Strict types for bodies: neither ``"1"`` nor ``true`` is a number, and ``0`` is not false."""

LEFT_OUT: Any = Field(default=None, exclude_if=lambda value: value is None)
"""The default of a member that is left out of records and answers where it is None."""

StepNumber = Annotated[Whole, Field(ge=0, le=LARGEST_STEP)]


MissingAxes = Annotated[reshard.MissingAxes, Field(description=OPTIONS["missing_axes"].description)]


Adapter = Annotated[str, Field(min_length=1, max_length=4200)]


class RequestDocument(BaseModel):
    """A document of a request: unknown members are refused, so that a typo is not ignored. The text below a member describes it to clients."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _check_members(cls, value: Any) -> Any:
        return check_members(value)


class CheckpointChoice(RequestDocument):
    """A request about a checkpoint, which may be a step of a training run, or one item of it.

    Records and answers have the path of the step or item itself, without ``step`` and ``item``.

    Attributes:
        checkpoint_member: name of the member with the path of the checkpoint or the training run.
    """

    checkpoint_member: ClassVar[str] = "checkpoint"

    step: Annotated[StepNumber | Literal["latest"] | None, Field(examples=["latest"])] = LEFT_OUT
    """A step of the training run at this path; latest is the last committed step when the request arrives."""

    item: Annotated[str | None, Field(max_length=255, examples=["model"])] = LEFT_OUT
    """One item of a checkpoint with several; names of tensors are then relative to it."""


class UnlistedChoice(RequestDocument):
    """A request that reads a checkpoint, which may have files that its index does not list."""

    unlisted: reshard.Unlisted = Field("leave", exclude_if=lambda value: value == "leave")
    """Tensors and files of a safetensors folder that its index does not list: leave them out with a warning, or include them. With include, files
    of which it is not clear that they are one model are taken as one, and one file of several by itself."""


class ComputedChoice(UnlistedChoice):
    """A request that reads a checkpoint, whose weights may be computed of what is stored."""

    dequantize: reshard.Dequantized | None = LEFT_OUT
    """Read quantised weights as the weights that they stand for, of this dtype; scales go. Without it codes and scales are copied as they are."""

    lora: Annotated[tuple[Adapter, ...], at_most(100)] = Field(
        (),
        max_length=100,
        exclude_if=lambda value: value == (),
        examples=[["data/adapter=0.5"]],
    )
    """LoRA adapters that are merged into the weights, ROOT/path or ROOT/path=SCALE each."""

    @property
    def operands(self) -> Iterator[tuple[str, str]]:
        """The paths that are read besides, each with its place in the request."""
        for number, text in enumerate(self.lora):
            yield f"/lora/{number}", adapter_of(text)[0]

    def computed(self, real: Callable[[str], object]) -> dict[str, Any]:
        """The options as the library takes them, with the real places of paths; those that ask for nothing are left out."""
        pairs = map(adapter_of, self.lora)
        lora = [str(real(p)) + ("" if s is None else f"={s!r}") for p, s in pairs]
        options = {"dequantize": self.dequantize, "lora": lora}
        return {name: value for name, value in options.items() if value}


MEANT = "x-schema"
"""In a schema that says less, so that generators of clients understand it: the exact schema, by which ``fields`` is checked."""


def shown_request(*names: str) -> WithJsonSchema:
    """The schema of an answer's member that has a request as it was accepted.

    It names no members: code that openapi-python-client generates cannot read a document with a member ``cast``, which hides the function
    of that name.
    """
    exact: dict[str, Any] = {"anyOf": [{MODEL_MARK: name} for name in names]}
    schema = {"type": "object", "additionalProperties": True, MEANT: exact}
    return WithJsonSchema(schema, mode="serialization")


MODEL_MARK = "x-model"
"""In a schema: the name of a model whose schema takes the mark's place in the OpenAPI document."""


def one(model: str) -> WithJsonSchema:
    """The schema of one object of a model."""
    return WithJsonSchema({MODEL_MARK: model})


def many(*models: str) -> WithJsonSchema:
    """The schema of a list of such objects, each of one of the models."""
    marks = [{MODEL_MARK: model} for model in models]
    return WithJsonSchema({"type": "array", "items": {"anyOf": marks}})


class Answer(BaseModel):
    """A document of an answer; clients must accept members that they do not know."""

    model_config = ConfigDict(frozen=True)


DEFAULT_PAGE = 50
LARGEST_PAGE = 200

PageSize = Annotated[
    int,
    Field(
        ge=0,
        description=f"The most items of a page: {DEFAULT_PAGE} by default and for 0; more than {LARGEST_PAGE} counts as "
        f"{LARGEST_PAGE} (AIP-158).",
    ),
    AfterValidator(lambda size: min(size, LARGEST_PAGE) or DEFAULT_PAGE),
]


LONGEST_FIELDS = 4096
FIELDS_TEXT = "The members to return, separated by commas; nested members as member.member; * for all (AIP-157)."


class Page(RequestDocument):
    """The query of a listing: page size and page token."""

    fields: Annotated[str | None, Field(max_length=LONGEST_FIELDS, description=FIELDS_TEXT)] = None
    page_size: PageSize = DEFAULT_PAGE
    page_token: str | None = Field(
        None, max_length=1024, description="next_page_token of the previous page."
    )


class PrefixQuery(Page):
    """The query of a listing by name."""

    prefix: str | None = Field(None, max_length=128, description="Beginning of the name.")


RootedPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="ROOT/path: a storage root of the server, and a path below it.",
        examples=["data/run7/checkpoints/1000"],
    ),
]
"""Only its length is checked here; ``auth.root_paths`` checks everything else."""

Name = Annotated[
    str,
    Field(
        min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$", examples=["serving"]
    ),
]


class Wrong(BaseModel):
    """One invalid field."""

    field: str
    detail: str


class Problem(BaseModel):
    """The refusal, its reason and the remedy (RFC 9457); it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(description="A URN that names the kind of problem.")
    title: str
    status: int
    detail: str = Field(description="The expected and the found value, and the remedy.")
    field: str | None = Field(
        None, description="The invalid member, as a JSON pointer, or parameter."
    )
    remedy: str | None = None
    instance: str | None = None
    errors: list[Wrong] | None = None
    error: str | None = Field(None, description="Class of the library's error.")
    smallest_bytes: int | None = Field(None, description="The smallest max_memory that works.")
