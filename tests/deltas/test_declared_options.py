"""How a delta is written is declared once: the command, the function and the request have these options, with one default."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest
from reshard_server.schemas.conversion import (
    DeltaForm,
    OneDelta,
)

import reshard
from reshard.cli.app import run
from reshard.cli.commands.deltas import delta
from reshard.deltas.declared_options import OPTIONS
from reshard.deltas.payloads import PAYLOADS
from reshard.formats.delta.changes import CHANGES


@pytest.mark.parametrize("name", OPTIONS)
def test_each_surface_has_it(name: str) -> None:
    of_function = inspect.signature(reshard.delta).parameters[name].default
    assert inspect.signature(delta).parameters[name].default == of_function
    assert OneDelta.model_fields[name].default == of_function
    assert OneDelta.model_fields[name].description == OPTIONS[name].description


def test_each_encoding_is_written_and_read() -> None:
    assert PAYLOADS.keys() == CHANGES.keys() == {*get_args(reshard.DeltaEncoding)}


def test_a_schedule_has_no_others_and_writes_numbered_versions() -> None:
    assert DeltaForm.model_fields.keys() == OPTIONS.keys() - {"receiver"}


def test_the_help_has_the_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["delta", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--for" in shown and "pull_weights|modelexpress" in shown
    assert "xor|overwrite" in shown
    assert "xxh3-128|blake3|adler32" in shown
    assert "Default: xxh3-128, for modelexpress adler32." in " ".join(
        shown.replace("│", " ").split()
    )
