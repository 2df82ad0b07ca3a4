"""The records that the library's calls return as models of pydantic, for the OpenAPI document.

The server passes their JSON on without validation, since a list may have 30,000 tensors. The models only describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields
from pydantic import BaseModel, ConfigDict, Field, create_model

from reshard import (
    CastStats,
    CheckpointInfo,
    ConversionPlan,
    ConversionReport,
    DeltaReport,
    DeltaTensor,
    FileVerdict,
    Fingerprint,
    Identification,
    IdentityReport,
    IdentityVerdict,
    Item,
    LayoutPreview,
    LeafDiff,
    MapSummary,
    MultiConversionPlan,
    PlannedRequests,
    ReceiptVerdict,
    RequestReport,
    Requests,
    TensorIdentity,
    TensorInfo,
    TensorPreview,
    TensorReport,
    TensorVerdict,
    Verification,
    VersionInfo,
)
from reshard.answers.record import json_of
from reshard.inspection.checkpoint_info import LeafInfo
from reshard.verification.verify_report import AppliedRules
from reshard_server.schemas.base import RootedPath, one

TITLES: dict[type, str] = {
    AppliedRules: "VerifiedRules",
    CastStats: "CastReport",
    CheckpointInfo: "Inspection",
    ConversionPlan: "PlanAnswer",
    ConversionReport: "TargetReport",
    FileVerdict: "VerifiedFile",
    Fingerprint: "FingerprintAnswer",
    Identification: "IdentityAnswer",
    IdentityReport: "IdentityOutcome",
    IdentityVerdict: "VerifiedIdentity",
    Item: "ItemReport",
    LayoutPreview: "LayoutAnswer",
    LeafDiff: "VerifiedLeaf",
    LeafInfo: "LeafReport",
    MapSummary: "MapAnswer",
    MultiConversionPlan: "MultiPlanAnswer",
    ReceiptVerdict: "VerifiedReceipt",
    RequestReport: "RequestComparison",
    Requests: "BucketRequests",
    TensorIdentity: "IdentifiedTensor",
    TensorInfo: "InspectedTensor",
    TensorPreview: "LaidOutTensor",
    TensorVerdict: "VerifiedTensor",
    Verification: "VerificationAnswer",
}
"""The names of records in the OpenAPI document where they are not those of the library."""

WIDER: dict[tuple[type, str], Any] = {
    (CastStats, "largest_relative_error"): float | Literal["inf", "nan"],  # JSON has no infinity
    (Item, "handler"): str | None,
}
"""The types of members in JSON where they are not those of the library."""


class Versions(Struct, frozen=True):
    """The versions of weights in a folder, by their numbers."""

    uri: str
    versions: tuple[VersionInfo, ...]


Part = Callable[[type[Struct]], Any]
"""What stands for a document within another one."""


class LibraryDocument(BaseModel):
    """A part of an answer; it may have further members."""

    model_config = ConfigDict(frozen=True, extra="allow")


class CommandAnswer(LibraryDocument):
    """The JSON object of a command (docs/reference/json-output.md); it may have further members."""

    warnings: list[str] = Field(default_factory=list)


@cache
def model_of(document: type[Struct]) -> type[BaseModel]:
    """The model of a document, with its name, text, members and those of its parts."""
    command = "convert" if document is ConversionReport else None
    more = {"tensors": _tensors_or_count()} if document is ConversionReport else None
    return _model(document, LibraryDocument, command, model_of, {}, more)


def _tensors_or_count() -> dict[str, Any]:
    """The tensors of a report, in whose place an event may have their number."""
    told = Field(description="Left out of events unless fields includes it; see result_url.")
    counted = Field(description="In place of tensors, if these are left out.")
    tensors: Any = _typed(tuple[TensorReport, ...], model_of)
    return {
        "tensors": (Annotated[tensors | None, told], None),
        "tensor_count": (Annotated[int | None, counted], None),
    }


def _marked(document: type[Struct]) -> Any:
    """The mark of a document's model, which is described beside the models that FastAPI finds."""
    model = MARKED[model_of(document).__name__] = model_of(document)
    return Annotated[dict[str, Any], one(model.__name__)]


def answer_of(document: type[Struct], command: str, **types: Any) -> type[BaseModel]:
    """The model of a command's object over HTTP.

    Args:
        types: of members that differ from the library's, such as paths below a root.
    """
    return _model(document, CommandAnswer, command, _marked, types)


def _model(
    document: type[Struct],
    base: type[BaseModel],
    command: str | None,
    part: Part,
    types: dict[str, Any],
    more: dict[str, dict[str, Any]] | None = None,
) -> type[BaseModel]:
    members: dict[str, Any] = {} if command is None else {"command": (Literal[command], ...)}
    for member in _members(document):
        if member.key in base.model_fields:
            continue
        # A member such as "copy" may not have the name of a method.
        name = f"{member.name}_" if hasattr(base, member.name) else member.name
        said = Field() if name == member.key else Field(alias=member.key)
        if more and member.name in more:
            members |= more[member.name]
        elif member.name in types:
            told = [_told(more) for more in get_args(member.kind) if isinstance(more, Meta)]
            default = ... if member.is_set_later else member.default
            members[name] = (Annotated[(types[member.name], *told, said)], default)
        else:
            members[name] = (Annotated[_typed(member.kind, part), said], member.default)
    title = TITLES.get(document, document.__name__.removesuffix("Document"))
    said, _, _ = (document.__doc__ or "").partition("\n\n")
    return create_model(title, __base__=base, __module__=__name__, __doc__=said, **members)


class _Member(NamedTuple):
    """A member of a record's JSON; ``is_set_later``: the command or the server sets it, and the call that returns the record does not."""

    name: str
    key: str
    kind: Any
    default: Any
    is_set_later: bool


def _members(document: type[Struct]) -> Iterator[_Member]:
    """The members of a record's JSON that answers by HTTP have."""
    form, known = json_of(document), {field.name: field for field in fields(document)}
    hints = get_type_hints(document, include_extras=True)
    for name in form.members or known:
        if name in form.only_commands:
            continue
        if name not in known:
            getter = getattr(document, name).fget
            yield _Member(
                name, name, get_type_hints(getter, include_extras=True)["return"], ..., False
            )
            continue
        field, kind = known[name], WIDER.get((document, name), hints[name])
        is_set_later = field.default is UNSET
        default: Any = None if is_set_later else _default(field) if name in form.later else ...
        if name in form.listed:
            kind = tuple.__class_getitem__((get_args(kind)[1], ...))
        if name in form.left_out:
            kind, default = _or_none(kind), None
        yield _Member(name, field.encode_name, kind, default, is_set_later)


def _or_none(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        inner, *told = get_args(kind)
        return Annotated[(inner | None, *told)]
    return kind | None


def _typed(kind: Any, part: Part) -> Any:
    """The type of a member with models in place of documents, and null where a member may be left out."""
    if kind is UnsetType:
        return None
    if isinstance(kind, type) and issubclass(kind, Struct):
        return part(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is None or origin is Literal:
        return kind
    if origin is Annotated:
        return Annotated[(_typed(inner[0], part), *map(_told, inner[1:]))]
    typed = tuple(_typed(each, part) for each in inner)
    return Union[typed] if origin in (Union, UnionType) else origin[typed]  # noqa: UP007  (made at run time)


def _told(meta: Meta) -> Any:
    return Field(description=meta.description)


def _default(field: FieldInfo) -> Any:
    """The value of a member that the answer of an older server lacks."""
    if field.default_factory is not NODEFAULT:
        return Field(default_factory=field.default_factory)
    return Field(default_factory=list) if field.default == () else field.default


MARKED = {
    "TargetReport": model_of(ConversionReport),
    "DeltaReport": _model(
        DeltaReport,
        LibraryDocument,
        "delta",
        model_of,
        {"tensors": list[model_of(DeltaTensor)]},  # type: ignore[misc]  # a model that is made at run time
    ),
}
"""The models that schemas name by ``MODEL_MARK``, by their names."""

INSPECTION = answer_of(CheckpointInfo, "inspect", uri=RootedPath)
VERIFICATION = answer_of(Verification, "verify", a=RootedPath, b=RootedPath | None)
FINGERPRINT = answer_of(Fingerprint, "fingerprint", uri=RootedPath)
IDENTITY = answer_of(Identification, "identify", uri=RootedPath)
LAYOUT = answer_of(LayoutPreview, "layout", file=str, source=RootedPath)
VERSIONS = answer_of(Versions, "inspect", uri=RootedPath)
_REQUESTS: Any = _typed(PlannedRequests | None, model_of)
PLAN = answer_of(ConversionPlan, "plan", source=RootedPath, target=RootedPath, requests=_REQUESTS)
MULTI_PLAN = answer_of(
    MultiConversionPlan,
    "plan",
    source=RootedPath,
    plans=list[PLAN],  # type: ignore[valid-type]  # a model that is made at run time
    requests=_REQUESTS,
)
