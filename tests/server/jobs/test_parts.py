"""Conversions in parts on hosts that share the records, and on one host: killed, cut off, cancelled, retried."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from reshard_server.db.conversions import conversions

import reshard
from tests.campaigns import campaign
from tests.server.jobs.hosts import Hosts, wait_until
from tests.server.jobs.world import World
from tests.server.live import PATIENCE_SECONDS, environment
from tests.server.postgres import Postgres, start_postgres
from tests.server.proxy import proxied

ANY_SIZE = [(4, 4), *campaign((40, 8))]
"""Conversions, and the parts of each."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Hosts on SQLite, of which only one may work at a time."""
    made = Hosts(tmp_path)
    yield made
    made.close()


@pytest.fixture
def shared_hosts(tmp_path: Path, postgres: Postgres) -> Iterator[Hosts]:
    """Hosts on PostgreSQL."""
    made = Hosts(tmp_path, postgres.new_database())
    yield made
    made.close()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("jobs", "parts"), ANY_SIZE)
def test_hosts_that_die_and_a_database_that_restarts_do_no_harm(
    tmp_path: Path, sockets: Path, jobs: int, parts: int
) -> None:
    """A server and two that work, whose connections are cut; each is killed some time, and the database starts anew."""
    chance = random.Random(jobs)
    with ExitStack() as opened:
        postgres: Postgres = start_postgres()
        opened.callback(lambda: postgres.end())
        made = Hosts(tmp_path, postgres.new_database())
        opened.callback(made.close)
        proxy = opened.enter_context(proxied(made.url, sockets))
        more = {"running_per_token": 99, "running": 3, "url": proxy.url}
        kinds = ["serve", "work", "work"]
        running = [made.start(kind, **more) for kind in kinds]
        targets = [f"out{number}" for number in range(jobs)]
        ids = [made.convert(target, parts=parts) for target in targets]
        for blow in range(max(3, jobs // 5)):
            time.sleep(chance.uniform(0.2, 1.0))
            which = blow % 3
            running[which].kill()
            running[which].wait(PATIENCE_SECONDS)
            if blow % 3 == 1:
                proxy.cut()
            if blow % 3 == 2:
                postgres = postgres.restarted()
            running[which] = made.start(kinds[which], **more)
        made.assert_done_once(ids, targets)
        hosts_told = {part.host for job in ids for part in made.read(job).parts or ()}
        assert hosts_told == {os.uname().nodename}


@pytest.mark.parametrize(("jobs", "parts"), [(2, 4), *campaign((12, 8))])
def test_one_host_on_sqlite_that_is_killed_does_no_harm(
    hosts: Hosts, jobs: int, parts: int
) -> None:
    targets = [f"out{number}" for number in range(jobs)]
    ids = [hosts.convert(target, parts=parts) for target in targets]
    for _ in range(jobs // 2):
        host = hosts.start(running=3, running_per_token=99)
        time.sleep(0.5)
        host.kill()
        host.wait(PATIENCE_SECONDS)
    hosts.start(running=3, running_per_token=99)
    hosts.assert_done_once(ids, targets)
    for job in ids:
        moved = [part.progress.moved_bytes for part in hosts.read(job).parts or () if part.progress]
        assert (len(moved), sum(moved)) == (parts, 16 * 1024)


def test_a_host_with_a_label_takes_what_asks_for_it_and_ends_in_order(shared_hosts: Hosts) -> None:
    shared_hosts.start("serve")
    job = shared_hosts.convert("out", parts=2, host_labels={"disk": "nvme"})
    wait_until(lambda: shared_hosts.read(job).waiting_for)
    assert shared_hosts.read(job).state == "queued"
    host = shared_hosts.start(labels='{"disk": "nvme"}')
    shared_hosts.assert_done_once([job], ["out"])
    assert shared_hosts.read(job).read_bytes
    host.terminate()
    assert host.wait(PATIENCE_SECONDS) == 0


def test_a_second_host_on_one_state_folder_is_refused(hosts: Hosts) -> None:
    hosts.start("serve")
    words = [sys.executable, "-m", "reshard", "work", "--state", str(hosts.state)]
    refused = subprocess.run(
        words, env=environment(), cwd=hosts.folder, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "works on the state folder" in refused.stderr
    assert "let both share a Postgres (database_url)" in refused.stderr


def one_stopped(world: World) -> str:
    """A conversion of two parts, one of which succeeded and one is held up; its id."""
    job = world.held(parts=2)
    world.wait_for(job, lambda c: c.part_counts == {"succeeded": 1, "running": 1})
    return job


def test_a_part_whose_process_dies_fails_the_conversion_and_only_it_is_done_again(
    world: World,
) -> None:
    replica = world.start(running=2, attempts=1)
    job = one_stopped(world)
    [child] = replica.children()
    os.kill(child, signal.SIGKILL)
    found = world.ended(job)
    assert found.state == "failed" and found.error is not None
    [failed] = [part for part in found.parts or () if part.state == "failed"]
    said = f"part {failed.number} of 2 on the host {os.uname().nodename}: the process of the conversion was killed by SIGKILL"
    assert found.error["detail"].startswith(said)
    [before] = [part for part in found.parts or () if part.state == "succeeded"]
    world.let_go()
    assert conversions.requeue(world.db, job)
    found = world.ended(job)
    assert found.state == "succeeded", found.error
    assert before in (found.parts or ())
    assert world.is_equal()


def test_all_parts_of_a_cancelled_conversion_end_soon(world: World) -> None:
    world.start(running=2)
    job = one_stopped(world)
    other = world.convert("other", parts=2)
    conversions.request_cancel(world.db, other)
    begun = time.monotonic()
    conversions.request_cancel(world.db, job)
    assert world.ended(job).state == "cancelled"
    assert time.monotonic() - begun < 10
    assert world.ended(other).state == "cancelled"
    assert not (world.data / "out").exists()
    world.let_go()
    assert conversions.requeue(world.db, job)
    assert world.ended(job).state == "succeeded"


def test_a_source_that_changes_fails_and_a_retry_begins_anew(world: World) -> None:
    source = world.data / "changing"
    reshard.save(source, {f"w{n}": np.full((512, 512), n, np.float32) for n in range(4)})
    (world.data / "source").unlink()
    (world.data / "source").symlink_to(source)
    world.start(running=2)
    job = world.held(parts=2)
    reshard.save(
        source, {f"w{n}": np.full((512, 512), 9, np.float32) for n in range(4)}, overwrite=True
    )
    world.let_go()
    found = world.ended(job)
    assert found.state == "failed" and found.error is not None
    assert "changed while it was read" in found.error["detail"]
    assert conversions.requeue(world.db, job)
    found = world.ended(job)
    assert found.state == "succeeded", found.error
    assert world.is_equal()
