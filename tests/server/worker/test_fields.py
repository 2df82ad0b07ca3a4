"""Which member of a request an error is about: of conversions, plans and questions."""

from __future__ import annotations

from typing import Any

import pytest
from reshard_server.worker.fields import field_of

from reshard.errors import (
    CorruptError,
    LayoutError,
    MemoryBudgetError,
    NotACheckpointError,
    PlanError,
    ReshardError,
    StorageError,
    TargetExistsError,
)

ONE = {"several": False, "targets": [{"target": "/store/a", "layout": {}}]}
TWO = {"several": True, "targets": [{"target": "/store/a", "mesh": "8"}, {"target": "/store/b"}]}
PLAN = {"question": "plan", "arguments": {"source": "/store/s", "layout": {}}}
PLANS = {
    "question": "plans",
    "arguments": {"targets": [{"target": "/store/a"}, {"target": "/store/b"}]},
}
INSPECT = {"question": "inspect", "arguments": {"path": "/store/s"}}
VERIFY = {"question": "verify", "arguments": {"a": "/store/s", "b": None}}
COMPARE = {"question": "verify", "arguments": {"a": "/store/s", "b": "/store/t"}}


def about(error: ReshardError, target: str | None) -> ReshardError:
    error.target = target
    return error


@pytest.mark.parametrize(
    ("request_", "error", "target", "field"),
    [
        (ONE, MemoryBudgetError("no", 5), None, "/max_memory"),
        (ONE, NotACheckpointError("no"), None, "/source"),
        (ONE, TargetExistsError("no"), None, "/target"),
        (ONE, LayoutError("no"), None, "/layout"),
        (ONE, PlanError("no"), None, None),
        (ONE, StorageError("disk full"), None, None),
        (TWO, TargetExistsError("no"), "/store/b", "/targets/1/target"),
        (TWO, TargetExistsError("no"), None, None),
        (TWO, LayoutError("no"), "/store/a", "/targets/0/mesh"),
        (TWO, LayoutError("no"), "/store/b", "/targets/1"),
        (PLAN, LayoutError("no"), None, "/layout"),
        (PLAN, CorruptError("no"), None, "/source"),
        (PLANS, TargetExistsError("no"), "/store/b", "/targets/1/target"),
        (INSPECT, CorruptError("no"), None, "/checkpoint"),
        (VERIFY, CorruptError("no"), None, "/checkpoint"),
        (COMPARE, CorruptError("no"), None, None),
    ],
)
def test_the_member(
    request_: dict[str, Any], error: ReshardError, target: str | None, field: str | None
) -> None:
    assert field_of(about(error, target), request_) == field
