"""Rules that are changed at random make tensors, or are refused by a ReshardError; no other exception leaves them."""

from __future__ import annotations

import contextlib

from hypothesis import given

from reshard.errors import ReshardError
from tests.maps.bent_rules import BentRule, bent_rules
from tests.maps.by_numpy import filled, mapped

MOST_BYTES = 1 << 20


@given(bent_rules())
def test_a_bent_rule_makes_tensors_or_is_refused(bent: BentRule) -> None:
    with contextlib.suppress(ReshardError):
        made = mapped(bent.map, bent.sources, bent.sizes, reverse=bent.reverse)
        if sum(one.spec.nbytes for one in made.tensors) < MOST_BYTES:
            assert [filled(one, bent.sources).shape for one in made.tensors]
