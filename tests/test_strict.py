"""Strict reading names the first wrong part, the type that it should have, and the description of that type."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import UNSET, Meta, Struct, UnsetType, field

from reshard.strict import WrongPartError, keys_of, strict

Size = Annotated[int, Meta(ge=0)]
Sizes = Annotated[tuple[Size, ...], Meta(description="sizes")]
Name = Annotated[str, Meta(min_length=1, description="a name")]


class Leaf(Struct, forbid_unknown_fields=True):
    name: Name
    sizes: Sizes = ()
    names: Annotated[Name | list[Name] | None, Meta(description="names")] = None


class Tree(Struct):
    leaves: Annotated[list[Leaf], Meta(description="a list of leaves")]
    pairs: dict[str, tuple[str, Size]] = {}
    count: Size | UnsetType = field(name="from", default=UNSET)


def test_a_value_becomes_a_record() -> None:
    found = strict({"leaves": [{"name": "a", "sizes": [1, 2]}], "from": 3, "more": 4}, Tree)
    assert found == Tree([Leaf("a", (1, 2))], count=3)
    assert keys_of(Tree) == ("leaves", "pairs", "from")
    assert keys_of(int) == ()


LEAF = {"name": "a"}


@pytest.mark.parametrize(
    ("value", "steps", "part", "kind", "expected", "problem"),
    [
        ([], (), [], Tree, "", "wrong"),
        ({}, ("leaves",), None, list[Leaf], "a list of leaves", "missing"),
        ({"leaves": {}}, ("leaves",), {}, list[Leaf], "a list of leaves", "wrong"),
        ({"leaves": [LEAF, 5]}, ("leaves", 1), 5, Leaf, "", "wrong"),
        ({"leaves": [{"name": ""}]}, ("leaves", 0, "name"), "", str, "a name", "wrong"),
        ({"leaves": [{}]}, ("leaves", 0, "name"), None, str, "a name", "missing"),
        ({"leaves": [LEAF | {"x": 1}]}, ("leaves", 0, "x"), 1, Leaf, "", "unknown"),
        ({"leaves": [LEAF | {"sizes": [1, -1]}]}, ("leaves", 0, "sizes"), [1, -1], tuple[Size, ...], "sizes", "wrong"),
        ({"leaves": [LEAF | {"sizes": [True]}]}, ("leaves", 0, "sizes"), [True], tuple[Size, ...], "sizes", "wrong"),
        ({"leaves": [LEAF | {"names": ["b", ""]}]}, ("leaves", 0, "names", 1), "", str, "a name", "wrong"),
        ({"leaves": [LEAF | {"names": 7}]}, ("leaves", 0, "names"), 7, Any, "names", "wrong"),
        ({"leaves": [], "pairs": {"a": ["b", 1], "c": ["d", -1]}}, ("pairs", "c", 1), -1, int, "", "wrong"),
        ({"leaves": [], "pairs": {"a": ["b"]}}, ("pairs", "a"), ["b"], tuple[str, Size], "", "wrong"),
        ({"leaves": [], "from": 1.0}, ("from",), 1.0, int, "", "wrong"),
        ({"leaves": [], "from": None}, ("from",), None, int, "", "wrong"),
    ],
)  # fmt: skip
def test_the_first_wrong_part_is_named(
    value: Any, steps: tuple[Any, ...], part: Any, kind: Any, expected: str, problem: str
) -> None:
    with pytest.raises(WrongPartError) as error:
        strict(value, Tree)
    found = error.value
    assert (found.steps, found.part, found.kind) == (steps, part, kind)
    assert (found.expected, found.problem) == (expected, problem)
