"""Converts meshes, layouts and layout maps of Keras in arguments to this package's own; Keras is not imported for it."""

from __future__ import annotations

import sys
from typing import Any


def is_from_keras(value: object, *kinds: str) -> bool:
    """True for an instance of one of these classes of ``keras.distribution``; False if Keras is not loaded."""
    distribution = getattr(sys.modules.get("keras"), "distribution", None)
    if distribution is None:
        return False
    classes = (getattr(distribution, kind, None) for kind in kinds)
    return isinstance(value, tuple(c for c in classes if isinstance(c, type)))


def own_layout(layout: Any) -> Any:
    """A LayoutMap or TensorLayout of Keras as this package's; anything else unchanged."""
    if is_from_keras(layout, "LayoutMap"):
        from reshard.layout.bridges.keras_distribution import map_from_keras

        return map_from_keras(layout)
    if is_from_keras(layout, "TensorLayout"):
        from reshard.layout.bridges.keras_distribution import layout_from_keras

        return layout_from_keras(layout)
    return layout
