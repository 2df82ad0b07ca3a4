"""The parts of a conversion as an Indexed Job: done in spite of what happens to pods, to the Job, to the API and to the server."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from reshard_server.engines.job_document import RETRIES, job_name
from reshard_server.engines.kubernetes import (
    OUTAGE_SECONDS,
    Outcome,
    Pace,
    remove_job,
    run_parts_on_kubernetes,
)
from reshard_server.engines.part_status import PartStatus
from reshard_server.settings import KubernetesSettings

import reshard
from tests.checkpoint_files import files_without_times
from tests.server.engines.cluster import NAMESPACE, TOKEN, Cluster, Refusal, cluster
from tests.server.engines.pods import Controller, wait_for
from tests.server.engines.templates import TEMPLATE

CONVERSION = "019abcdef0120123456789abcdef"
NAME = job_name(CONVERSION)
SCALE = 50.0
"""Seconds of a run's clock in one second of the tests."""


@dataclass
class Clock:
    """A clock that goes on only while a run waits: a request may take its time on a machine that is busy."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        time.sleep(seconds / SCALE)


CLOCK = Clock()
PACE = Pace(CLOCK.now, CLOCK.wait)


@dataclass
class Place:
    """A cluster, the settings of a service for it, and what its pods run instead of ``reshard part TARGET --of N``."""

    folder: Path
    cluster: Cluster
    settings: KubernetesSettings
    order: str | None = None
    reports: list[Sequence[PartStatus]] = field(default_factory=list)

    def program(self, script: str) -> None:
        """Sets the script of each pod: ``$I`` is its index; ``$TRY`` counts from 1 for each index."""
        text = f"""#!/bin/bash
        cd {self.folder}; I=$JOB_COMPLETION_INDEX; echo "$*" >> "tries-$I"; TRY=$(wc -l < "tries-$I")
        {script}
        """
        file = self.folder / "bin" / "reshard"
        file.write_text(text)
        file.chmod(0o755)

    def tries(self, index: int) -> list[str]:
        """The words with which the pods of an index were started."""
        file = self.folder / f"tries-{index}"
        return file.read_text().splitlines() if file.exists() else []

    def run(self, parts: int = 3, target: str = "/data/served", pace: Pace = PACE) -> Outcome:
        return run_parts_on_kubernetes(
            self.settings, CONVERSION, target, parts, lambda: self.order, self.reports.append, pace
        )

    def begin(self, parts: int = 3) -> Callable[[], Outcome]:
        """Runs in a thread; returns a function that waits for the outcome."""
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(self.run(parts)), daemon=True)
        thread.start()

        def outcome() -> Outcome:
            thread.join(60)
            return outcomes[0]

        return outcome

    @property
    def controller(self) -> Controller:
        return self.cluster.controllers[NAME]

    def wait_for_tries(self, index: int, count: int = 1) -> None:
        wait_for(lambda: len(self.tries(index)) >= count)

    def states(self) -> list[str]:
        return [one.state for one in self.reports[-1]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "job.yaml").write_text(TEMPLATE)
    with cluster(tmp_path, tmp_path / "bin") as made:
        settings = KubernetesSettings(
            namespace=NAMESPACE, image="reshard-server:0.1.0", template=tmp_path / "job.yaml", api=made.url,
            token_file=tmp_path / "token",
        )  # fmt: skip
        yield Place(tmp_path, made, settings)


WAITS = 'while [ ! -e "go" ]; do sleep 0.02; done'


def test_every_part_is_done_once(place: Place) -> None:
    place.program('while [ ! -e "go-$I" ]; do sleep 0.02; done')
    outcome = place.begin()
    for index in (1, 2, 0):
        (place.folder / f"go-{index}").touch()
        wait_for(lambda: place.reports and place.states()[index] == "done")  # noqa: B023  called here
    assert outcome() == Outcome("done")
    assert [place.tries(index) for index in range(3)] == [["part /data/served --of 3"]] * 3
    assert ["running", "done", "running"] in [[p.state for p in r] for r in place.reports]
    assert [p.number for p in place.reports[-1]] == [1, 2, 3]
    assert {method for method, _ in place.cluster.asked} == {"GET", "POST"}


def test_as_many_run_as_the_settings_say(place: Place) -> None:
    place.program(WAITS)
    place.settings = place.settings.model_copy(update={"parallelism": 2})
    outcome = place.begin(5)
    wait_for(lambda: place.reports and place.states() == ["running", "running", *["waiting"] * 3])
    assert place.cluster.running == 2
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")


def test_a_part_whose_pod_is_killed_or_fails_is_tried_again(place: Place) -> None:
    place.program('[ "$I" != 1 ] || [ "$TRY" -gt 2 ] || exit 1; ' + WAITS)
    outcome = place.begin()
    place.wait_for_tries(1, 3)
    place.wait_for_tries(2)
    place.controller.pods[2].signal(signal.SIGKILL)
    place.wait_for_tries(2, 2)
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")
    assert [len(place.tries(index)) for index in range(3)] == [1, 3, 2]


def test_an_evicted_pod_is_no_failure_of_its_part(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin(1)
    for number in range(1, RETRIES + 3):
        place.wait_for_tries(0, number)
        place.controller.evict(0)
    place.wait_for_tries(0, RETRIES + 3)
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")


def test_a_part_that_fails_too_often_fails_the_conversion_and_a_retry_resumes_the_others(
    place: Place,
) -> None:
    place.program('[ "$I" != 1 ] || [ -e mended ] || exit 1')
    failed = place.run()
    assert failed.state == "failed"
    assert failed.detail == (
        f"the Job {NAME!r} failed (FailedIndexes): Job has failed indexes; the parts that failed: 2; read the logs of its pods (kubectl logs "
        f"-n reshard -l batch.kubernetes.io/job-name={NAME} --prefix), and retry the conversion to resume its parts"
    )
    assert place.states() == ["done", "failed", "done"]
    assert place.reports[-1][1].detail == (
        f"its log: kubectl logs -n reshard -l batch.kubernetes.io/job-name={NAME},batch.kubernetes.io/job-completion-index=1"
    )
    assert len(place.tries(1)) == RETRIES + 1
    (place.folder / "mended").touch()
    assert place.run() == Outcome("done")


def test_a_wrong_command_line_fails_at_once(place: Place) -> None:
    place.program('[ "$I" = 2 ] && exit 2; sleep 60')
    failed = place.run()
    assert failed.state == "failed"
    assert "failed (PodFailurePolicy): Container convert failed with exit code 2" in failed.detail
    assert len(place.tries(2)) == 1
    wait_for(lambda: place.cluster.running == 0)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_a_job_that_is_deleted_is_created_again_once(place: Place, policy: str) -> None:
    place.program('[ "$I" = 0 ] || ' + WAITS)
    outcome = place.begin()
    wait_for(lambda: place.reports and place.states() == ["done", "running", "running"])
    first = place.cluster.jobs[NAME]
    place.cluster.delete(NAME, policy)
    wait_for(lambda: place.cluster.jobs.get(NAME, first) is not first)
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")


def test_a_job_that_is_deleted_twice_fails_the_conversion(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin()
    for number in (1, 2):
        place.wait_for_tries(0, number)
        place.cluster.delete(NAME)
    assert outcome().state == "failed"
    assert f"the Job {NAME!r} was deleted again, after it had been created anew" in outcome().detail


@dataclass
class Away:
    """An API that is away from a moment on, for some seconds of the run's clock."""

    seconds: float
    began: float = field(default_factory=PACE.now)

    def __call__(self, _: str) -> None:
        if PACE.now() - self.began < self.seconds:
            raise ConnectionError


def test_an_api_that_is_away_for_a_minute_fails_nothing(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin()
    place.wait_for_tries(2)
    place.cluster.refuses = away = Away(60)
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")
    assert PACE.now() - away.began >= 60
    assert [len(place.tries(index)) for index in range(3)] == [1, 1, 1]


def test_an_api_that_stays_away_fails_the_conversion_which_a_retry_finds_done(place: Place) -> None:
    place.program("exit 0")
    place.cluster.refuses = away = Away(float("inf"))
    failed = place.run()
    assert failed.state == "failed"
    assert f"the Kubernetes API at {place.cluster.url} did not answer GET " in failed.detail
    assert "check that it runs and can be reached from here" in failed.detail
    assert PACE.now() - away.began >= OUTAGE_SECONDS
    away.seconds = 0
    assert place.run() == Outcome("done")


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_what_a_starting_api_refuses_is_asked_again(place: Place, code: int) -> None:
    place.program(WAITS)
    outcome = place.begin()
    wait_for(lambda: place.reports)
    left = [code] * 3

    def refuses(_: str) -> None:
        if left:
            raise Refusal(left.pop(), "Busy", "storage is (re)initializing")
        (place.folder / "go").touch()

    place.cluster.refuses = refuses
    assert outcome() == Outcome("done")


def test_an_answer_that_is_lost_makes_no_second_job(place: Place) -> None:
    place.program("exit 0")
    lost = iter(["POST"])
    place.cluster.loses = lambda method: method == "POST" and next(lost, None) is not None
    assert place.run() == Outcome("done")
    assert place.controller.started == 3
    assert [code for method, code in place.cluster.asked if method == "POST"] == [201, 409]


def test_a_wrong_token_is_told_and_not_shown(place: Place) -> None:
    place.settings.token_file.write_text("eyJ.wrong.token")
    failed = place.run()
    assert failed == Outcome(
        "failed",
        f"the Kubernetes API answered GET /apis/batch/v1/namespaces/reshard/jobs/{NAME} with 401: Unauthorized; check that "
        f"{place.settings.token_file} is the token of a service account of this cluster",
    )
    assert len(place.cluster.asked) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the token for the Kubernetes API cannot be read from"),
        (b"", "holds no token for the Kubernetes API, which is one line of printable characters"),
        (b"two\nlines", "holds no token for the Kubernetes API"),
        (b"\xff\xfe", "the token for the Kubernetes API cannot be read from"),
    ],
)
def test_a_file_without_a_token_is_told(place: Place, content: bytes | None, words: str) -> None:
    place.settings.token_file.unlink()
    if content is not None:
        place.settings.token_file.write_bytes(content)
    failed = place.run()
    assert failed.state == "failed"
    assert words in failed.detail
    assert "engines.kubernetes.token_file" in failed.detail


def test_a_token_that_is_replaced_is_read_again(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin()
    place.wait_for_tries(2)
    place.cluster.token = "eyJ.second.token"
    time.sleep(0.05)
    place.settings.token_file.write_text(place.cluster.token)
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")


def test_a_quota_is_told(place: Place) -> None:
    def refuses(method: str) -> None:
        if method == "POST":
            raise Refusal(403, "Forbidden", "exceeded quota: jobs, requested: count/jobs.batch=1, used: 5, limited: 5")  # fmt: skip

    place.cluster.refuses = refuses
    failed = place.run()
    assert failed.state == "failed"
    assert "with 403: exceeded quota: jobs, requested: count/jobs.batch=1" in failed.detail
    assert failed.detail.endswith("if it is a quota, make room and retry")
    assert [method for method, _ in place.cluster.asked] == ["GET", "POST"]


def test_a_missing_role_is_told(place: Place) -> None:
    place.settings = place.settings.model_copy(update={"namespace": "other"})
    failed = place.run()
    assert "cannot get resource" in failed.detail
    assert (
        "grant create, get and delete of jobs.batch in the namespace 'other' (deploy/kubernetes/engine.yaml)"
        in failed.detail
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("resources:", "resuorces:", "with 400: strict decoding error: Additional properties are not allowed ('resuorces' was unexpected)"),
        ("spec:\n  template", "spec:\n  suspend: 7\n  template", "with 400: strict decoding error: 7 is not of type 'boolean'"),
    ],
)  # fmt: skip
def test_a_template_that_the_api_refuses_is_told(
    place: Place, old: str, new: str, words: str
) -> None:
    assert old in TEMPLATE
    place.settings.template.write_text(TEMPLATE.replace(old, new, 1))
    failed = place.run()
    assert words in failed.detail
    assert failed.detail.endswith(f"; correct the template {place.settings.template}")


def test_a_job_of_something_else_is_left_alone(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin()
    place.wait_for_tries(2)
    for other in ({"parts": 4}, {"target": "/data/other"}):
        failed = place.run(**other)
        assert failed.state == "failed"
        assert (
            f"there is a Job {NAME!r} already, and by its annotations (reshard/request) it does not do"
            in failed.detail
        )
        assert f"kubectl delete job -n reshard {NAME}" in failed.detail
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")


def test_the_next_server_finds_the_job_of_one_that_ended(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin()
    place.wait_for_tries(2)
    place.order = "drain"
    assert outcome() == Outcome("stopped", "drain")
    place.order = None
    assert place.cluster.running == 3
    outcome = place.begin()
    (place.folder / "go").touch()
    assert outcome() == Outcome("done")
    assert place.controller.started == 3


def test_a_cancelled_conversion_ends_its_pods(place: Place) -> None:
    place.program("trap '' TERM; echo > began-$I; while true; do sleep 0.1; done")
    outcome = place.begin()
    wait_for(lambda: len([*place.folder.glob("began-*")]) == 3)
    grace = place.controller.spec["template"]["spec"]
    assert grace["terminationGracePeriodSeconds"] <= 10
    grace["terminationGracePeriodSeconds"] /= SCALE
    place.order = "cancel"
    assert outcome() == Outcome("stopped", "cancel")
    wait_for(lambda: place.cluster.running == 0)
    wait_for(lambda: place.cluster.jobs == {})


def test_a_conversion_is_cancelled_while_the_api_is_away(place: Place) -> None:
    place.program(WAITS)
    outcome = place.begin()
    place.wait_for_tries(2)
    place.cluster.refuses = Away(40)
    place.order = "cancel"
    assert outcome() == Outcome("stopped", "cancel")
    wait_for(lambda: place.cluster.running == 0)


def test_a_job_is_removed_once_it_is_no_longer_needed(place: Place) -> None:
    place.program("exit 0")
    assert place.run() == Outcome("done")
    remove_job(place.settings, "019abcdef0120123456789abcdee", PACE)
    assert place.cluster.jobs.keys() == {NAME}
    remove_job(place.settings, CONVERSION, PACE)
    wait_for(lambda: not place.cluster.jobs)
    remove_job(place.settings, CONVERSION, PACE)


def test_what_pods_make_is_what_one_host_makes(place: Place, tmp_path: Path) -> None:
    """The real command in every pod, one of which is killed before it has read anything."""
    rng = np.random.default_rng(1)
    tree = {f"layer_{n}": rng.normal(size=(64, 64)).astype(np.float32) for n in range(9)}
    reshard.save(tmp_path / "trained", tree)
    target = str(tmp_path / "served")
    reshard.begin_parts(tmp_path / "trained", [reshard.Target(target, mesh="x=4")], 3)
    command = Path(sys.executable).parent / "reshard"
    place.program(f'[ "$I" != 1 ] || [ "$TRY" != 1 ] || kill -KILL $$; exec {command} "$@"')
    assert place.run(target=target) == Outcome("done")
    assert place.tries(1) == [f"part {target} --of 3"] * 2
    assert not reshard.is_checkpoint(target)
    reshard.commit_all(target)
    reshard.convert(tmp_path / "trained", tmp_path / "alone", mesh="x=4")
    assert files_without_times(Path(target)) == files_without_times(tmp_path / "alone")
    assert reshard.verify(tmp_path / "trained", target).differences == 0
