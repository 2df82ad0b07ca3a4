"""Does what a worker does for a run of a schedule, in this process."""

from __future__ import annotations

from typing import Any

from reshard_server.db.conversions import claims
from reshard_server.jobs.conversion_job import make_child_request
from reshard_server.schemas.conversion import OneDelta
from reshard_server.worker.convert import ProgressThrottle, convert_all, publish_version

from tests.server.claimed import claimed
from tests.server.schedules.bench import Bench


def carry_out(bench: Bench, key: str) -> dict[str, Any]:
    """Does what the worker does for the conversion of a run, and records its end."""
    found = bench.conversion(key)
    claim = claimed(bench.db, found.id)
    request = make_child_request(bench.db, bench.one.settings, bench.one.roots, found, begun=False)
    work = publish_version if isinstance(found.request, OneDelta) else convert_all
    made = work(request, ProgressThrottle(lambda _: None))
    assert claims.finish(bench.db, claim, "succeeded", result=made["reports"])
    return dict(made["reports"][0])
