"""The examples of Keras' documentation: the rules, and which names each finds."""

from __future__ import annotations

from dataclasses import dataclass

from reshard.layout.axes import AxesLike
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_map import Ambiguous, LayoutMap, Match
from reshard.layout.tensor_layout import TensorLayout

MESH = DeviceMesh((4, 2), ("batch", "model"))
ONE_D, TWO_D, FOUR_D = ("model",), (None, "model"), (None, None, None, "model")

ANSWERS: dict[str, AxesLike | None] = {
    "dense_1.kernel": TWO_D,
    "dense_1.bias": ONE_D,
    "dense_2.kernel": TWO_D,
    "dense_2.bias": ONE_D,
    "my_model/conv2d_123/kernel": FOUR_D,
    "my_model/conv2d_123/bias": ONE_D,
    "my_model/conv3d_1/kernel": None,
    "my_model/conv3d_1/bias": None,
}


@dataclass(frozen=True)
class Document:
    """One document's layout map, in the dialect of the version that it describes."""

    name: str
    match: Match
    ambiguous: Ambiguous
    entries: dict[str, AxesLike | TensorLayout]
    answers: dict[str, AxesLike | None]

    def layouts(self) -> LayoutMap:
        layouts = LayoutMap(MESH, self.match, self.ambiguous)
        for key, entry in self.entries.items():
            layouts[key] = entry
        return layouts


KERAS_3_TO_3_13 = Document(
    "keras.distribution.LayoutMap, Keras 3.0 to 3.13",
    "search",
    "error",
    {
        "dense.*kernel": TWO_D,
        "dense.*bias": ONE_D,
        "conv2d.*kernel": TensorLayout(FOUR_D),
        "conv2d.*bias": TensorLayout(ONE_D),
    },
    ANSWERS,
)

KERAS_3_14 = Document(
    "keras.distribution.LayoutMap, Keras 3.14",
    "fullmatch",
    "error",
    {".*dense.*kernel": TWO_D, ".*dense.*bias": ONE_D,
     ".*conv2d.*kernel": FOUR_D, ".*conv2d.*bias": ONE_D},
    ANSWERS,
)  # fmt: skip

DTENSOR = Document(
    "tf.keras.dtensor.experimental.LayoutMap",
    "match",
    "first",
    {".*dense.*kernel": TensorLayout(TWO_D), ".*dense.*bias": TensorLayout(ONE_D),
     ".*conv2d.*kernel": TensorLayout(FOUR_D), ".*conv2d.*bias": TensorLayout(ONE_D)},
    ANSWERS,
)  # fmt: skip

SCOPE_KEYS = {
    "d1.kernel": TWO_D,
    "d1.bias": ONE_D,
    "d2.kernel": (None, "batch"),
    "d2.bias": ("batch",),
}
SCOPE = Document(
    "tf.keras.dtensor.experimental.layout_map_scope",
    "match",
    "first",
    {key: TensorLayout(axes) for key, axes in SCOPE_KEYS.items()},
    {**SCOPE_KEYS, "d3.kernel": None},
)

DOCUMENTS = (KERAS_3_TO_3_13, KERAS_3_14, DTENSOR, SCOPE)
