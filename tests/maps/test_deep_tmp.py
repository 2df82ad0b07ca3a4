"""Random rules make what einops and numpy make, and give it back."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from tests.maps.by_numpy import made_by
from tests.maps.random_rules import Arrays, RandomRule, rules


def assert_same(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes(), name


@settings(deadline=None, max_examples=6000, suppress_health_check=list(HealthCheck))
@given(rules())
def test_a_rule_makes_what_einops_makes_and_gives_it_back(one: RandomRule) -> None:
    text = {"map": [one.rule]}
    assert_same(made_by(text, one.sources, one.sizes), one.targets)
    if one.is_exact:
        assert_same(made_by(text, one.targets, one.sizes, reverse=True), one.sources)
