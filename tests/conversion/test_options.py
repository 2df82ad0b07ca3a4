"""The options of a target are declared once: every function that takes them has these, with the same defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest
from reshard_server.pages import conversion_form, schedule_pages
from reshard_server.schemas.conversion import TargetRequest

import reshard
from reshard.cli.commands import conversion
from reshard.conversion import declared_options
from reshard.conversion.check_target import check_target
from reshard.conversion.conversion_key import key_of_conversion
from reshard.conversion.options import LIBRARY_NAMES, ConvertOptions, Target
from reshard.engine.limits import limits_of
from reshard.formats.known_formats import FORMATS
from reshard.restoring.options import RestoreArguments, RestoreOptions

OPTIONS = tuple(ConvertOptions.__annotations__)
CHOICES = {
    "missing_axes": reshard.MissingAxes,
    "style": reshard.Style,
    "to": reshard.FormatName,
    "files": reshard.FilesOf,
    "missing_chunks": reshard.MissingChunks,
    "check": reshard.Check,
    "identity": reshard.IdentityMode,
}
DEFAULTS = Target("")
NOT_FOR_CLIENTS = {"state", "unsafe_commit"}
"""A client of the service names no bucket, and does not decide how its server writes."""


def documented(declaration: type) -> list[str]:
    """The names in the Attributes section of a docstring, in order."""
    section = (declaration.__doc__ or "").split("Attributes:\n")[1]
    return re.findall(r"^ {8}(\w+):", section, re.MULTILINE)


def test_target_has_every_option() -> None:
    assert Target.__struct_fields__ == ("target", *OPTIONS)


@pytest.mark.parametrize("declaration", [ConvertOptions, RestoreOptions])
def test_every_option_is_documented(declaration: type) -> None:
    assert documented(declaration) == list(declaration.__annotations__)


def test_restore_has_every_option() -> None:
    assert RestoreArguments.__struct_fields__ == tuple(RestoreOptions.__annotations__)


def choices_in(annotation: object) -> set[object]:
    """The values that a Literal somewhere in an annotation allows."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    parts = (
        get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    )
    return set().union(*map(choices_in, parts)) if parts else set()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_declaration_fits_type_and_default(name: str) -> None:
    option, default = declared_options.OPTIONS[name], getattr(DEFAULTS, name)
    assert set(option.choices) - {None} == choices_in(CHOICES.get(name))
    assert (option.kind == "choice") == (name in CHOICES)
    assert default in option.choices or name not in CHOICES
    assert (option.kind == "flag") == isinstance(default, bool)
    assert (option.kind in ("patterns", "pairs")) == isinstance(default, tuple)
    assert option.is_for_clients == (name not in NOT_FOR_CLIENTS)
    if option.label and option.kind == "choice":
        assert [word for word, _ in option.labelled] == [word or "" for word in option.choices]


def test_each_format_has_its_options() -> None:
    abouts = [known.about for known in FORMATS if known.write is not None]
    assert {about.title: about.options for about in abouts} == declared_options.OF_FORMATS


@pytest.mark.parametrize(
    ("command", "left_out"),
    [
        (conversion.convert, set()),
        (conversion.plan, {"check", "restart", "state", "unsafe_commit"}),
    ],
    ids=["convert", "plan"],
)
def test_the_command_line_has_every_option(
    command: Callable[..., None], left_out: set[str]
) -> None:
    shown = {LIBRARY_NAMES.get(n, n): p for n, p in inspect.signature(command).parameters.items()}
    assert set(OPTIONS) - shown.keys() == left_out
    for name in set(OPTIONS) - left_out:
        assert (shown[name].default or None) == (getattr(DEFAULTS, name) or None)
        assert choices_in(shown[name].annotation) == choices_in(CHOICES.get(name))


def test_the_http_model_has_every_option() -> None:
    members = {LIBRARY_NAMES.get(n, n): found for n, found in TargetRequest.model_fields.items()}
    assert members.keys() == {"target", *OPTIONS} - NOT_FOR_CLIENTS
    for name in set(OPTIONS) - NOT_FOR_CLIENTS:
        assert members[name].get_default() == getattr(DEFAULTS, name)
        assert choices_in(members[name].annotation) == choices_in(CHOICES.get(name))


def test_the_forms_have_every_option() -> None:
    assert set(TargetRequest.model_fields) < {*conversion_form.MEMBER_TEXTS, *conversion_form.FLAGS}
    empty = dict.fromkeys(conversion_form.MEMBER_TEXTS, "")
    members = {**conversion_form.members_of(empty, empty), "source": "data/a", "target": "data/b"}
    assert TargetRequest(
        **{n: members[n] for n in members if n in TargetRequest.model_fields}
    ) == TargetRequest(target="data/b")
    assert set(schedule_pages.TARGET_TEXTS) < set(TargetRequest.model_fields)


def test_the_page_has_a_field_for_every_option_that_has_no_place_of_its_own() -> None:
    listed = [name for names in conversion_form.FIELDS_OF.values() for name in names]
    assert len(listed) == len(set(listed))
    own_place = {"target", "layout", "map", "mesh", "missing_axes"}
    assert set(listed) == set(TargetRequest.model_fields) - own_place


def test_the_key_of_a_conversion_has_every_option_that_changes_bytes(tmp_path: Path) -> None:
    in_layout, in_a_map, of_the_target_alone = (
        {"mesh", "missing_axes"},
        {"map", "sizes", "reverse", "config"},  # in the key where they are given
        {"missing_chunks", "overwrite", "check", "identity", *NOT_FOR_CLIENTS, "restart"},
    )
    checked = check_target(Target(tmp_path / "b"), limits_of(None, None))
    settings = key_of_conversion(str(tmp_path), checked, "").settings
    assert set(OPTIONS) - settings.keys() == in_layout | in_a_map | of_the_target_alone
    assert settings.keys() - set(OPTIONS) == {"max_memory", "workers", "reshard"}
