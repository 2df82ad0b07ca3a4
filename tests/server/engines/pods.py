"""The pods of an Indexed Job as processes of this machine, and the controller that starts them and counts how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

Job = dict[str, Any]

TICK_SECONDS = 0.01


@dataclass
class Pod:
    """One process, in a group of its own."""

    index: int
    process: subprocess.Popen[bytes]
    evicted: bool = False

    def end(self, grace: float) -> None:
        """Ends it as a kubelet does: asks, and kills after the grace."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@dataclass
class Controller:
    """The cluster's work on one Job, in a thread of its own."""

    job: Job
    folder: Path
    programs: Path
    pods: dict[int, Pod] = field(default_factory=dict)
    failures: Counter[int] = field(default_factory=Counter)
    done: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    started: int = 0
    ending: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def spec(self) -> dict[str, Any]:
        return self.job["spec"]

    def evict(self, index: int) -> None:
        """Evicts the pod of an index, once it is there, as a drain of its node does."""
        with self.lock:
            pod = self.pods[index]
            pod.evicted = True
        pod.signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends all pods within their grace."""
        self.ending.set()
        self.thread.join()
        for pod in self.pods.values():
            pod.end(self.spec["template"]["spec"]["terminationGracePeriodSeconds"])

    def _run(self) -> None:
        while not self.ending.wait(TICK_SECONDS):
            with self.lock:
                self._reap()
                self._tell()
                if "conditions" in self.job["status"]:
                    return
                self._start()

    def _start(self) -> None:
        for index in range(self.spec["completions"]):
            if index not in self.pods.keys() | self.done | self.failed:
                if len(self.pods) >= self.spec["parallelism"]:
                    return
                self.pods[index] = self._pod(index)

    def _pod(self, index: int) -> Pod:
        (container,) = (
            c for c in self.spec["template"]["spec"]["containers"] if c["name"] == "convert"
        )
        given = {e["name"]: e["value"] for e in container.get("env", ())}
        path = f"{self.programs}:{os.environ['PATH']}"
        here = {**os.environ, "PATH": path, "JOB_COMPLETION_INDEX": str(index), **given}
        self.started += 1
        log = (self.folder / f"pod-{index}-{self.started}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [*container["command"], *container.get("args", ())],
                env=here, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return Pod(index, process)

    def _reap(self) -> None:
        for index, pod in list(self.pods.items()):
            if (code := pod.process.poll()) is None:
                continue
            del self.pods[index]
            if code == 0:
                self.done.add(index)
            elif (action := self._action(pod, code)) == "FailJob":
                self._end("Failed", "PodFailurePolicy", f"Container convert failed with exit code {code} matching FailJob rule at index 0")  # fmt: skip
            elif action != "Ignore":
                self.failures[index] += 1
                if self.failures[index] > self.spec["backoffLimitPerIndex"]:
                    self.failed.add(index)

    def _action(self, pod: Pod, code: int) -> str:
        for rule in self.spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if codes and codes["operator"] == "In" and code in codes["values"]:
                return rule["action"]
            wanted = {c["type"] for c in rule.get("onPodConditions", ())}
            if pod.evicted and "DisruptionTarget" in wanted:
                return rule["action"]
        return "Count"

    def _tell(self) -> None:
        done, failed = map(as_text, (self.done, self.failed))
        counts = {"active": len(self.pods), "succeeded": len(self.done), "failed": sum(self.failures.values())}  # fmt: skip
        # A whole new status, since the API may be writing the old one.
        self.job["status"] = {**self.job["status"], **counts, "completedIndexes": done, "failedIndexes": failed}  # fmt: skip
        if len(self.done | self.failed) == self.spec["completions"]:
            if self.failed:
                self._end("Failed", "FailedIndexes", "Job has failed indexes")
            else:
                self._end("Complete", "CompletionsReached", "Reached expected number of succeeded pods")  # fmt: skip

    def _end(self, kind: str, reason: str, message: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        self.job["status"] = {**self.job["status"], "conditions": [condition]}
        for pod in self.pods.values():
            pod.signal(signal.SIGKILL)


def as_text(indexes: set[int]) -> str:
    """Indexes as the status of a Job has them: ``0,2-4``."""
    return ",".join(_ranges(indexes))


def _ranges(indexes: set[int]) -> Iterator[str]:
    for _, run in groupby(enumerate(sorted(indexes)), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def wait_for(holds: Any, seconds: float = 60.0) -> None:
    """Waits until a function says yes."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(TICK_SECONDS)
