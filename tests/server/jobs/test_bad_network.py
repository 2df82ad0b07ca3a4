"""Two replicas whose clocks differ, each behind a proxy that drops, delays and cuts connections at random."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.jobs.world import World
from tests.server.proxy import Proxy, proxied

LEASE = 3.0
SKEW_SECONDS = 5.0
TROUBLE_SECONDS = 12.0
CONVERSIONS = 4
SLOW = {"compression": "gzip:9", "chunk_bytes": "512KiB", "workers": 1}


@pytest.fixture
def proxies(shared_world: World) -> Iterator[list[Proxy]]:
    with ExitStack() as opened:
        folders = [opened.enter_context(tempfile.TemporaryDirectory(prefix="p-")) for _ in "ab"]
        yield [opened.enter_context(proxied(shared_world.url, Path(f))) for f in folders]


def trouble(proxies: list[Proxy], chance: random.Random) -> None:
    """Makes trouble for some time, and mends everything."""
    deadline = time.monotonic() + TROUBLE_SECONDS
    while time.monotonic() < deadline:
        proxy = chance.choice(proxies)
        kind = chance.choice(["black hole", "delay", "cut"])
        if kind == "black hole":
            proxy.black_hole()
        elif kind == "delay":
            proxy.delay_seconds = chance.uniform(0.1, 2)
        else:
            proxy.cut()
        time.sleep(chance.uniform(0.2, 6))
        proxy.delay_seconds = 0.0
        proxy.mend()
    for proxy in proxies:
        proxy.mend()


@pytest.mark.campaign
def test_every_conversion_ends_once_and_right(shared_world: World, proxies: list[Proxy]) -> None:
    url = shared_world.url
    for proxy, skew in zip(proxies, (0.0, SKEW_SECONDS), strict=True):
        shared_world.url = proxy.url
        shared_world.start(skew_seconds=skew, lease_seconds=LEASE, running=2, attempts=50)
    shared_world.url = url
    jobs = [shared_world.convert(f"out{n}", **SLOW) for n in range(CONVERSIONS)]
    trouble(proxies, random.Random(1))
    ended = {job: shared_world.ended(job) for job in jobs}
    assert {job: (one.state, one.error) for job, one in ended.items()} == dict.fromkeys(
        jobs, ("succeeded", None)
    )
    assert all(shared_world.is_equal(f"out{n}") for n in range(CONVERSIONS))
    after = {job: shared_world.get(job) for job in jobs}
    time.sleep(LEASE)  # what thinks that it still works on one may not change it
    assert {job: shared_world.get(job) for job in jobs} == after == ended
    assert not list(shared_world.data.glob(".*partial"))
