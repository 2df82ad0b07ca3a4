"""Every case of ``docs/reference/compared-with-keras-and-tensorflow.md``: what TensorFlow answers, and what is answered here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from reshard import ShardedVariable
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = pytest.mark.xdist_group("tensorflow")

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compared-with-keras-and-tensorflow.md"
WHOLE = np.arange(20, dtype=np.float32).reshape(10, 2)
EVEN, UNEVEN = np.array_split(WHOLE, 3), np.split(WHOLE, [5, 7])
ROW = np.ones((1, 2), np.float32)
TABLE = np.arange(13, dtype=np.float32)


@dataclass(frozen=True)
class Case:
    """One row of the page: question, the kind of upstream's error or its answer, and our own."""

    text: str
    upstream: Callable[[Oracle], Any]
    found: Any
    ours: Callable[[ShardedVariable], Any]
    answer: Any


def theirs(function: str, **arguments: Any) -> Callable[[Oracle], Any]:
    return lambda tensorflow: tensorflow.ask(function, **arguments)


def index(text: str, items: list[Any], found: Any, answer: Any = None) -> Case:
    """An index; unless an error is expected here, NumPy's answer is."""
    asked = items[0] if len(items) == 1 else tuple(items)
    shards = list(map(np.ascontiguousarray, EVEN))
    upstream = theirs("index", shards=shards, items=items, single=len(items) == 1)
    return Case(text, upstream, found, lambda v: v[asked], WHOLE[asked] if answer is None else answer)  # fmt: skip


def change(text: str, method: str, arguments: list[Any], found: Any, answer: Any, shards: Any = EVEN) -> Case:  # fmt: skip
    upstream = theirs("change", shards=shards, method=method, arguments=arguments)
    return Case(text, upstream, found, lambda _: getattr(ShardedVariable(shards), method)(*arguments).numpy(), answer)  # fmt: skip


def at(row: int) -> list[Any]:
    return [np.array([row], np.int32), ROW]


def plus_one(row: int) -> Any:
    whole = WHOLE.copy()
    whole[row] += 1
    return whole


TOO_SHORT = np.full((5, 2), -1, np.float32)
WRITTEN = [np.full((4, 2), -1, np.float32), EVEN[1], EVEN[2]]
IDS = np.array([0, 1, 5, 12], np.int32)

CASES = [
    index("`s[10::-3]`: starts beyond the end, step of more than one", [slice(10, None, -3)], WHOLE[7::-3]),
    index("`s[-12::3]`: starts before the beginning, step of more than one", [slice(-12, None, 3)], WHOLE[1::3]),
    index("`s[None, 1]`", [None, 1], WHOLE[[1, 5, 8]].reshape(1, 6)),
    index("`s[None, 1:3]`", [None, slice(1, 3)], WHOLE[[1, 2, 5, 6, 8, 9]][None]),
    index("`s[..., 1:2, 0]`", [Ellipsis, slice(1, 2), 0], WHOLE[[1, 5, 8], 0]),
    index("`s[5:5, 0]`: no rows, and more dimensions", [slice(5, 5), 0], np.zeros((0, 2), np.float32)),
    index("`s[True]`", [True], "ValueError"),
    index("`s[[1, 0]]`", [[1, 0]], "TypeError"),
    index("`s[np.array([1, 2])]`", [np.array([1, 2])], "ValueError"),
    index("`s[:, [0, 1]]`", [slice(None), [0, 1]], "TypeError"),
    index("`s[1.5]`", [1.5], "TypeError", IndexError),
    index("`s[:, 5]`: out of range", [slice(None), 5], "InvalidArgumentError", IndexError),
    index("`s[mask]` with a mask of another shape", [np.ones(9, bool)], "ValueError", IndexError),
    change("`scatter_add` with shards of 5, 2 and 3 rows", "scatter_add", at(1), "NotImplementedError", plus_one(1), UNEVEN),
    change("`scatter_add` of a row that is not there", "scatter_add", at(10), "InvalidArgumentError", IndexError),
    change("`scatter_add` of row −1", "scatter_add", at(-1), "InvalidArgumentError", IndexError),
    change("`scatter_add` of float64 values to float32", "scatter_add", [at(1)[0], ROW.astype(np.float64)], "ValueError", TypeError),
    change("`scatter_div` of whole numbers by 0", "scatter_div", [at(1)[0], np.zeros((1, 2), np.int32)], "InvalidArgumentError", ValueError, [e.astype(np.int32) for e in EVEN]),
    change("`assign` of a float64 value to float32", "assign", [WHOLE.astype(np.float64)], "ValueError", TypeError),
    change("`assign` of a value with more rows", "assign", [np.zeros((12, 2), np.float32)], [np.zeros((n, 2), np.float32) for n in (4, 3, 3)], ValueError),
    change("`assign` of a value with more columns", "assign", [np.zeros((10, 3), np.float32)], [np.zeros((n, 2), np.float32) for n in (4, 3, 3)], ValueError),
    Case("`assign` of a value with fewer rows", theirs("shards_after", shards=EVEN, method="assign", arguments=[TOO_SHORT]), WRITTEN,
         lambda v: v.assign(TOO_SHORT), ValueError),
    Case("`sparse_read([9, 0, 5])`", theirs("sparse_read", shards=EVEN, indices=np.array([9, 0, 5], np.int32)), WHOLE[[0, 5, 9]],
         lambda v: v.sparse_read([9, 0, 5]), WHOLE[[9, 0, 5]]),
    Case("`sparse_read` with shards of 5, 2 and 3 rows", theirs("sparse_read", shards=UNEVEN, indices=np.array([1], np.int32)), "NotImplementedError",
         lambda _: ShardedVariable(UNEVEN).sparse_read([1]), WHOLE[[1]]),
    Case("`embedding_lookup` by 'mod' in a variable split by 'div', inside a function",
         theirs("lookup_in_function", shards=np.array_split(TABLE, 5), ids=IDS, strategy="mod"), np.array([0, 3, 1, 8], np.float32),
         lambda _: ShardedVariable.split(TABLE, 5).embedding_lookup(IDS, "mod"), ValueError),
    Case("`embedding_lookup` by 'mod' in a variable split by 'mod', outside a function",
         theirs("embedding_lookup", shards=[TABLE[i::5].copy() for i in range(5)], ids=IDS, strategy="mod", max_norm=None, plain=False), TABLE.reshape(-1)[[0, 5, 11, 9]],
         lambda _: ShardedVariable.split(TABLE, 5, partition_strategy="mod").embedding_lookup(IDS, "mod"), TABLE[IDS]),
    Case("`embedding_lookup` of whole numbers with `max_norm`",
         theirs("embedding_lookup", shards=[np.ones((2, 2), np.int32)], ids=IDS[:1], strategy="div", max_norm=1.0, plain=True), "InvalidArgumentError",
         lambda _: ShardedVariable([np.ones((2, 2), np.int32)]).embedding_lookup([0], max_norm=1.0), TypeError),
    Case("`embedding_lookup` with `max_norm=-1.0`",
         theirs("embedding_lookup", shards=[np.ones((2, 2), np.float32)], ids=IDS[:1], strategy="div", max_norm=-1.0, plain=True), np.zeros((1, 2), np.float32),
         lambda v: v.embedding_lookup([0], max_norm=-1.0), ValueError),
    Case("`scatter_max` of NaN to a number",
         theirs("change", shards=[np.ones(1, np.float32)], method="scatter_max", arguments=[np.array([0], np.int32), np.array([np.nan], np.float32)]), [np.ones(1, np.float32)],
         lambda _: ShardedVariable([np.ones(1, np.float32)]).scatter_max([0], [np.nan]).numpy(), np.array([np.nan], np.float32)),
    Case("shards that are scalars", theirs("construct", shards=[np.ones((), np.float32)]), "IndexError",
         lambda _: ShardedVariable([jnp.ones(())]), ValueError),
]  # fmt: skip


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        found = ask()
    except RefusedError as error:
        return error.kind
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_upstream_answers(tensorflow: Oracle, case: Case) -> None:
    found = outcome(lambda: case.upstream(tensorflow))
    if isinstance(case.found, str):
        assert found == case.found
        return
    expected = case.found if isinstance(case.found, list) else [case.found]
    for mine, other in zip(expected, found if isinstance(found, list) else [found], strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.text)
def test_ours(case: Case) -> None:
    variable = ShardedVariable(EVEN, "s")
    if isinstance(case.answer, type):
        with pytest.raises(case.answer):
            case.ours(variable)
        np.testing.assert_array_equal(variable.numpy(), WHOLE)
        return
    np.testing.assert_array_equal(case.ours(variable), case.answer, strict=True)


def test_the_page_lists_these_cases() -> None:
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    listed = [row for row in rows if row not in {"case", "---"}]
    assert set(listed) >= {case.text for case in CASES}
