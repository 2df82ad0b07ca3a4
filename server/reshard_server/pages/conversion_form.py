"""The form of a new conversion: from its fields to a request, and from a problem to its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from reshard.api import check_arguments
from reshard.errors import ReshardError
from reshard.layout.layout_text import parse_json, parse_yaml
from reshard_server.models.conversion import OneTarget, PlanRequest
from reshard_server.pages.visiting import Fields, number_of
from reshard_server.problems import INVALID, ProblemError, problem_of
from reshard_server.refusals import invalid
from reshard_server.serving.limits import check_texts

TEXTS = ("source", "target", "layout", "layout_text", "mesh", "select", "drop", "rename", "cast", "compression", "chunk_bytes", "max_memory", "priority")  # fmt: skip
FLAGS = ("overwrite", "restart", "ocdbt")
COMPRESSIONS = ("none", "zstd:3", "zstd:9", "gzip:6", "blosc", "keep")

_ONE_BY_ONE: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("select", lambda m: {"select": m["select"]}),
    ("drop", lambda m: {"drop": m["drop"]}),
    ("rename", lambda m: {"rename": m["rename"]}),
    ("cast", lambda m: {"cast": m["cast"]}),
    ("compression", lambda m: {"compression": m["compression"]}),
    ("chunk_bytes", lambda m: {"chunk_bytes": m["chunk_bytes"]}),
    ("mesh", lambda m: {"mesh": m["mesh"]}),
    ("max_memory", lambda m: {"max_memory": m["max_memory"]}),
)
"""What the library can be asked of alone, to learn which field it refuses."""


@dataclass(frozen=True)
class ConversionForm:
    """What is in the fields.

    Attributes:
        errors: by the name of a field; "" is the whole form.
        key: the same however often the form is sent, so that it starts one conversion.
    """

    values: Mapping[str, str]
    flags: frozenset[str] = frozenset()
    key: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)

    def with_problem(self, problem: ProblemError) -> ConversionForm:
        """The same with the problem beside its field."""
        return ConversionForm(self.values, self.flags, self.key, errors_of(self, problem))


def sent_form(fields: Fields) -> ConversionForm:
    """What a browser sent."""
    return ConversionForm(
        {name: fields.text(name) for name in TEXTS},
        frozenset(name for name in FLAGS if fields.has(name)),
        fields.text("key"),
    )


def empty_form(key: str, **values: str) -> ConversionForm:
    """Nothing but what is given, and the defaults."""
    return ConversionForm({**dict.fromkeys(TEXTS, ""), "compression": "none", **values}, key=key)


def request_of(fields: Fields) -> OneTarget:
    """The request that a form stands for. Raises ProblemError where it stands for none."""
    form = sent_form(fields)
    return _validated(_members(form, fields))


def plan_request_of(request: OneTarget) -> PlanRequest:
    """The same conversion, to be planned."""
    kept = set(PlanRequest.model_fields) & set(OneTarget.model_fields)
    return PlanRequest.model_validate(request.model_dump(include=kept))


def _validated(members: dict[str, Any]) -> OneTarget:
    try:
        return OneTarget.model_validate(members)
    except ValidationError as error:
        raise invalid([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from None


def _members(form: ConversionForm, fields: Fields) -> dict[str, Any]:
    values = form.values
    members: dict[str, Any] = {
        "source": values["source"],
        "target": values["target"],
        "layout": _layout(values),
        "mesh": values["mesh"] or None,
        "select": fields.lines("select"),
        "drop": fields.lines("drop"),
        "rename": pairs_of(fields, "rename", "NEW"),
        "cast": pairs_of(fields, "cast", "DTYPE"),
        "compression": values["compression"] or "none",
        "chunk_bytes": values["chunk_bytes"] or None,
        "max_memory": values["max_memory"] or None,
        "priority": number_of(fields, "priority") or 0,
        **dict.fromkeys(form.flags, True),
    }
    check_texts(members)
    return members


def _layout(values: Mapping[str, str]) -> str | dict[str, Any] | None:
    name, text = values["layout"], values["layout_text"]
    if name and text:
        raise ProblemError(
            INVALID,
            "a stored layout is chosen and a layout's text is given; keep one of them",
            "/layout_text",
            "keep one of them",
        )
    return layout_of(text) if text else name or None


def layout_of(text: str) -> dict[str, Any]:
    """The content of a layout as YAML or JSON. ProblemError where it is neither, or no object."""
    parse = parse_json if text.startswith("{") else parse_yaml
    try:
        found = parse(text, "the layout").data
    except ReshardError as error:
        if parse is parse_yaml:
            raise problem_of(error, "/layout_text") from error
        found = _flow(text)
    if not isinstance(found, dict):
        raise ProblemError(
            INVALID,
            "the layout's text is no layout file: expected mesh, rules and so on at its top; see docs/layout-files.md",
            "/layout_text",
        )
    return found


def _flow(text: str) -> Any:
    """YAML may begin with a brace too, without being JSON."""
    try:
        return parse_yaml(text, "the layout").data
    except ReshardError as error:
        raise problem_of(error, "/layout_text") from error


def pairs_of(fields: Fields, name: str, what: str) -> list[tuple[str, str]]:
    """The rules of a field, one a line. ProblemError where a line is none."""
    found = []
    for line in fields.lines(name):
        pattern, equals, to = line.rpartition("=")
        if not equals:
            raise ProblemError(
                INVALID, f"{line[:100]!r} has no '='; write PATTERN={what}, one a line", f"/{name}"
            )
        found.append((pattern, to))
    return found


def errors_of(form: ConversionForm, problem: ProblemError) -> dict[str, str]:
    """What is said beside each field; "" for what is about none of them."""
    several = problem.extra.get("errors") or ()
    found = {_name(form, e["field"]): e["detail"] for e in several}
    if not found:
        name = _name(form, problem.field) or blamed(form)
        found = {name: problem.detail}
    return found


def _name(form: ConversionForm, pointer: str | None) -> str:
    name = (pointer or "").lstrip("/").split("/")[0]
    if name == "layout" and form.values["layout_text"]:
        return "layout_text"
    return name if name in TEXTS or name in FLAGS else ""


def blamed(form: ConversionForm) -> str:
    """The first field that the library refuses by itself; "" where it is none alone."""
    try:
        members = request_members(form)
    except ProblemError:
        return ""
    for name, arguments in _ONE_BY_ONE:
        try:
            check_arguments(**arguments(members))
        except ReshardError:
            return name
    return ""


def request_members(form: ConversionForm) -> Mapping[str, Any]:
    """The fields as the library takes them."""
    from starlette.datastructures import FormData

    return _members(form, Fields(FormData(dict(form.values))))
