"""The form of a new conversion: from its fields to a request and back, and from a problem to its field.

The type of a member of the request decides how its field is read and shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from reshard import check_arguments
from reshard.errors import ReshardError
from reshard.layout.layout_text import parse_json, parse_yaml
from reshard.options import CHANGES, OUTPUT
from reshard_server.db.stored.kinds import KINDS, MAP
from reshard_server.errors.error_handlers import invalid
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.jobs.check_request import CHECKED, OF_A_MAP
from reshard_server.middleware.body_limits import check_texts
from reshard_server.pages.rendering import layout_text
from reshard_server.pages.visitor import Fields, lines_of, number_of
from reshard_server.schemas.base import Whole
from reshard_server.schemas.conversion import (
    DECLARED,
    Conversion,
    OneTarget,
    Pairs,
    Patterns,
    PlanRequest,
    TargetRequest,
    library_options,
)
from reshard_server.schemas.job_options import (
    Labels,
    Seconds,
)

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_REPLACEMENTS = {"rename": "NEW", "cast": "DTYPE"}
"""The right side of a rule, for messages."""
_OF_LABELS = ("labels", "host_labels")


@dataclass(frozen=True)
class TextField:
    """The functions that read a member from a field's text, and show it in the field.

    Attributes:
        read: from the member's name and the text; returns None for the default.
        show: from the member's value.
    """

    read: Callable[[str, str], Any]
    show: Callable[[Any], str]


def pairs_of(name: str, text: str) -> list[tuple[str, str]]:
    """The rules of a field, one per line, or its labels. ProblemError for a line that is neither."""
    found = []
    for line in lines_of(text):
        left, equals, right = line.partition("=") if name in _OF_LABELS else line.rpartition("=")
        if not equals:
            what = (
                "KEY=VALUE" if name in _OF_LABELS else f"PATTERN={_REPLACEMENTS.get(name, 'NEW')}"
            )
            raise ProblemError(
                INVALID, f"{line[:100]!r} has no '='; write {what}, one per line", f"/{name}"
            )
        found.append((left.strip(), right.strip()))
    return found


def _pairs_text(pairs: Iterable[tuple[str, object]]) -> str:
    return "\n".join(f"{one}={other}" for one, other in pairs)


def _seconds(name: str, text: str) -> float | None:
    if not text:
        return None
    if not _SECONDS.fullmatch(text):
        raise ProblemError(
            INVALID, f"{name} is {text[:40]!r}; expected seconds, such as 3600", f"/{name}"
        )
    return float(text)


def _labels(name: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in pairs_of(name, text):
        if key in found:
            raise ProblemError(
                INVALID, f"the key {key[:64]!r} occurs twice; keep one line of it", f"/{name}"
            )
        found[key] = value
    return found


def _sizes(name: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in lines_of(text):
        key, _, value = line.partition("=")
        if not value.strip().isdecimal() or not key.strip().isidentifier():
            raise ProblemError(
                INVALID, f"{line[:100]!r} is no size; write NAME=N, one per line", f"/{name}"
            )
        found[key.strip()] = int(value[:20])
    return found


_TEXT = TextField(lambda _, text: text or None, str)
_NUMBER = TextField(number_of, str)


_SIZES = TextField(
    lambda name, text: _sizes(name, text) or None, lambda sizes: _pairs_text(sizes.items())
)
_LINES = TextField(lambda _, text: lines_of(text), "\n".join)
_PARTS = TextField(
    lambda name, text: number_of(name, text) if text.isdecimal() else text or None, str
)
_BY_NAME = {"sizes": _SIZES, "deltas": _LINES, "lora": _LINES, "notify": _LINES, "parts": _PARTS}
_BY_TYPE = (
    (get_args(Patterns)[0], _LINES),
    (get_args(Pairs)[0], TextField(pairs_of, _pairs_text)),
    (get_args(Labels)[0], TextField(_labels, lambda labels: _pairs_text(labels.items()))),
    (int, _NUMBER),
    (Whole | None, _NUMBER),
    (Seconds | None, TextField(_seconds, lambda seconds: f"{seconds:.6f}".rstrip("0").rstrip("."))),
)

_NO_FIELDS = ("step", "item")
"""Members without a field: on the page a checkpoint has its own path."""

MEMBERS: Mapping[str, FieldInfo] = {
    name: found
    for name, found in {**TargetRequest.model_fields, **OneTarget.model_fields}.items()
    if name not in _NO_FIELDS
}
FLAGS = tuple(name for name, found in MEMBERS.items() if found.annotation is bool)
MEMBER_TEXTS = tuple(name for name in MEMBERS if name not in FLAGS)
DEFAULTS = {
    name: MEMBERS[name].default for name in MEMBER_TEXTS if isinstance(MEMBERS[name].default, str)
}
"""The initial values of fields that are not empty."""

FIELDS_OF = {
    "changes": [
        name
        for name, option in DECLARED.items()
        if option.group == CHANGES and name not in (*FLAGS, "map")
    ],
    "output": [
        name for name, option in DECLARED.items() if option.group == OUTPUT and name not in FLAGS
    ],
    "flags": [name for name in DECLARED if name in FLAGS],
}
"""The fields of declared options, by their place on the page; the map and those of the group LAYOUT have places of their own."""


def text_field(name: str) -> TextField:
    """The field of a member, by its type."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    annotation = MEMBERS[name].annotation
    return next((found for kind, found in _BY_TYPE if kind == annotation), _TEXT)


def members_of(names: Iterable[str], values: Mapping[str, str]) -> dict[str, Any]:
    """The members from their fields' texts; an empty field means the default."""
    return {name: _member(name, values[name]) for name in names}


def _member(name: str, text: str) -> Any:
    found, member = text_field(name).read(name, text), MEMBERS[name]
    if found is not None:
        return found
    return text if member.is_required() else member.get_default()


def text_of(name: str, value: Any) -> str:
    """The text of a field for a member's value; empty for a default that the form leaves empty."""
    if value is None or (name not in DEFAULTS and value == MEMBERS[name].get_default()):
        return ""
    return text_field(name).show(value)


TEXTS = (*MEMBER_TEXTS, "layout_text", "map_text")

_ONE_BY_ONE = (*(name for name in CHECKED if name != "map"), "mesh", "max_memory")
"""The fields that the library can check one by one, to find the invalid one."""

_LINE = re.compile(r"\bmap:([0-9]{1,6})\b")
"""The text by which errors name a line of a map."""


@dataclass(frozen=True)
class FilledForm:
    """The contents of a form.

    Attributes:
        errors: by the name of a field; "" for the whole form.
        always_shown: the fields that are not folded; all others are until one of them has a value or an error.
    """

    always_shown: ClassVar[tuple[str, ...]]

    values: Mapping[str, str]
    flags: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_advanced(self) -> bool:
        """True if a folded field has a value or an error."""
        shown = self.always_shown
        folded = {name: value for name, value in self.values.items() if name not in shown}
        changed = any(value not in ("", DEFAULTS.get(name)) for name, value in folded.items())
        return changed or bool(self.flags) or any(n and n not in shown for n in self.errors)


@dataclass(frozen=True)
class ConversionForm(FilledForm):
    """The contents of the form of a conversion.

    Attributes:
        key: the same each time the form is sent, so that it starts only one conversion.
        starter: the layout's text as the page filled it in, from the source; "" if it did not.
    """

    always_shown = ("source", "target", "layout", "mesh", "missing_axes", "layout_text", "map")

    key: str = ""
    starter: str = ""

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
    return ConversionForm(values, flags, key=fields.text("key"), starter=starter)


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
    return ConversionForm(values, frozenset(name for name in FLAGS if members[name]), key=key)


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
    found = None
    # YAML may begin with a brace, too.
    for parse in (parse_json, parse_yaml) if text.startswith("{") else (parse_yaml,):
        try:
            found = parse(text, "the layout").data
            break
        except ReshardError as error:
            if parse is parse_yaml:
                raise problem_of(error, "/layout_text") from error
    if not isinstance(found, dict):
        raise ProblemError(
            INVALID,
            "the layout's text is not a layout file: expected mesh, rules and so on at its top; see docs/reference/layout-files.md",
            "/layout_text",
        )
    return found


def errors_of(form: ConversionForm, problem: ProblemError) -> dict[str, str]:
    """The error of each field; "" for an error of the whole form."""
    several = problem.extra.get("errors") or ()
    if several:
        return {_name(form, e["field"]): e["detail"] for e in several}
    line = _line_of_map(form, problem.detail)
    name = "map_text" if line else _name(form, problem.field) or invalid_field(form)
    return {name: f"{problem.detail}{line}"}


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
