"""Functions and records show the options that they share, and answer a wrong name with those near it."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

import reshard
from reshard.restoring.options import RestoreArguments


@pytest.mark.parametrize("function", [reshard.convert, reshard.plan, reshard.check_arguments])
def test_the_signature_shows_every_option_of_a_target(function: Callable[..., Any]) -> None:
    shown = inspect.signature(function).parameters
    for name in reshard.ConvertOptions.__annotations__:
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].default == getattr(reshard.Target(""), name)
    assert "options" not in shown


@pytest.mark.parametrize("function", [reshard.restore, reshard.OpenedCheckpoint.restore])
def test_the_signature_shows_every_option_of_restore(function: Callable[..., Any]) -> None:
    shown = inspect.signature(function).parameters
    for name in reshard.RestoreOptions.__annotations__:
        assert shown[name].default == getattr(RestoreArguments(), name)
    assert "options" not in shown


def test_the_two_restores_take_the_same() -> None:
    one = inspect.signature(reshard.restore).parameters
    other = inspect.signature(reshard.OpenedCheckpoint.restore).parameters
    assert one.keys() - other.keys() == {"path", "step", "item", "unlisted", "dequantize", "lora"}
    assert other.keys() - one.keys() == {"self"}


def test_the_signature_of_a_record() -> None:
    shown = str(inspect.signature(reshard.Target))
    assert shown.startswith("(target: 'Path', *, layout: 'LayoutLike' = None, mesh: ")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: reshard.convert("a", "b", layuot="x"),
         "convert() got an unexpected keyword argument 'layuot'; did you mean layout?"),
        (lambda: reshard.plan("a", max_mem=3),
         "plan() got an unexpected keyword argument 'max_mem'; did you mean max_memory?"),
        (lambda: reshard.Target("a", chunk_byte=1),
         "Target() got an unexpected keyword argument 'chunk_byte'; did you mean chunk_bytes?"),
        (lambda: reshard.restore("a", selct=["x"]),
         "restore() got an unexpected keyword argument 'selct'; did you mean select?"),
        (lambda: reshard.Target("a", zzz=1),
         "Target() got an unexpected keyword argument 'zzz'; expected target, layout, mesh, "),
    ],
)  # fmt: skip
def test_an_unknown_name_is_answered_with_those_near_it(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        call()


def test_a_target_is_a_frozen_value_and_shows_what_was_given() -> None:
    target = reshard.Target("served", cast={"float": "bfloat16"}, ocdbt=True)
    assert repr(target) == "Target(target='served', cast={'float': 'bfloat16'}, ocdbt=True)"
    assert pickle.loads(pickle.dumps(target)) == copy.copy(target) == target
    with pytest.raises(AttributeError):
        target.ocdbt = False
