"""The simulation of many hosts does the parts of a real plan, and its times follow from what goes wrong."""

from __future__ import annotations

import random

import pytest

from benchmarks.hosts.model import model
from benchmarks.hosts.simulate import Parts, Trouble, Work, carried_out, main, row

NONE = Trouble()


@pytest.fixture(scope="module")
def work() -> Work:
    return Work(0.25, ["params", "mu"], 8)


@pytest.mark.parametrize(("width", "states", "nbytes"), [(1.0, ["params"], 1.34e12), (2.75, ["params", "master", "mu", "nu"], 70.2e12)])  # fmt: skip
def test_a_model_has_the_size_of_its_name(width, states, nbytes):
    found = model(width, states, 64)
    assert sum(t.spec.nbytes for t in found.tensors.values()) == pytest.approx(nbytes, rel=0.01)


def test_every_task_is_of_one_part(work):
    one, many = (Parts(work, count, 8, random.Random(1)) for count in (1, 64))
    assert len(many.took) == 64
    assert many.all_s == pytest.approx(one.all_s, rel=0.05)
    assert one.took[0] == pytest.approx(one.all_s / 8, rel=0.1)
    assert one.twice == 0


def test_parts_are_taken_one_after_the_other():
    assert carried_out([3.0, 1.0, 1.0, 1.0], (0.0, 0.0), 2, NONE, random.Random(0)) == 3.0
    assert carried_out([1.0] * 8, (1.0, 0.5), 4, NONE, random.Random(0)) == 4.0


def test_trouble_takes_time():
    took, chance = [1.0] * 400, random.Random(0)
    none, resumed, again, slow = (
        carried_out(took, (0.0, 0.1), 40, trouble, chance)
        for trouble in (NONE, Trouble(0.2, resumes=True), Trouble(0.2), Trouble(slow=0.2))
    )
    assert none == pytest.approx(11.0)
    assert none < resumed < again < slow


def test_a_row_tells_multiples_of_the_ideal(work):
    found = row(work, 4, 4, 1, programs=True)
    assert (found["hosts"], found["parts a host"]) == (4, 4)
    assert 1 < found["none"] <= found["fail, again"]
    assert found["none"] * found["ideal s"] > found["start s"] * 4 + found["commit s"]


def test_the_command_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["simulate", "--hosts", "16", "--parts", "4"])
    monkeypatch.setattr("benchmarks.hosts.simulate.SOURCES", {"small": (0.25, ["params"], 8)})
    main()
    head, rule, line = capsys.readouterr().out.splitlines()
    assert head.startswith("| source | hosts | parts a host | ideal s | none |")
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line.startswith("| small | 16 | 4 | ")
