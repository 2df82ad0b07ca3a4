"""Random rules make what einops and numpy make, and give it back."""

from __future__ import annotations

from hypothesis import given

from tests.maps.by_numpy import assert_same_arrays, made_by
from tests.maps.random_rules import RandomRule, rules


@given(rules())
def test_a_rule_makes_what_einops_makes_and_gives_it_back(one: RandomRule) -> None:
    text = {"map": [one.rule]}
    assert_same_arrays(made_by(text, one.sources, one.given), one.targets)
    if one.is_exact:
        assert_same_arrays(
            made_by(text, one.targets, one.given_backwards, reverse=True), one.sources
        )
