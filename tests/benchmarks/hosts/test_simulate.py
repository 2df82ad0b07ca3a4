"""The simulation of many hosts does every unit once, by the real scheduler, and counts what it names."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from benchmarks.hosts.coordinator import Coordinator
from benchmarks.hosts.model import Model, ModelReader
from benchmarks.hosts.simulate import Run, lines, main, planned, simulate
from benchmarks.hosts.task_times import BYTES_PER_S, SECONDS_PER_TASK, SPREAD, fit, seconds
from reshard.engine.task_stream import batch_limits
from reshard.errors import VerificationError

STEPS = {"making tasks", "pickling", "unpickling", "adding up", "journal", "scheduling"}


@pytest.mark.parametrize(("parameters", "devices"), [(1e9, 8), (1e12, 1024), (1e13, 8192)])
def test_a_model_has_the_size_and_the_devices_that_were_asked_for(parameters, devices):
    model = Model(parameters)
    assert model.parameters == pytest.approx(parameters, rel=0.2)
    assert model.devices == model.training.size == devices


def test_the_parts_of_its_checkpoint_lie_side_by_side():
    reader = ModelReader(Model(1e8))
    (name, *_) = reader.tensors
    grid = reader.tensors[name].spec.storage
    extents = [reader.locate(name, index) for index in grid.indices()]
    assert len({extent.offset for extent in extents}) == grid.count == 8


def test_every_unit_is_done_once_and_recorded():
    work = planned(Model(1e8), workers=2)
    run = Run(work, hosts=8)
    run.carry_out()
    (plan,) = work.plan.plans
    assert run.sums.tasks_done == plan.tasks == sum(fill.units.count for fill in plan.fills)
    assert run.sums.moved_bytes == run.sums.total_bytes == 2 * Model(1e8).parameters
    assert len(run.executor.sent) == len(run.executor.received) == len(run.executor.times)
    assert run.executor.workers == 16


def test_a_result_that_says_too_little_is_found():
    run = Run(planned(Model(1e8), workers=2), hosts=2)
    taken = run.executor.take
    run.executor.take = lambda batch, *place: taken(batch[1:], *place)
    with pytest.raises(VerificationError, match="chunks were completed"):
        run.carry_out()


def test_all_figures_are_there():
    found = simulate(hosts=8, workers=2, parameters=1e8)
    assert set(found.cpu_s) == STEPS
    assert found.messages == 2 * found.batches
    assert found.tensors == 448
    assert found.chunks == 4224
    assert 0 < found.utilisation < found.best_utilisation < 1
    assert 0 < found.task_bytes <= found.batch_bytes <= found.largest_batch_bytes
    limits = batch_limits(2 * found.parameters, found.workers)
    assert found.tasks / limits.tasks <= found.batches <= found.tasks
    text = "\n".join(lines(found))
    assert "by 8 hosts with 16 workers" in text
    assert f"{found.tasks} tasks in {found.batches} batches" in text


def test_the_command_prints_json(monkeypatch, capsys):
    words = ["simulate", "--hosts", "3", "--workers", "1", "--parameters", "1e8", "--json"]
    monkeypatch.setattr("sys.argv", words)
    main()
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] == 3
    assert found["peak_mib"] >= found["base_mib"] > 0


def test_virtual_time_passes_while_the_coordinator_computes_or_waits():
    coordinator = Coordinator()
    with coordinator.step("pickling"), coordinator.step("simulation"):
        sum(range(100_000))
    before = coordinator.now_s()
    coordinator.wait_until(1000.0)
    assert before < 1000.0 <= coordinator.now_s()
    coordinator.wait_until(500.0)
    assert coordinator.now_s() < 1001.0
    assert set(coordinator.cpu_s()) == {"scheduling", "pickling"}


def test_drawn_times_have_the_measured_mean_and_spread():
    chance = random.Random(1)
    times = [(nbytes, seconds(nbytes, chance)) for nbytes in range(10**7, 10**9, 10**5)]
    rate, _, spread = fit(times)
    assert rate == pytest.approx(BYTES_PER_S, rel=0.05)
    assert spread == pytest.approx(SPREAD, rel=0.1)
    alike = statistics.mean(seconds(10**6, chance) for _ in range(10_000))
    assert alike == pytest.approx(SECONDS_PER_TASK + 10**6 / BYTES_PER_S, rel=0.01)
