"""What rests on private parts of Keras holds for the pinned version, and refuses another in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from reshard import DeviceMesh, LayoutMap, VariableError
from reshard.variables.lazy import keras_internals

ROOT = Path(__file__).parents[3]


def test_the_pinned_keras_is_the_one_it_was_written_for() -> None:
    assert keras.__version__ == keras_internals.TESTED_WITH
    assert f"keras=={keras_internals.TESTED_WITH}\n" in (ROOT / "requirements.lock").read_text()
    assert keras_internals._missing(keras) == ""


def renamed(self: Any, spec: Any) -> None:
    """Another signature than that of ``_maybe_build``."""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda patch: patch.setattr(keras.Layer, "_maybe_build", renamed), r"Layer\._maybe_build takes \['self', 'spec'\], not \['self', 'call_spec'\]"),
        (lambda patch: patch.delattr(keras.Layer, "_flatten_layers"), "AttributeError: .*_flatten_layers"),
        (lambda patch: patch.setattr(keras_internals, "_WAITING", "other"), "a variable made in a StatelessScope does not wait"),
    ],
)  # fmt: skip
def test_another_keras_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: Any, problem: str
) -> None:
    keras_internals.check_parts.cache_clear()
    change(monkeypatch)
    layouts = LayoutMap(DeviceMesh((8,), ("x",)))
    add_weight = keras.Layer.add_weight
    with (
        pytest.raises(
            VariableError,
            match=f"private parts of Keras 3.15.1.* differs: {problem}.*; install keras==",
        ),
        layouts.scope(),
    ):
        raise AssertionError
    assert keras.Layer.add_weight is add_weight
    monkeypatch.undo()
    with layouts.scope():
        assert keras.Layer.add_weight is not add_weight
