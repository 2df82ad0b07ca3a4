"""Tasks on other hosts see whether their run still has its target."""

from __future__ import annotations

from typing import Any

import pytest

from reshard.errors import TargetBusyError
from reshard.storage.buckets import targets as module
from reshard.storage.location import locate
from reshard.storage.targets import check_lease, lock_target


def test_a_run_has_its_lease_until_it_ends(s3_bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module._SEEN.clear()
    monkeypatch.setattr(module, "BEAT_S", 0.0)  # so that every call asks
    target = locate(f"{s3_bucket.url}/t")
    with lock_target(target) as transaction:
        elsewhere = transaction.open_to_tasks()
        assert elsewhere.attempts == ""
        assert elsewhere.lease is not None
        check_lease(*elsewhere.lease)
        with pytest.raises(
            TargetBusyError, match="the run that began this task is over: it has s3://"
        ):
            check_lease(elsewhere.lease[0], "another run")
    with pytest.raises(TargetBusyError, match="no longer; nothing was written"):
        check_lease(*elsewhere.lease)


def test_an_answer_lasts_a_while(s3_bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module._SEEN.clear()
    monkeypatch.setattr(module, "BEAT_S", 1e9)  # longer than any machine takes for this
    with lock_target(locate(f"{s3_bucket.url}/t")) as transaction:
        lease = transaction.open_to_tasks().lease
        assert lease is not None
        before = s3_bucket.emulator.log.count("get")
        for _ in range(5):
            check_lease(*lease)
        assert s3_bucket.emulator.log.count("get") - before == 1
