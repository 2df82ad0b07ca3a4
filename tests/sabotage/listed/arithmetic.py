"""Sabotages of what computes tensors of others."""

from __future__ import annotations

from tests.sabotage.sabotage import Sabotage

SCALED = "reshard/arithmetic/scaled.py"

SABOTAGES = (
    Sabotage(
        "block-from-its-window",
        "blocks of scales are counted from the start of each window",
        SCALED,
        "np.arange(box.start[axis], box.stop[axis]) // size",
        "np.arange(box.stop[axis] - box.start[axis]) // size",
        ("tests/arithmetic/test_scaled.py::test_any_grids",),
    ),
    Sabotage(
        "scale-dtype-unseen",
        "products are not rounded to the dtype of the scale",
        SCALED,
        '        if self.scale in ("bfloat16", "float16"):\n',
        "        if False:\n",
        ("tests/arithmetic/test_scaled.py::test_every_code[int8-bfloat16-float32]",),
    ),
    Sabotage(
        "scale-without-codes",
        "scales without codes are taken for weights",
        "reshard/arithmetic/refuse_unknown.py",
        "[s for s in others if _SCALES.search(s.name)]",
        "[]",
        (
            "tests/arithmetic/test_dequantize.py::test_what_is_not_known_is_refused[no codes of a scale]",
        ),
    ),
)
