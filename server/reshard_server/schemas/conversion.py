"""Conversions and deltas: requests, and the documents of their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    Discriminator,
    Field,
    Strict,
    Tag,
    WithJsonSchema,
    create_model,
)

from reshard import DeltaChecksum, DeltaEncoding, DeltaReceiver, Stage, Target
from reshard.conversion.declared_options import OPTIONS
from reshard.conversion.options import LIBRARY_NAMES
from reshard.deltas.declared_options import OPTIONS as OF_DELTAS
from reshard.deltas.declared_options import default_checksum
from reshard.options import Option
from reshard_server.schemas.base import (
    LEFT_OUT,
    Answer,
    CheckpointChoice,
    ComputedChoice,
    Flag,
    Number,
    RequestDocument,
    RootedPath,
    UnlistedChoice,
    Whole,
    at_most,
    many,
    one,
    shown_request,
)
from reshard_server.schemas.job_options import JobOptions, RunLimits, Size

State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]

Pattern = Annotated[str, Field(min_length=1, max_length=1000)]
Pair = tuple[Pattern, Annotated[str, Field(max_length=1000)]]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=1000, fail_fast=True), at_most(1000)]
Pairs = Annotated[tuple[Pair, ...], Field(max_length=1000, fail_fast=True), at_most(1000)]
Sizes = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[int, Strict(), Field(ge=1, le=1 << 40)]],
    Field(max_length=1000),
    at_most(1000),
]
Weights = Annotated[tuple[Number, ...], Field(max_length=1001), at_most(1001)]
MapContent = str | dict[str, Any] | None
Deltas = Annotated[
    tuple[RootedPath, ...],
    Field(
        default=(),
        max_length=1000,
        exclude_if=lambda value: value == (),
        description="Deltas over the source, in any order: the version that they make of it is read. The source is a full version then, "
        "safetensors with whole tensors.",
    ),
    at_most(1000),
]


class MergeForm(RequestDocument):
    """Several checkpoints of which one is made: the source, which is the first of them, and others."""

    others: Annotated[tuple[RootedPath, ...], Field(max_length=1000), at_most(1000)]
    """The other checkpoints, the oldest first."""

    weights: Literal["linear", "minus-sqrt"] | Weights | None = None
    """A weight for each, the source first, which are divided by their sum; or the weights of an average that stands for a decay of the learning
    rate. Equal by default."""

    ema: Number | None = None
    """The decay of a moving average, between 0 and 1."""

    base: RootedPath | None = None
    """For task arithmetic, the checkpoint to which the changes of the others are added, each times its weight, which is 1 by default."""

    scale: Number | None = None
    """Of the changes, in task arithmetic."""

    from_checkpoint: Whole | None = None
    """The number, from 1 for the source, of the checkpoint from which everything is taken that is no float; by default it must be equal in all."""

    dtype: Annotated[str, Field(max_length=40)] | None = None
    """Of averages; by default that of the source."""

    @property
    def operands(self) -> Iterator[tuple[str, str]]:
        """The checkpoints besides the source, each with its place in the request."""
        yield from ((f"/merge/others/{number}", path) for number, path in enumerate(self.others))
        if self.base is not None:
            yield "/merge/base", self.base


class DeltaForm(RequestDocument):
    """The form of the payloads of a delta."""

    encoding: DeltaEncoding = Field("xor", description=OF_DELTAS["encoding"].description)
    checksum: DeltaChecksum | None = Field(None, description=OF_DELTAS["checksum"].description)
    file_bytes: Size | None = Field(None, description=OF_DELTAS["file_bytes"].description)


_NAMES = {argument: name for name, argument in LIBRARY_NAMES.items()}

DECLARED: Mapping[str, Option] = {
    _NAMES.get(argument, argument): option
    for argument, option in OPTIONS.items()
    if option.is_for_clients
}
"""The options of a target that clients may give, by the name of their member."""

_DEFAULTS = Target("")
_TYPES: Mapping[str, Any] = {
    "flag": Flag,
    "size": Size | None,
    "text": str | None,
    "patterns": Patterns,
    "pairs": Pairs,
    "sizes": Sizes | None,
    "layout": str | dict[str, Any] | None,
    "map": MapContent,
    "place": RootedPath | None,
}


def _type_of(option: Option, default: Any) -> Any:
    """The type of an option in a request."""
    if option.kind == "choice":
        return option.words
    return str if isinstance(default, str) else _TYPES[option.kind]


def option_members(names: Iterable[str]) -> dict[str, Any]:
    """The members of a model, one for each of these options."""
    found = {}
    for name in names:
        option = DECLARED[name]
        default = getattr(_DEFAULTS, LIBRARY_NAMES.get(name, name))
        field: Any = Field(
            default,
            description=option.description,
            examples=list(option.examples) if option.examples else None,
            max_length=option.max_length,
        )
        found[name] = (_type_of(option, default), field)
    return found


_RULES = ("select", "drop", "rename", "cast", "map", "sizes", "reverse")

if TYPE_CHECKING:

    class TensorRules(RequestDocument):
        """The members that the server looks into."""

        map: MapContent = None

    class TargetRequest(RequestDocument):
        """The members that the server looks into."""

        target: RootedPath
        layout: str | dict[str, Any] | None = None
        map: MapContent = None
        mesh: str | None = None
        config: RootedPath | None = None
        overwrite: bool = False
        restart: bool = False

else:
    TensorRules = create_model(
        "TensorRules", __base__=RequestDocument, __module__=__name__, **option_members(_RULES)
    )
    TargetRequest = create_model(
        "TargetRequest",
        __base__=RequestDocument,
        __doc__="One target and its options, named as on the command line.",
        __module__=__name__,
        target=RootedPath,
        **option_members(DECLARED),
    )


class OneDelta(CheckpointChoice, UnlistedChoice, DeltaForm, JobOptions, TensorRules):
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
    layout: str | dict[str, Any] | None = None
    """A stored layout, or a layout file's content, of which the rules and the map count; its axes split nothing."""

    receiver: DeltaReceiver = Field("pull_weights", description=OF_DELTAS["receiver"].description)
    base_version: str | Whole | None = None
    """Of old. By default what its index or its folder's name says, else the number before that of target."""

    or_full: Flag = False
    """If no delta can be made, since tensors were added, removed or reshaped, or old cannot be read: publish a full version, and say why among
    its warnings."""

    @property
    def source(self) -> str:
        """The step that is published, by which listings find the job."""
        return self.new

    @property
    def made_checksum(self) -> DeltaChecksum:
        """The checksum that was chosen, else the receiver's."""
        return self.checksum or default_checksum(self.receiver)


def library_options(members: Mapping[str, Any]) -> dict[str, Any]:
    """Members of a target under the names of ``reshard.ConvertOptions``."""
    return {LIBRARY_NAMES.get(name, name): value for name, value in members.items()}


class ConvertedChoice(ComputedChoice):
    """A source that is converted, whose weights may be computed."""

    source: RootedPath
    quantize_like: RootedPath | None = LEFT_OUT
    """A quantised checkpoint, whose scales the weights get, and codes that go with them; a weight that is too large for its scale is an error."""

    @property
    def operands(self) -> Iterator[tuple[str, str]]:
        yield from super().operands
        if self.quantize_like is not None:
            yield "/quantize_like", self.quantize_like

    def computed(self, real: Callable[[str], object]) -> dict[str, Any]:
        like = self.quantize_like
        more = {} if like is None else {"quantize_like": str(real(like))}
        return {**super().computed(real), **more}


class SourceOptions(CheckpointChoice, ConvertedChoice, RunLimits):
    """The source, and the limits of the run."""

    checkpoint_member: ClassVar[str] = "source"

    @property
    def operands(self) -> Iterator[tuple[str, str]]:
        deltas = getattr(self, "deltas", ())
        yield from ((f"/deltas/{number}", path) for number, path in enumerate(deltas))
        merge = getattr(self, "merge", None)
        yield from () if merge is None else merge.operands
        yield from super().operands


TargetRequests = Annotated[
    tuple[TargetRequest, ...], Field(min_length=1, max_length=16), at_most(16)
]
Shares = Annotated[
    Flag,
    Field(description="Tell which share of each target shard's bytes was in which source shard."),
]


Latency = Annotated[
    float,
    Strict(),
    Field(gt=0, le=3600, description="Seconds that a request to a bucket takes; without it 0.03."),
]
BytesPerSecond = Annotated[
    float,
    Strict(),
    Field(
        ge=1,
        le=1e15,
        description="Bandwidth from and to buckets, for the time; without it 150 MB/s.",
    ),
]


class PlanRequest(SourceOptions, TargetRequest):
    """A conversion that is only planned."""

    shares: Shares = False
    latency_s: Latency | None = None
    bytes_per_s: BytesPerSecond | None = None


class MultiPlanRequest(SourceOptions):
    """A conversion to several targets that is only planned."""

    targets: TargetRequests
    shares: Shares = False
    latency_s: Latency | None = None
    bytes_per_s: BytesPerSecond | None = None


class OneTarget(SourceOptions, JobOptions, TargetRequest):
    """A conversion to one target."""

    deltas: Deltas
    merge: MergeForm | None = LEFT_OUT
    """Other checkpoints, with which the source is averaged."""


class SeveralTargets(SourceOptions, JobOptions):
    """A conversion to several targets; the source is read once."""

    targets: TargetRequests


def _form(request: object) -> str:
    """The form of a request, so that only the errors of that form are reported."""
    has = "targets" in request if isinstance(request, dict) else hasattr(request, "targets")
    return "SeveralTargets" if has else "OneTarget"


ConversionRequest = Annotated[
    Annotated[OneTarget, Tag("OneTarget")] | Annotated[SeveralTargets, Tag("SeveralTargets")],
    Discriminator(_form),
]


def _kind(request: object) -> str:
    """As ``_form``, of what is recorded."""
    has = "old" in request if isinstance(request, dict) else hasattr(request, "old")
    return "OneDelta" if has else _form(request)


JobRequest = Annotated[
    Annotated[OneTarget, Tag("OneTarget")]
    | Annotated[SeveralTargets, Tag("SeveralTargets")]
    | Annotated[OneDelta, Tag("OneDelta")],
    Discriminator(_kind),
]
"""A request as it is recorded: a delta is a conversion of a form of its own, in the same queue."""

AnyPlanRequest = Annotated[
    Annotated[PlanRequest, Tag("OneTarget")] | Annotated[MultiPlanRequest, Tag("SeveralTargets")],
    Discriminator(_form),
]


def targets_of(request: JobRequest | AnyPlanRequest) -> tuple[TargetRequest, ...]:
    """The targets of any form; of a delta what it has in common with a conversion."""
    if isinstance(request, SeveralTargets | MultiPlanRequest):
        return request.targets
    names = TargetRequest.model_fields.keys() & type(request).model_fields.keys()
    return (TargetRequest(**{name: getattr(request, name) for name in names}),)


def paths_of(request: JobRequest | AnyPlanRequest) -> tuple[str, ...]:
    """Every path that a request names: what is read, and each target with what it reads besides."""
    named = [(each.target, each.config) for each in targets_of(request)]
    more = [request.old] if isinstance(request, OneDelta) else [p for _, p in request.operands]
    return (request.source, *more, *(path for pair in named for path in pair if path is not None))


class OverTime(Answer):
    """The bytes that an attempt moved in each of at most 60 intervals of equal length since its start."""

    began_at: datetime
    seconds: float = Field(
        description="The time that the intervals cover; the last one is not over."
    )
    interval_seconds: float
    moved_bytes: list[int]


class ProgressState(Answer):
    """The progress of a run; bytes are decoded bytes of the source."""

    stage: Annotated[str, WithJsonSchema({"type": "string", "enum": list(get_args(Stage))})]
    moved_bytes: int
    total_bytes: int
    resumed_bytes: int = 0
    tasks_done: int
    tasks: int
    tensor: str
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    over_time: Annotated[
        OverTime | None,
        Field(
            exclude_if=lambda value: value is None,
            description="Of the last attempt; absent in listings, and for one of more than 64 parts.",
        ),
    ] = None


class PartState(Answer):
    """A part of a conversion and its state."""

    number: int = Field(description="From 1.")
    state: State
    host: str | None = Field(None, description="The host that runs it, or ran it last.")
    attempts: int = 0
    progress: ProgressState | None = None
    error: Annotated[dict[str, Any], one("Problem")] | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class Conversion(Answer):
    """A conversion and its state."""

    id: str
    state: State
    done: bool
    request: Annotated[JobRequest, shown_request("OneTarget", "SeveralTargets", "OneDelta")]
    progress: ProgressState | None = None
    result: Annotated[list[dict[str, Any]], many("TargetReport", "DeltaReport")] | None = Field(
        None,
        description="The report of each target, with digests (docs/reference/json-output.md, convert), or that of the delta (delta); null in "
        "listings.",
    )
    result_url: str | None = Field(
        None,
        description="URL of the whole result; in listings and events, which have none or a summary.",
        examples=["/v1/conversions/019d7c3a5b1e9f2c6d8e4a7b0c31"],
    )
    read_bytes: int | None = Field(
        None,
        description="Encoded bytes of the source that the successful attempt read, for all targets; null for a delta.",
    )
    error: Annotated[dict[str, Any], one("Problem")] | None = Field(
        None, description="Why it failed."
    )
    attempts: int = Field(
        0, description="Of one in parts: those of the split, later those of the commit."
    )
    part_counts: dict[State, int] | None = Field(
        None, description="The number of its parts in each state; null for one without parts."
    )
    parts: list[PartState] | None = Field(
        None, description="Each part; null in listings, in events and for one without parts."
    )
    waiting_for: str | None = Field(
        None, description="The host that it asks for, if no live one is so; null in listings."
    )
    priority: int = 0
    schedule: str | None = None
    created_by: str
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    revision: int = Field(description="Grows with every change; ids of events are revisions.")


def short_reports(result: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Reports with the number of their tensors in place of ``tensors``."""
    if result is None:
        return None
    return [
        {
            **{k: v for k, v in report.items() if k != "tensors"},
            "tensor_count": len(report.get("tensors", ())),
        }
        for report in result
    ]


def result_url(conversion: str) -> str:
    """The URL of a conversion's whole result."""
    return f"/v1/conversions/{conversion}"


class ConversionPage(Answer):
    """Conversions, newest first."""

    conversions: list[Conversion]
    next_page_token: str | None = None
