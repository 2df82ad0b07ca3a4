"""A claim that was won, although the answer to COMMIT was lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from reshard_server.db.conversions import claims
from reshard_server.db.conversions.claims import Claim
from reshard_server.jobs.queue import JobQueue
from reshard_server.settings import Settings
from reshard_server.worker.children import Children

from tests.server.jobs.replica import OneRoot
from tests.server.jobs.world import World

claim_for_good = claims.claim_next


@pytest.mark.parametrize("arrives_in_call", [1, 2])
def test_a_claim_whose_commit_nobody_was_told_of_is_queued_again(
    small_world: World,
    monkeypatch: pytest.MonkeyPatch,
    arrives_in_call: int,
    children: Children,
) -> None:
    """The connection is cut during COMMIT, which reaches the database at once, or later."""
    job = small_world.convert()
    texts: list[str] = []

    def claim_next(db: sa.Engine, executor: str, text: str, *more: Any) -> Claim | None:
        texts.append(text)
        if len(texts) == arrives_in_call:
            assert claim_for_good(db, executor, texts[0], *more) is not None
        if len(texts) == 1:
            raise sa.exc.OperationalError("COMMIT", None, OSError("the connection was cut"))
        if len(texts) == arrives_in_call:
            return None
        return claim_for_good(db, executor, text, *more)

    monkeypatch.setattr(claims, "claim_next", claim_next)
    settings = Settings(state=small_world.folder, roots={"data": small_world.data}, lease_seconds=2)
    queue = JobQueue(settings, small_world.db, OneRoot(Path(small_world.data)), children)
    queue.launch()
    try:
        assert small_world.ended(job).state == "succeeded"
    finally:
        queue.close()
    assert len(texts) > arrives_in_call
