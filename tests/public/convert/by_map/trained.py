"""A training state, a map with every kind of rule, and what numpy makes by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

import reshard
from tests.maps.by_numpy import made_by

Array = npt.NDArray[Any]
Tree = dict[str, Array]

LAYERS, EMBED, HEADS, GROUPS, PAIRS, HIDDEN, WORDS = 5, 12, 6, 2, 4, 20, 30
MAP = """
sizes: {two: 2, g: 2}
drop: ['^opt_state/', '^step$']
map:
- {from: params/embed, to: embed.weight, shape: v e -> v e, pad: {v: 32}}
- {from: params/head, to: head.weight, shape: e v -> v e}
- under: params/layers/
  into: layers.{l}.
  map:
  - {from: query, to: q.weight, shape: 'e l h (p two) -> (h two p) e', multiply: sqrt(p * two)}
  - from: [key, value]
    to: kv.weight
    shape: 'e l g d, e l g d -> (g [d | d]) e'
  - {from: wi, to: up.weight, shape: e l f -> f e, cast: bfloat16}
  - {from: wo, to: down.weight, shape: f l e -> e f, multiply: 2}
  - {from: norm, to: norm.weight, shape: e l -> e, add: 1}
"""


def training_tree() -> Tree:
    random = np.random.default_rng(7)

    def numbers(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    return {
        "params/embed": numbers(WORDS, EMBED),
        "params/head": numbers(EMBED, WORDS),
        "params/layers/query": numbers(EMBED, LAYERS, HEADS, 2 * PAIRS),
        "params/layers/key": numbers(EMBED, LAYERS, GROUPS, 8),
        "params/layers/value": numbers(EMBED, LAYERS, GROUPS, 8),
        "params/layers/wi": numbers(EMBED, LAYERS, HIDDEN),
        "params/layers/wo": numbers(HIDDEN, LAYERS, EMBED),
        "params/layers/norm": numbers(EMBED, LAYERS),
        "opt_state/mu": numbers(WORDS, EMBED),
        "step": np.array(7, np.int32),
    }


TREE = training_tree()
KEPT = {name: array for name, array in TREE.items() if name.startswith("params/")}
EXPECTED = made_by(MAP.replace("drop: ['^opt_state/', '^step$']", ""), KEPT)


def read_all(path: Path) -> Tree:
    if path.is_file():
        return dict(load_file(path))
    return {name: np.asarray(value) for name, value in reshard.restore(path).items()}


def assert_as_expected(path: Path) -> None:
    found = read_all(path)
    assert found.keys() == EXPECTED.keys()
    for name, array in EXPECTED.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name].view("u1"), array.view("u1"), err_msg=name)
