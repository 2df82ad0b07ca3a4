"""Values of torch.save: numbers, text, None and containers of them; other values are named and not read."""

from __future__ import annotations

from typing import Any

import pytest

from reshard.formats.torch.pickle_interpreter import read_pickle
from reshard.formats.torch.saved_values import (
    PLAIN_NAMES,
    Empty,
    PlainValues,
    Unread,
    most_parts,
    plain_values,
)
from tests.dcp_files import rebuilt
from tests.pickled import Call, Global, Ordered, pickled


def values(value: Any) -> PlainValues:
    return plain_values(read_pickle(pickled(value), PLAIN_NAMES, "it"), 1000)


def by_name(value: Any) -> dict[str, Any]:
    found = values(value)
    assert not isinstance(found, Unread)
    return {"/".join(key.key for key in path): each for path, each, _ in found}


@pytest.mark.parametrize("value", [True, 5, -(2**63), 2**64 - 1, 0.5, "text", None])
def test_single_values(value: Any) -> None:
    assert values(value) == (((), value, ()),)


def test_containers_are_branches() -> None:
    tree = {"a": [1, (2.5, "x")], 3: Ordered({"b": None}), "e": [(), [], {}, Ordered({})]}
    assert by_name(tree) == {
        "a/0": 1, "a/1/0": 2.5, "a/1/1": "x", "3/b": None,
        "e/0": Empty("Tuple"), "e/1": Empty("List"), "e/2": Empty("Dict"), "e/3": Empty("Dict"),
    }  # fmt: skip
    found = values(tree)
    assert not isinstance(found, Unread)
    assert [[key.is_sequence for key in path] for path, *_ in found][:2] == [[False, True], [False, True, True]]  # fmt: skip
    assert [tuples for *_, tuples in found][:3] == [(), (1,), (1,)]


def test_complex_numbers() -> None:
    assert values(Call(Global("__builtin__", "complex"), (1.0, -2.0))) == (((), 1 - 2j, ()),)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, rebuilt("int32", (2,), (1,))], "a value with tensors in it"),
        (2**64, "an integer of more than 64 bits"),
        ({"a": -(2**63) - 1}, "an integer of more than 64 bits"),
        (Call(Global("_codecs", "encode"), ("abc", "latin1")), "bytes"),
        ({(1, 2): 3}, "a dict with keys that are no names"),
        ({None: 3}, "a dict with keys that are no names"),
        ({1: 3, "1": 4}, "a dict with a key twice"),
        (Global("torch", "float32"), "the object torch.float32"),
        (Call(Global("torch", "Size"), ((1, 2),)), "an object of torch.Size"),
        (Call(Global("__builtin__", "complex"), (1, 2)), "an object of complex"),
    ],
)
def test_what_is_not_plain_is_told_of(value: Any, kind: str) -> None:
    assert values(value) == Unread(kind)


def test_values_that_contain_themselves_and_ones_that_grow_are_not_walked() -> None:
    circle = read_pickle(b"\x80\x02]q\0h\0a.", {}, "it")
    assert plain_values(circle, 1000) == Unread("a value with too many parts")
    doubled = b"\x80\x02" + b")q\0"
    for number in range(60):
        doubled += b"h" + bytes([number]) + b"\x86q" + bytes([number + 1])
    grown = read_pickle(doubled + b".", {}, "it")
    assert plain_values(grown, most_parts(doubled)) == Unread("a value with too many parts")
