"""All sabotages, by subject."""

from __future__ import annotations

from tests.sabotage.listed import (
    arithmetic,
    arrays,
    conversion,
    deliveries,
    deltas,
    engine,
    formats,
    maps,
    merging,
    storage,
    views,
)
from tests.sabotage.sabotage import Sabotage

SABOTAGES: tuple[Sabotage, ...] = (
    *engine.SABOTAGES,
    *conversion.SABOTAGES,
    *storage.SABOTAGES,
    *formats.SABOTAGES,
    *arrays.SABOTAGES,
    *maps.SABOTAGES,
    *deltas.SABOTAGES,
    *deliveries.SABOTAGES,
    *arithmetic.SABOTAGES,
    *merging.SABOTAGES,
    *views.SABOTAGES,
)
