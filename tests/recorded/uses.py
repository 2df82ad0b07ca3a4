"""All uses that are recorded, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.recorded.comparisons import COMPARISONS
from tests.recorded.conversions import CONVERSIONS
from tests.recorded.deltas import DELTAS
from tests.recorded.identities import IDENTITIES
from tests.recorded.refusals import refusals
from tests.recorded.restores import RESTORES
from tests.recorded.saves import SAVES
from tests.recorded.streams import STREAMS
from tests.recorded.ways import Use

USES: Mapping[str, Use] = {
    **CONVERSIONS, **SAVES, **RESTORES, **STREAMS, **COMPARISONS, **IDENTITIES, **DELTAS, "refusals": refusals,
}  # fmt: skip
