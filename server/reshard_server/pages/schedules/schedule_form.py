"""The form of a new schedule: from its fields to a schedule with one target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from reshard_server.errors.error_handlers import invalid
from reshard_server.errors.problems import ProblemError
from reshard_server.middleware.body_limits import check_texts
from reshard_server.pages.conversions import form_fields
from reshard_server.pages.conversions.conversion_form import layout_in
from reshard_server.pages.conversions.form_fields import members_of
from reshard_server.pages.visitor import Fields, number_of
from reshard_server.schemas.schedule import ScheduleBody

TARGET_TEXTS = ("target", "mesh", "missing_axes", "map", "sizes", "to", "cast", "compression")
"""Members of the target with a text field, besides its layout."""

TEXTS = (
    "name", "when", "cron", "source", "every", "target", "layout", "map", "to", "keep", "layout_text", "mesh",
    "missing_axes", "sizes", "cast", "compression",
)  # fmt: skip
ALWAYS_SHOWN = TEXTS[: TEXTS.index("keep") + 1]
"""The other fields are folded until one of them has a value or an error."""

DEFAULTS = {"when": "steps", **{n: d for n, d in form_fields.DEFAULTS.items() if n in TARGET_TEXTS}}
FLAGS = ("newest_only", "latest", "catch_up", "overwrite")

_PLACES = {"directory": "source", "step": "latest"}
"""Members of a schedule whose fields have other names."""


@dataclass(frozen=True)
class ScheduleForm:
    """The contents of the form; ``errors`` by the name of a field, "" for the whole form."""

    values: Mapping[str, str]
    flags: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_advanced(self) -> bool:
        """True if a folded field has a value or an error."""
        folded = [name for name in TEXTS if name not in ALWAYS_SHOWN]
        changed = any(self.values[name] not in ("", DEFAULTS.get(name)) for name in folded)
        return changed or bool(self.flags) or any(n and n not in ALWAYS_SHOWN for n in self.errors)

    def with_problem(self, problem: ProblemError) -> ScheduleForm:
        """The form with the problem beside its field."""
        several = problem.extra.get("errors") or ()
        found = {self._name(e["field"]): e["detail"] for e in several}
        return ScheduleForm(
            self.values, self.flags, found or {self._name(problem.field): problem.detail}
        )

    def _name(self, pointer: str | None) -> str:
        """``/targets/0/layout`` → ``layout``."""
        parts = [p for p in (pointer or "").split("/") if p and not p.isdecimal()]
        known = [_PLACES.get(p, p) for p in parts if _PLACES.get(p, p) in (*TEXTS, *FLAGS)]
        name = known[-1] if known else ""
        return "layout_text" if name == "layout" and self.values["layout_text"] else name


def empty_form() -> ScheduleForm:
    """A form with the defaults."""
    return ScheduleForm({**dict.fromkeys(TEXTS, ""), **DEFAULTS})


def sent_form(fields: Fields) -> ScheduleForm:
    """The form that a browser sent."""
    return ScheduleForm(
        {name: fields.text(name) for name in TEXTS},
        frozenset(name for name in FLAGS if fields.has(name)),
    )


def body_of(form: ScheduleForm) -> ScheduleBody:
    """The schedule of a form. Raises ProblemError for an invalid form."""
    members = {"when": _when(form), "targets": [_target_document(form)], "keep": number_of("keep", form.values["keep"])}  # fmt: skip
    check_texts(members)
    try:
        return ScheduleBody.model_validate(members)
    except ValidationError as error:
        raise invalid([{**e, "loc": ("body", *e["loc"])} for e in _of_form(form, error)]) from None


def _of_form(form: ScheduleForm, error: ValidationError) -> list[Any]:
    """Keeps only the errors of the chosen kind of ``when``."""
    other = "NewSteps" if form.values["when"] == "clock" else "Clock"
    return [e for e in error.errors() if other not in e["loc"]]


def _when(form: ScheduleForm) -> dict[str, Any]:
    source = form.values["source"]
    if form.values["when"] == "clock":
        catch_up = "catch_up" in form.flags
        step = "latest" if "latest" in form.flags else None
        return {"cron": form.values["cron"], "source": source, "step": step, "catch_up": catch_up}
    every = number_of("every", form.values["every"])
    newest_only = "newest_only" in form.flags
    return {"directory": source, "every": 1 if every is None else every, "newest_only": newest_only}


def _target_document(form: ScheduleForm) -> dict[str, Any]:
    layout = layout_in(form.values)
    return {
        **members_of(TARGET_TEXTS, form.values),
        "layout": layout,
        "overwrite": "overwrite" in form.flags,
    }
