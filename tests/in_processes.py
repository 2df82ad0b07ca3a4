"""Lets small conversions with few workers run in processes, as large ones with many workers do by themselves."""

from __future__ import annotations

import pytest

from reshard.planning import task_cost

OPTIONS = {"workers": 4, "max_memory": "1GiB"}
"""Two processes of two threads each."""

CODE = """
from reshard.planning import task_cost
task_cost.THREADS_PER_PROCESS, task_cost.PAYING_BYTES = 2, 0
"""
"""The same for a program of its own."""


def run_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets conversions with ``OPTIONS`` run in processes."""
    monkeypatch.setattr(task_cost, "THREADS_PER_PROCESS", 2)
    monkeypatch.setattr(task_cost, "PAYING_BYTES", 0)
