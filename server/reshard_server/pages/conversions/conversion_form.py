"""The form of a new conversion: from its fields to a request and back, and from a problem to its field."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from reshard.api import check_arguments
from reshard.errors import ReshardError
from reshard.layout.layout_text import parse_json, parse_yaml
from reshard_server.errors.error_handlers import invalid
from reshard_server.errors.problems import INVALID, ProblemError, problem_of
from reshard_server.middleware.body_limits import check_texts
from reshard_server.pages.layouts.layout_text import layout_text
from reshard_server.pages.visitor import Fields, lines_of, number_of
from reshard_server.schemas.conversion import Conversion, Goal, OneTarget, PlanRequest

TEXTS = (
    "source", "target", "layout", "layout_text", "mesh", "missing_axes", "select", "drop", "rename", "cast",
    "compression", "chunk_bytes", "max_memory", "workers", "verify", "style", "priority",
    "run_seconds", "no_progress_seconds", "labels",
)  # fmt: skip
FLAGS = ("overwrite", "restart", "ocdbt")
DEFAULTS = {"compression": "none", "missing_axes": "error", "verify": "written"}
"""Of fields that are not empty at first."""

ALWAYS_SHOWN = ("source", "target", "layout")
"""The other fields are folded until one of them has a value or an error."""

COMPRESSIONS = ("none", "zstd:3", "zstd:9", "gzip:6", "blosc", "keep")

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")

_ONE_BY_ONE = (
    "select",
    "drop",
    "rename",
    "cast",
    "compression",
    "chunk_bytes",
    "mesh",
    "max_memory",
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

    @property
    def is_advanced(self) -> bool:
        """Whether a field that is folded at first has a value or an error."""
        folded = [name for name in TEXTS if name not in ALWAYS_SHOWN]
        changed = any(self.values[name] not in ("", DEFAULTS.get(name)) for name in folded)
        return changed or bool(self.flags) or any(n and n not in ALWAYS_SHOWN for n in self.errors)

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
    return ConversionForm({**dict.fromkeys(TEXTS, ""), **DEFAULTS, **values}, key=key)


def form_of(key: str, conversion: Conversion, goal: Goal) -> ConversionForm:
    """The form that asks for one target of a conversion once more."""
    wanted = conversion.request
    layout = goal.layout
    values = {
        "source": wanted.source,
        "target": goal.target,
        "layout": layout if isinstance(layout, str) else "",
        "layout_text": layout_text(layout) if isinstance(layout, dict) else "",
        "mesh": goal.mesh,
        "missing_axes": goal.missing_axes,
        "select": "\n".join(goal.select),
        "drop": "\n".join(goal.drop),
        "rename": _lines(goal.rename),
        "cast": _lines(goal.cast),
        "compression": goal.compression,
        "chunk_bytes": goal.chunk_bytes,
        "max_memory": wanted.max_memory,
        "workers": wanted.workers,
        "verify": goal.verify,
        "style": goal.style,
        "priority": wanted.priority or "",
        "run_seconds": _seconds_text(wanted.run_seconds),
        "no_progress_seconds": _seconds_text(wanted.no_progress_seconds),
        "labels": _lines(wanted.labels.items()),
    }
    flags = frozenset(name for name in FLAGS if getattr(goal, name))
    return ConversionForm({n: "" if v is None else str(v) for n, v in values.items()}, flags, key)


def _lines(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{one}={other}" for one, other in pairs)


def request_of(form: ConversionForm) -> OneTarget:
    """The request that a form stands for. Raises ProblemError where it stands for none."""
    try:
        return OneTarget.model_validate(_members(form))
    except ValidationError as error:
        raise invalid([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from None


def key_of(form: ConversionForm, request: OneTarget) -> str | None:
    """The same for the same form sent twice with the same request, and for nothing else."""
    if not form.key:
        return None
    return hashlib.sha256(f"{form.key} {request.model_dump_json()}".encode()).hexdigest()


def plan_request_of(request: OneTarget) -> PlanRequest:
    """The same conversion, to be planned."""
    kept = set(PlanRequest.model_fields) & set(OneTarget.model_fields)
    return PlanRequest.model_validate(request.model_dump(include=kept))


def _members(form: ConversionForm) -> dict[str, Any]:
    values = form.values
    members: dict[str, Any] = {
        "source": values["source"],
        "target": values["target"],
        "layout": _layout(values),
        "mesh": values["mesh"] or None,
        "missing_axes": values["missing_axes"] or DEFAULTS["missing_axes"],
        "select": lines_of(values["select"]),
        "drop": lines_of(values["drop"]),
        "rename": pairs_of("rename", values["rename"], "NEW"),
        "cast": pairs_of("cast", values["cast"], "DTYPE"),
        "compression": values["compression"] or DEFAULTS["compression"],
        "chunk_bytes": values["chunk_bytes"] or None,
        "max_memory": values["max_memory"] or None,
        "workers": number_of("workers", values["workers"]),
        "verify": values["verify"] or DEFAULTS["verify"],
        "style": values["style"] or None,
        "priority": number_of("priority", values["priority"]) or 0,
        "run_seconds": _seconds("run_seconds", values),
        "no_progress_seconds": _seconds("no_progress_seconds", values),
        "labels": _labels(values["labels"]),
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
            "the layout's text is no layout file: expected mesh, rules and so on at its top; see docs/reference/layout-files.md",
            "/layout_text",
        )
    return found


def _flow(text: str) -> Any:
    """YAML may begin with a brace too, without being JSON."""
    try:
        return parse_yaml(text, "the layout").data
    except ReshardError as error:
        raise problem_of(error, "/layout_text") from error


def pairs_of(name: str, text: str, what: str) -> list[tuple[str, str]]:
    """The rules of a field, one a line. ProblemError where a line is none."""
    found = []
    for line in lines_of(text):
        pattern, equals, to = line.rpartition("=")
        if not equals:
            raise ProblemError(
                INVALID, f"{line[:100]!r} has no '='; write PATTERN={what}, one a line", f"/{name}"
            )
        found.append((pattern.strip(), to.strip()))
    return found


def _seconds(name: str, values: Mapping[str, str]) -> float | None:
    text = values[name]
    if not text:
        return None
    if not _SECONDS.fullmatch(text):
        raise ProblemError(
            INVALID, f"{name} is {text[:40]!r}; expected seconds, such as 3600", f"/{name}"
        )
    return float(text)


def _seconds_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines_of(text):
        key, equals, value = line.partition("=")
        if not equals:
            raise ProblemError(
                INVALID, f"{line[:100]!r} has no '='; write KEY=VALUE, one a line", "/labels"
            )
        if key.strip() in found:
            raise ProblemError(
                INVALID,
                f"the key {key.strip()[:64]!r} is there twice; keep one line of it",
                "/labels",
            )
        found[key.strip()] = value.strip()
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
    if name == "layout":
        return blamed(form, only="mesh") or ("layout_text" if form.values["layout_text"] else name)
    return name if name in TEXTS or name in FLAGS else ""


def blamed(form: ConversionForm, only: str = "") -> str:
    """The first field that the library refuses by itself, or the only one asked for; "" where it is none alone."""
    try:
        members = _members(form)
    except ProblemError:
        return ""
    for name in (only,) if only else _ONE_BY_ONE:
        try:
            check_arguments(**{name: members[name]})
        except ReshardError:
            return name
    return ""
