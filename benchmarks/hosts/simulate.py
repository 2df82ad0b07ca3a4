"""What one conversion on many hosts costs its coordinator: planner, tasks, scheduler, sums and journal are the real ones.

``python -m benchmarks.hosts.simulate --hosts 1024 --workers 8 --parameters 1e12 [--json]`` converts a model in a bucket from
the mesh of its training to one for serving. Hosts are simulated: no byte moves, and each task takes a measured time
(``task_times``), but in virtual time. What an executor's own messages cost is not in it, nor requests to the bucket.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from benchmarks.hosts.coordinator import Coordinator
from benchmarks.hosts.model import Model, ModelReader
from benchmarks.hosts.simulated_hosts import Batch, SimulatedHosts
from reshard.conversion.check_target import CheckedTarget
from reshard.conversion.run import TotalProgress
from reshard.conversion.target_content import form_of, make_target
from reshard.engine.books import Books, DoneUnits, TargetRun
from reshard.engine.executor import opened
from reshard.engine.journal import record_of
from reshard.engine.output import TargetOutput
from reshard.engine.run import run_batches
from reshard.engine.task import Result
from reshard.engine.task_stream import task_batches
from reshard.formats.base import TargetCheckpoint
from reshard.formats.contents import Extent
from reshard.planning.planner import make_multi_plan
from reshard.planning.plans import MultiPlan
from reshard.planning.target_layouts import layout_of
from reshard.storage.location import locate
from reshard.storage.transaction import RemoteAccess

TARGET = "gs://serving/run/100"
MEMORY_PER_WORKER = 2 << 30


class Figures(Struct, frozen=True):
    """What was counted.

    Attributes:
        workers: of all hosts.
        parameters: of the model that was made, nearly as many as were asked for.
        chunks: of source and target.
        planning_s: processor time.
        cpu_s: the coordinator's processor time by step.
        ms_per_batch, ms_per_task: processor time of all steps.
        virtual_s: until the last result is recorded; a second of the coordinator's processor time is a second of it.
        utilisation: share of the workers' time in which they work; ``best_utilisation`` if the coordinator took no time.
        batch_bytes, task_bytes: pickled, on average; ``largest_batch_bytes`` of the largest batch.
        result_bytes: of the result of a task, on average.
        messages: batches and results.
        peak_mib: resident memory; ``base_mib`` before planning.
    """

    hosts: int
    workers: int
    parameters: int
    tensors: int
    chunks: int
    tasks: int
    batches: int
    planning_s: float
    cpu_s: dict[str, float]
    ms_per_batch: float
    ms_per_task: float
    virtual_s: float
    batches_per_s: float
    utilisation: float
    best_utilisation: float
    batch_bytes: float
    largest_batch_bytes: int
    task_bytes: float
    result_bytes: float
    journal_bytes: int
    messages: int
    peak_mib: float
    base_mib: float


class Planned(Struct, frozen=True):
    """A conversion that can begin.

    Attributes:
        seconds: processor time that planning took.
    """

    reader: ModelReader
    plan: MultiPlan
    output: TargetOutput
    seconds: float


class _Sums(Books):
    """Adds up, and counts how long that takes."""

    coordinator: Coordinator

    def add(self, result: Result) -> list[Extent]:
        with self.coordinator.step("adding up"):
            return super().add(result)


class Run:
    """One conversion by simulated hosts, with somebody who watches its progress."""

    def __init__(self, planned: Planned, hosts: int) -> None:
        (plan,) = planned.plan.plans
        self._planned = planned
        self.sums = _Sums(plan, planned.output, TotalProgress(lambda _: None).of(0))
        self.journal_bytes = 0
        self._target = TargetRun(planned.output, self.sums, DoneUnits(plan), self._record)
        self.coordinator = self.sums.coordinator = Coordinator()
        self.executor = SimulatedHosts(hosts, self.coordinator)

    def carry_out(self) -> None:
        """Does every task; VerificationError where an element is not done exactly once."""
        plan, workers = self._planned.plan, self._planned.plan.workers
        at_once = workers * self.executor.hosts
        tasks = task_batches(
            plan, [self._planned.reader], [self._target], workers_elsewhere=at_once
        )
        with opened(self.executor, plan.max_memory, workers, 0):
            run_batches(self._made(tasks), [self._target], plan.max_memory, workers, self.executor)
        self.sums.results()

    def _made(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            with self.coordinator.step("making tasks"):
                batch = next(batches, None)
            if batch is None:
                return
            self.executor.end_next()
            yield batch

    def _record(self, results: Sequence[Result]) -> None:
        with self.coordinator.step("journal"):
            self.journal_bytes += len(record_of(results)) + 1
        self.executor.end_next()


def planned(model: Model, workers: int) -> Planned:
    """The conversion of a model, by so many workers on each host."""
    reader, traits, began_s = ModelReader(model), locate(TARGET).traits, time.process_time()
    memory, layout = workers * MEMORY_PER_WORKER, layout_of(model.serving_layout, None)
    options = CheckedTarget(max_memory=memory, workers=workers, layout=layout)
    form = form_of(reader, options, traits)
    target = make_target(reader, options, form, replace(traits, by_hosts=True))
    plan = make_multi_plan([target.wanted_pieces], memory, workers)
    took_s = time.process_time() - began_s
    return Planned(reader, plan, _output(target.checkpoint), took_s)


def _output(checkpoint: TargetCheckpoint) -> TargetOutput:
    encodings = {name: tensor.encoding for name, tensor in checkpoint.tensors.items()}
    files = checkpoint.form.plan(checkpoint)
    elsewhere = RemoteAccess("", ("host", "boot"), (TARGET, "0" * 32))
    return TargetOutput(files, encodings, TARGET, elsewhere=elsewhere)


def simulate(hosts: int, workers: int, parameters: float) -> Figures:
    """Plans and carries out one conversion on ``hosts`` with ``workers`` each."""
    base_mib, model = _peak_mib(), Model(parameters)
    work = planned(model, workers)
    run = Run(work, hosts)
    run.carry_out()
    executor, tasks, batches = run.executor, run.sums.tasks_done, len(run.executor.sent)
    cpu_s, virtual_s = run.coordinator.cpu_s(), run.coordinator.now_s()
    busy_ms = 1000 * sum(cpu_s.values())
    return Figures(
        hosts=hosts,
        workers=executor.workers,
        parameters=model.parameters,
        tensors=len(work.reader.tensors),
        chunks=_chunks(work.plan),
        tasks=tasks,
        batches=batches,
        planning_s=work.seconds,
        cpu_s=cpu_s,
        ms_per_batch=busy_ms / batches,
        ms_per_task=busy_ms / tasks,
        virtual_s=virtual_s,
        batches_per_s=batches / virtual_s,
        utilisation=executor.utilisation,
        best_utilisation=executor.best_utilisation,
        batch_bytes=sum(executor.sent) / batches,
        largest_batch_bytes=max(executor.sent),
        task_bytes=sum(executor.sent) / tasks,
        result_bytes=sum(executor.received) / tasks,
        journal_bytes=run.journal_bytes,
        messages=batches + len(executor.received),
        peak_mib=_peak_mib(),
        base_mib=base_mib,
    )


def _chunks(plan: MultiPlan) -> int:
    sides = [side for tensor in plan.plans[0].tensors for side in (tensor.source, tensor.target)]
    return sum(side.spec.storage.count for side in sides)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lines(found: Figures) -> list[str]:
    """The figures for a person."""
    steps = ", ".join(f"{name} {spent:.2f} s" for name, spent in found.cpu_s.items())
    return [
        f"{found.parameters:.3g} parameters in {found.tensors} tensors and {found.chunks} chunks, by {found.hosts} hosts "
        f"with {found.workers} workers:",
        f"{found.tasks} tasks in {found.batches} batches, {found.batches_per_s:.0f} a second, done in {found.virtual_s:.1f} s; "
        f"planned in {found.planning_s:.2f} s",
        f"workers work {found.utilisation:.0%} of the time, {found.best_utilisation:.0%} if the coordinator took none",
        f"coordinator: {found.ms_per_batch:.2f} ms a batch, {found.ms_per_task:.2f} ms a task ({steps})",
        f"pickled: {found.batch_bytes / 1e3:.1f} KB a batch (largest {found.largest_batch_bytes / 1e3:.0f} KB), "
        f"{found.task_bytes / 1e3:.2f} KB a task, {found.result_bytes / 1e3:.2f} KB its result; {found.messages} messages",
        f"journal: {found.journal_bytes / 1e6:.1f} MB; memory: {found.peak_mib:.0f} MiB, {found.base_mib:.0f} before planning",
    ]


def main() -> None:
    """Simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=8, help="of each host")
    parser.add_argument("--parameters", type=float, default=1e12)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args()
    found = simulate(asked.hosts, asked.workers, asked.parameters)
    print(json.dumps(asdict(found)) if asked.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
