"""Names with two indices in one number: which indices a name has, and how much is computed to tell."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from reshard.maps.expression import Expression, Number
from reshard.maps.template import parse_template


@pytest.mark.parametrize(
    ("text", "sizes", "number", "found"),
    [
        ("{6*i+j}", {}, 131, {"i": 21, "j": 5}),
        ("{j+6*i}", {}, 5, {"i": 0, "j": 5}),
        ("{6*i+j+2}", {}, 9, {"i": 1, "j": 1}),
        ("{6*i+j+2}", {}, 1, None),
        ("{6*i+j-1}", {}, 5, {"i": 1, "j": 0}),
        ("{n*i+j+first}", {"n": 4, "first": 3}, 13, {"i": 2, "j": 2}),
        ("{6*i+j+1/2}", {}, 7, None),
        ("{6*i+j}", {"i": 2}, 12, {"j": 0}),
    ],
)
def test_the_two_indices_of_a_number(
    text: str, sizes: Mapping[str, int], number: int, found: Mapping[str, int] | None
) -> None:
    template = parse_template(f"layers.{text}.w")
    assert template.match(f"layers.{number}.w", sizes) == found
    if found is not None:
        assert template.name({**sizes, **found}) == f"layers.{number}.w"


@pytest.mark.parametrize("text", ["{i*j}", "{i+j}", "{2*i+3*j}", "{i+j+k}"])
def test_indices_that_do_not_follow_from_a_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"must have one index, or two as in \{6\*i\+j\}"):
        parse_template(text).match("7", {})


def test_what_a_hole_counts_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    value = Expression.value

    def counting(self: Expression, values: Mapping[str, int]) -> Number:
        nonlocal count
        count += 1
        return value(self, values)

    monkeypatch.setattr(Expression, "value", counting)
    template = parse_template("tested.{7*i+j}.w")
    for number in range(200):
        assert template.match(f"tested.{number}.w", {}) == {"i": number // 7, "j": number % 7}
    assert count <= 200 + 9
