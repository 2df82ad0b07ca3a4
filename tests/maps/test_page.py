"""The ten examples of docs/reference/maps.md, each held against numpy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.maps.by_numpy import made_by

Array = npt.NDArray[Any]
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "maps.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\d+\. .*?```yaml\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


KERNEL, WI = numbers(3, 5), numbers(4, 2, 6)
EXPERTS = {f"layers.{n}.experts.{x}.w1": numbers(3, 5) for n in range(2) for x in range(3)}
QUERY = numbers(4, 2, 6)
Q, K, V = numbers(8, 3), numbers(4, 3), numbers(4, 3)
GATE_UP, EMBED, LOCAL, GLOBAL, NORM = (
    numbers(6, 2), numbers(5, 2), numbers(2, 3), numbers(2, 3), numbers(4)
)  # fmt: skip
ANSWERS: list[tuple[Mapping[str, Array], Mapping[str, Array]]] = [
    ({"params/dense/kernel": KERNEL}, {"dense.weight": KERNEL.T}),
    ({"params/mlp/wi": WI}, {f"layers.{n}.up.weight": WI[:, n].T for n in range(2)}),
    (
        EXPERTS,
        {
            "params/wi_0": np.stack(
                [
                    np.stack([EXPERTS[f"layers.{n}.experts.{x}.w1"].T for n in range(2)])
                    for x in range(3)
                ]
            )
        },
    ),
    (
        {"query": QUERY},
        {
            "q_proj.weight": QUERY.reshape(4, 2, 3, 2).transpose(1, 3, 2, 0).reshape(12, 4)
            * np.float32(np.sqrt(6))
        },
    ),
    ({"0.q": Q, "0.k": K, "0.v": V}, {"0.qkv": np.concatenate([Q, K, V])}),
    (
        {"0.q": Q, "0.k": K, "0.v": V},
        {"0.qkv": np.concatenate([Q[:4], K[:2], V[:2], Q[4:], K[2:], V[2:]])},
    ),
    ({"gate_up": GATE_UP}, {"gate": GATE_UP[:3], "up": GATE_UP[3:]}),
    (
        {"embed": EMBED, "lm_head": EMBED},
        {"embed.weight": np.concatenate([EMBED, np.zeros((3, 2), np.float32)])},
    ),
    (
        {"local": LOCAL, "global": GLOBAL},
        {f"layers.{n}.w": (LOCAL, GLOBAL)[n % 2][n // 2] for n in range(4)},
    ),
    (
        {"norm": NORM},
        {
            "norm.weight": NORM + 1,
            "norm_2.weight": NORM + 1,
            "norm.bias": np.zeros(4, np.float32),
        },
    ),
]


def test_there_are_ten() -> None:
    assert len(EXAMPLES) == len(ANSWERS) == 10


@pytest.mark.parametrize("number", range(10))
def test_an_example_makes_what_it_says(number: int) -> None:
    source, expected = ANSWERS[number]
    made = made_by(EXAMPLES[number], source)
    assert made.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array)
