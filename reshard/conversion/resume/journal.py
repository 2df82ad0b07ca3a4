"""The journal: the units that a run has filled, so that another run can resume there.

The records of a target's transaction (``storage.transaction``), each a JSON list of results (``engine.task.Result``), written
after their last byte was handed to the store. Locally nothing is synced: after a reboot nothing of it is trusted before it is
read again (``resume.check_chunks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from reshard.conversion.resume.identity import Identity
from reshard.engine.books import DoneUnits
from reshard.engine.task import Result
from reshard.planning.tensor_plan import Plan, TensorPlan

_DECODER = msgspec.json.Decoder(list[Result])


def record_of(results: Sequence[Result]) -> str:
    """The record of units whose bytes were all handed to the store."""
    return msgspec.json.encode(list(results)).decode()


def identity_left(left: Mapping[str, Any] | None) -> Identity | None:
    """The identity that a transaction was left by; None if there is none, or it cannot be read."""
    try:
        known = Identity(**(left or {}))
        texts = [known.source, known.files, known.plan, *known.settings.values()]
    except (TypeError, AttributeError):
        return None
    return known if all(isinstance(text, str) for text in texts) else None


def read_results(records: Iterable[bytes], plan: Plan) -> Iterator[Result]:
    """The units that are recorded, each once, up to the first record that makes no sense."""
    seen = DoneUnits(plan)
    for record in records:
        try:
            results = _DECODER.decode(record)
        except (msgspec.DecodeError, RecursionError):
            return
        if not all(_is_planned(result, plan.tensors) for result in results):
            return
        for result in results:
            if not seen.has(result.tensor, result.unit):
                seen.add(result.tensor, result.unit)
                yield result


def _is_planned(result: Result, tensors: Sequence[TensorPlan]) -> bool:
    """Whether the plan has the unit, its pieces and its chunks."""
    if result.tensor >= len(tensors):
        return False
    tensor = tensors[result.tensor]
    try:
        fill, _ = tensor.fill_at(result.unit)
    except IndexError:
        return False
    parts = tensor.target.spec.storage.parts
    return len(result.sums) == len(fill.pieces) and all(
        len(chunk.index) == len(parts)
        and all(i < n for i, n in zip(chunk.index, parts, strict=True))
        for chunk in result.chunks
    )
