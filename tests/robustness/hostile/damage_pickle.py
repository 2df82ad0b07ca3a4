"""Damage to a pickle that keeps it one: numbers, texts and names replaced, steps repeated, swapped or left out."""

from __future__ import annotations

import pickletools
import random

from tests.pickled import Global, pickled
from tests.robustness.hostile.damage_json import NAMES

NUMBERS = (0, 1, -1, 2, 7, 255, 2**31, 2**32, 2**53, 2**60, 2**61 - 1, 2**62, 2**63, 2**64, -(2**63), 10**30)  # fmt: skip
OBJECTS = (
    None, True, 0.5, (), [], {}, "w", (0, 0), Global("torch", "Size"), Global("torch", "float32"), Global("os", "system"),
)  # fmt: skip


def damage_pickle(rng: random.Random, data: bytes) -> bytes:
    """The pickle with one step changed."""
    steps = _steps(data)
    at = rng.randrange(1, len(steps) - 1)
    how = rng.randrange(8)
    if how < 4:
        value = [at for at, step in enumerate(steps) if step[:1] in (b"K", b"M", b"J", b"\x8a", b"X")]  # fmt: skip
        at = rng.choice(value)
        steps[at] = _other(rng, steps[at])
    elif how == 4:
        steps[at] = pickled(rng.choice(OBJECTS))[2:-1]
    elif how == 5:
        steps[at:at] = [steps[rng.randrange(1, len(steps) - 1)]]
    elif how == 6:
        del steps[at]
    else:
        other = rng.randrange(1, len(steps) - 1)
        steps[at], steps[other] = steps[other], steps[at]
    return b"".join(steps)


def _steps(data: bytes) -> list[bytes]:
    """Each opcode with its argument."""
    starts = [position for _, _, position in pickletools.genops(data) if position is not None]
    return [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]


def _other(rng: random.Random, step: bytes) -> bytes:
    """Another value of the same kind, or, now and then, of another."""
    if (step[:1] == b"X") != (rng.random() < 0.1):
        names = [name for name in NAMES if "\ud800" not in name]
        return pickled(rng.choice(names))[2:-1]
    return pickled(rng.choice(NUMBERS))[2:-1]
