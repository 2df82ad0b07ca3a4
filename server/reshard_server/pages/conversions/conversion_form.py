"""The form of a new conversion: from its fields to a request and back, and from a problem to its field."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from reshard import check_arguments
from reshard.errors import ReshardError
from reshard.layout.layout_text import parse_json, parse_yaml
from reshard_server.db.stored.kinds import KINDS, MAP
from reshard_server.errors.error_handlers import invalid
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.jobs.check_request import CHECKED, OF_A_MAP
from reshard_server.middleware.body_limits import check_texts
from reshard_server.pages.conversions.form_fields import (
    DEFAULTS,
    FLAGS,
    MEMBER_TEXTS,
    MEMBERS,
    members_of,
    text_of,
)
from reshard_server.pages.visitor import Fields
from reshard_server.pages.wording import layout_text
from reshard_server.schemas.conversion import (
    Conversion,
    OneTarget,
    PlanRequest,
    TargetRequest,
    library_options,
)

TEXTS = (*MEMBER_TEXTS, "layout_text", "map_text")

ALWAYS_SHOWN = ("source", "target", "layout", "mesh", "missing_axes", "layout_text", "map")
"""The other fields are folded until one of them has a value or an error."""

_ONE_BY_ONE = (*(name for name in CHECKED if name != "map"), "mesh", "max_memory")
"""The fields that the library can check one by one, to find the invalid one."""

_LINE = re.compile(r"\bmap:([0-9]{1,6})\b")
"""The text by which errors name a line of a map."""


@dataclass(frozen=True)
class ConversionForm:
    """The contents of the form.

    Attributes:
        errors: by the name of a field; "" for the whole form.
        key: the same each time the form is sent, so that it starts only one conversion.
        starter: the layout's text as the page filled it in, from the source; "" if it did not.
    """

    values: Mapping[str, str]
    flags: frozenset[str] = frozenset()
    key: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    starter: str = ""

    @property
    def is_advanced(self) -> bool:
        """True if a folded field has a value or an error."""
        folded = [name for name in TEXTS if name not in ALWAYS_SHOWN]
        changed = any(self.values[name] not in ("", DEFAULTS.get(name)) for name in folded)
        return changed or bool(self.flags) or any(n and n not in ALWAYS_SHOWN for n in self.errors)

    def with_problem(self, problem: ProblemError) -> ConversionForm:
        """The form with the problem beside its field."""
        return replace(self, errors=errors_of(self, problem))


def sent_form(fields: Fields) -> ConversionForm:
    """The form that a browser sent.

    A stored layout or a map drops the layout's text that the page filled in, which is for the source's tensors.
    """
    values = {name: fields.text(name) for name in TEXTS}
    starter = _same_lines(fields.text("starter"))
    others = any(values[name] for name in ("layout", "map", "map_text"))
    if others and _same_lines(values["layout_text"]) == starter:
        values["layout_text"] = ""
    flags = frozenset(name for name in FLAGS if fields.has(name))
    return ConversionForm(values, flags, fields.text("key"), starter=starter)


def _same_lines(text: str) -> str:
    """The text with the line ends of this server; browsers send others."""
    return "\n".join(text.splitlines())


def empty_form(key: str, **values: str) -> ConversionForm:
    """A form with the given values and the defaults."""
    return ConversionForm({**dict.fromkeys(TEXTS, ""), **DEFAULTS, **values}, key=key)


def form_of(key: str, conversion: Conversion, requested: TargetRequest) -> ConversionForm:
    """The form that requests one target of a conversion again."""
    request = conversion.request
    members = {
        # A request to several targets has no deltas.
        name: getattr(
            requested if name in TargetRequest.model_fields else request, name, member.get_default()
        )
        for name, member in MEMBERS.items()
    }
    values = {name: text_of(name, members[name]) for name in MEMBER_TEXTS}
    for kind in KINDS:
        content, name = members[kind.noun], kind.name_in(members[kind.noun])
        text = layout_text(content) if isinstance(content, dict) else content or ""
        values |= {kind.noun: name or "", f"{kind.noun}_text": "" if name else text}
    return ConversionForm(values, frozenset(name for name in FLAGS if members[name]), key)


def request_of(form: ConversionForm) -> OneTarget:
    """The request of a form. Raises ProblemError for an invalid form."""
    try:
        return OneTarget.model_validate(_members(form))
    except ValidationError as error:
        raise invalid([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from None


def key_of(form: ConversionForm, request: OneTarget) -> str | None:
    """The idempotency key: equal only if the same form is sent again with the same request."""
    if not form.key:
        return None
    return hashlib.sha256(f"{form.key} {request.model_dump_json()}".encode()).hexdigest()


def plan_request_of(request: OneTarget) -> PlanRequest:
    """The plan request of the same conversion."""
    kept = set(PlanRequest.model_fields) & set(OneTarget.model_fields)
    return PlanRequest.model_validate(request.model_dump(include=kept))


def _members(form: ConversionForm) -> dict[str, Any]:
    members = {
        **members_of(MEMBER_TEXTS, form.values),
        "layout": layout_in(form.values),
        "map": map_in(form.values),
        **dict.fromkeys(form.flags, True),
    }
    check_texts(members)
    return members


def layout_in(values: Mapping[str, str]) -> str | dict[str, Any] | None:
    """The stored layout or the layout text of a form; ProblemError if it has both."""
    text = _only_text("layout", values)
    return layout_of(text) if text else values["layout"] or None


def map_in(values: Mapping[str, str]) -> str | None:
    """The chosen map or the map text of a form, which has a line end; ProblemError if it has both."""
    text = _only_text("map", values)
    return f"{text}\n" if text else values["map"] or None


def _only_text(noun: str, values: Mapping[str, str]) -> str:
    """The text of a layout or a map; ProblemError if a stored one is chosen, too."""
    text = values[f"{noun}_text"]
    if values[noun] and text:
        raise ProblemError(
            INVALID,
            f"a stored {noun} is chosen and a {noun}'s text is given; keep one of them",
            f"/{noun}_text",
        )
    return text


def layout_of(text: str) -> dict[str, Any]:
    """The content of a layout as YAML or JSON. ProblemError for other text, or if it is not an object."""
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
            "the layout's text is not a layout file: expected mesh, rules and so on at its top; see docs/reference/layout-files.md",
            "/layout_text",
        )
    return found


def _flow(text: str) -> Any:
    """Parses YAML that begins with a brace and is not JSON."""
    try:
        return parse_yaml(text, "the layout").data
    except ReshardError as error:
        raise problem_of(error, "/layout_text") from error


def errors_of(form: ConversionForm, problem: ProblemError) -> dict[str, str]:
    """The error of each field; "" for an error of the whole form."""
    several = problem.extra.get("errors") or ()
    found = {_name(form, e["field"]): e["detail"] for e in several}
    if not found:
        line = _line_of_map(form, problem.detail)
        name = "map_text" if line else _name(form, problem.field) or invalid_field(form)
        found = {name: f"{problem.detail}{line}"}
    return found


def _line_of_map(form: ConversionForm, detail: str) -> str:
    """The line of the map's text that an error names; "" if it names none."""
    named, lines = _LINE.search(detail), form.values["map_text"].splitlines()
    number = int(named[1]) if named else 0
    if not 1 <= number <= len(lines):
        return ""
    return f". Line {number} is: {lines[number - 1].strip()[:200]}"


def _name(form: ConversionForm, pointer: str | None) -> str:
    name = (pointer or "").lstrip("/").split("/")[0]
    if name == "layout":
        return invalid_field(form, only="mesh") or (
            "layout_text" if form.values["layout_text"] else name
        )
    if name == "map" and form.values["map_text"]:
        return "map_text"
    return name if name in TEXTS or name in FLAGS else ""


def invalid_field(form: ConversionForm, only: str = "") -> str:
    """The first field that the library refuses alone, or ``only`` if it does; "" if no single field is invalid."""
    try:
        members = _members(form)
    except ProblemError:
        return ""
    # A stored map is not looked up here; without one the library refuses a map's options.
    stored = MAP.name_in(members["map"]) is not None
    beside = {} if stored else {"map": members["map"]}
    tried = [n for n in _ONE_BY_ONE if n in members and not (stored and n in OF_A_MAP)]
    for name in (only,) if only else tried:
        try:
            given = {name: members[name], **(beside if name in OF_A_MAP else {})}
            check_arguments(**library_options(given))
        except ReshardError:
            return name
    return ""
