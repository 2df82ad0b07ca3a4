"""The time of a conversion in parts on many hosts, beside the ideal: ``python -m benchmarks.hosts.simulate``.

The plan and its parts are the real ones, of a checkpoint in a bucket that exists as metadata only. A host does ``--at-once`` parts at the
same time, each with its share of the workers, and takes the next when one is done. A worker starts once (Ray, Dask, a service), or with
each part (``--programs``: Slurm, Kubernetes). A part plans, and moves its units; at the end one process commits. No byte moves: a task
takes a measured time. The ideal is that of the tasks alone, spread evenly over all workers.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.hosts.model import SERVING, STATES, model
from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.target_content import form_of, make_target
from reshard.engine.books import Books, TargetRun
from reshard.engine.output import TargetOutput
from reshard.engine.part_units import PartUnits
from reshard.planning.planner import make_multi_plan
from reshard.planning.plans import Price
from reshard.planning.target_layouts import layout_of
from reshard.storage.location import locate
from reshard.storage.parts import Part

TARGET = locate("gs://serving/run/100")
WORKERS, MEMORY_PER_WORKER = 8, 2 << 30
SOURCES = {"1.3 TB": (1.0, ["params"], 32), "70 TB": (2.75, list(STATES), 64)}
"""Checkpoints: the width of the layers, the states, and the side of the mesh of training."""

BYTES_PER_S, SECONDS_PER_TASK, SPREAD = 593e6, 0.0035, 0.10
"""Decoded bytes that a worker moves in a second from zstd to raw chunks, the time of a task besides, and the standard deviation of the logarithm
of its times (measured: medians of five runs on two cores of a virtual machine)."""

START_S = 0.55
"""A program besides its plan and its tasks (measured: processor time of ``convert --part 1/1000`` of 0.7 GB, of which imports take 0.45 s)."""

COMMIT_S_PER_TENSOR, COMMIT_S_PER_CHUNK = 0.00035, 0.0001
"""The commit besides its start (measured: processor time for 5,000 tensors of one chunk, and for 16 of 512 chunks, on a disk)."""

CHANCE, SLOWNESS, RUNS = 0.01, 5.0, 20
"""The share of parts that fail somewhere, and of those that are slow; runs with other chances, of which the mean is shown."""


class Trouble(Struct, frozen=True):
    """Chances that a part fails or is slow; ``resumes``: a part that failed keeps what it did."""

    failures: float = 0.0
    resumes: bool = False
    slow: float = 0.0


TROUBLES = {
    "none": Trouble(),
    "fail, resume": Trouble(CHANCE, resumes=True),
    "fail, again": Trouble(CHANCE),
    "slow": Trouble(slow=CHANCE),
}


class Work:
    """A conversion from training to serving that is planned, for hosts of ``WORKERS`` workers; ``plan_s`` is measured."""

    def __init__(self, width: float, states: Sequence[str], side: int) -> None:
        self.reader, began = model(width, states, side), time.process_time()
        memory, layout = WORKERS * MEMORY_PER_WORKER, layout_of(SERVING, None)
        options = CheckedTarget(max_memory=memory, workers=WORKERS, layout=layout)
        traits = replace(TARGET.traits, by_hosts=True)
        target = make_target(self.reader, options, form_of(self.reader, options, traits), traits)
        self.plan = make_multi_plan([target.wanted_pieces], memory, WORKERS)
        files = target.checkpoint.form.plan(target.checkpoint)
        output = TargetOutput(files, {}, str(TARGET))
        self.target = TargetRun(output, Books(self.plan.plans[0], output))
        chunks = sum(tensor.target.spec.storage.count for tensor in self.plan.plans[0].tensors)
        self.commit_s = COMMIT_S_PER_TENSOR * len(self.plan.plans[0].tensors)
        self.commit_s += COMMIT_S_PER_CHUNK * chunks
        self.plan_s = time.process_time() - began


class Parts:
    """So many parts of a plan, each moved by so many workers.

    Attributes:
        took: seconds in which its workers move each.
        all_s: seconds of all tasks on one worker.
        twice: bytes that several parts read: what several tasks read, as far as these are of different parts.
        cut_s: measured: the cut, in each part.
    """

    def __init__(self, work: Work, count: int, workers: int, chance: random.Random) -> None:
        began = time.process_time()
        units = PartUnits(work.plan, [work.reader], [work.target], count)
        self.cut_s, self.all_s, self.twice = time.process_time() - began, 0.0, 0.0
        prices = [tensor.price for tensor in work.plan.plans[0].tensors]
        self.took, parts_of = list[float](), [0] * len(prices)
        for number in range(1, count + 1):
            own = [tensor for _, tensor, _ in units.units(Part(number, count))]
            tasks = sorted((seconds(prices[tensor], chance) for tensor in own), reverse=True)
            self.all_s += sum(tasks)
            free_at = [0.0] * workers
            for took_s in tasks:
                heapq.heapreplace(free_at, free_at[0] + took_s)
            self.took.append(max(free_at))
            for tensor in set(own):
                parts_of[tensor] += 1
        for price, parts in zip(prices, parts_of, strict=True):
            again = price.decoded_bytes - price.source_bytes
            self.twice += again * (parts - 1) / max(1, price.tasks - 1)


def seconds(price: Price, chance: random.Random) -> float:
    """The time of a task of a tensor."""
    mean = SECONDS_PER_TASK + price.decoded_bytes / price.tasks / BYTES_PER_S
    return mean * chance.lognormvariate(-(SPREAD**2) / 2, SPREAD)


def carried_out(
    took: Sequence[float],
    starts_s: tuple[float, float],
    at_once: int,
    trouble: Trouble,
    chance: random.Random,
) -> float:
    """Seconds until all parts are done, ``at_once`` of them at the same time. A part that fails is taken again after the others.

    ``starts_s``: of a worker, and of each part.
    """
    begin_s, start_s = starts_s
    left, free_at = deque(took), [begin_s] * at_once
    while left:
        took_s = left.popleft()
        done = chance.random() if chance.random() < trouble.failures else 1.0
        if done < 1.0:
            left.append(took_s * (1.0 - done) if trouble.resumes else took_s)
        pace = SLOWNESS if chance.random() < trouble.slow else 1.0
        heapq.heapreplace(free_at, free_at[0] + (start_s + took_s * done) * pace)
    return max(free_at)


def row(work: Work, hosts: int, a_host: int, at_once: int, *, programs: bool) -> dict[str, float]:
    """A row of the table; the times of all troubles, with the commit, as multiples of the ideal."""
    chance = random.Random(hosts)  # noqa: S311 - the spread of simulated times
    parts = Parts(work, hosts * a_host, WORKERS // at_once, chance)
    ideal_s, own_s = parts.all_s / hosts / WORKERS, work.plan_s + parts.cut_s
    starts_s = (0.0, START_S + own_s) if programs else (START_S, own_s)
    commit_s = sum(starts_s) + work.commit_s
    found = {"hosts": hosts, "parts a host": a_host, "ideal s": ideal_s}
    for name, trouble in TROUBLES.items():
        given = (parts.took, starts_s, hosts * at_once, trouble, chance)
        moved_s = statistics.mean(carried_out(*given) for _ in range(RUNS))
        found[name] = (moved_s + commit_s) / ideal_s
    found["largest / mean part"] = max(parts.took) / statistics.mean(parts.took)
    return found | {
        "read twice GB": parts.twice / 1e9,
        "start s": starts_s[1],
        "commit s": commit_s,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="16,128,1024")
    parser.add_argument("--parts", default="4,6,8", help="of each host")
    parser.add_argument("--at-once", type=int, default=1, help="of these at the same time")
    parser.add_argument("--programs", action="store_true", help="each part is a program of its own")
    asked, rows = parser.parse_args(), list[dict[str, float]]()
    for name, source in SOURCES.items():
        work = Work(*source)
        for hosts, a_host in product(*(map(int, n.split(",")) for n in (asked.hosts, asked.parts))):
            rows.append(row(work, hosts, a_host, asked.at_once, programs=asked.programs))
            if len(rows) == 1:
                print(f"| source | {' | '.join(rows[0])} |\n|---|{'---:|' * len(rows[0])}")
            cells = (f"{n:,}" if isinstance(n, int) else f"{n:.2f}" for n in rows[-1].values())
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
