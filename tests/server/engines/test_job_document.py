"""The Job of a conversion: the operator's template, and the service's own fields, which no template may set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from reshard_server.engines.job_document import (
    CONVERSION,
    GRACE_SECONDS,
    INSTANCE,
    LABELS,
    REQUEST,
    job_document,
    read_template,
    request_digest,
)
from reshard_server.engines.part_status import JobEnd, PartStatus, job_end, part_statuses
from reshard_server.jobs import attempt
from reshard_server.settings import KubernetesSettings

from reshard.errors import ReshardError
from tests.deploy.documents import manifest
from tests.server.engines.templates import TEMPLATE

ID = "019abcdef0120123456789abcdef"
BY_HAND = manifest("Job", "reshard-parts")["spec"]


def settings(folder: Path, template: str = TEMPLATE, **more: Any) -> KubernetesSettings:
    file = folder / "job.yaml"
    file.write_text(template)
    return KubernetesSettings(namespace="models", image="reshard-server:0.1.0", template=file, **more)  # fmt: skip


def made(folder: Path, template: str = TEMPLATE, **more: Any) -> dict[str, Any]:
    own = settings(folder, template, **more)
    return job_document(own, read_template(own), ID, "/data/served/1000", 16)


@pytest.mark.parametrize("version", ["1.29.0", "1.32.0", "1.37.0"])
def test_the_job_fits_the_schema(tmp_path: Path, version: str) -> None:
    kubernetes_validate.validate(made(tmp_path), version, strict=True)


def test_the_template_is_kept_and_the_services_fields_are_added(tmp_path: Path) -> None:
    job, given = made(tmp_path, parallelism=5), yaml.safe_load(TEMPLATE)
    labels = {**LABELS, INSTANCE: ID}
    assert job["metadata"] == {
        "name": f"reshard-{ID}",
        "namespace": "models",
        "labels": {"team": "models", **labels},
        "annotations": {CONVERSION: ID, REQUEST: request_digest(ID, "/data/served/1000", 16)},
    }
    spec, template = job["spec"], job["spec"]["template"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 16, 5)
    assert spec["ttlSecondsAfterFinished"] == BY_HAND["ttlSecondsAfterFinished"]
    assert template["metadata"] == {
        "labels": labels,
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    }
    asked = given["spec"]["template"]["spec"]
    asked["containers"][1] |= {
        "image": "reshard-server:0.1.0",
        "command": ["reshard", "part", "/data/served/1000", "--of", "16"],
    }
    assert template["spec"] == {
        **asked,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }


def test_failures_count_as_in_the_job_by_hand(tmp_path: Path) -> None:
    spec = made(tmp_path)["spec"]
    for name in ("backoffLimitPerIndex", "podFailurePolicy"):
        assert spec[name] == BY_HAND[name]
    assert attempt.GRACE_SECONDS == GRACE_SECONDS


def test_no_more_pods_than_parts_and_the_operators_own_time_to_keep(tmp_path: Path) -> None:
    job = made(tmp_path, TEMPLATE.replace("spec:", "spec:\n  ttlSecondsAfterFinished: 60", 1), parallelism=99)  # fmt: skip
    assert job["spec"]["parallelism"] == 16
    assert job["spec"]["ttlSecondsAfterFinished"] == 60


def test_two_jobs_of_a_template_share_nothing(tmp_path: Path) -> None:
    own = settings(tmp_path)
    template = read_template(own)
    first, second = (job_document(own, template, ID, f"/data/{n}", n) for n in (2, 3))
    assert first["spec"]["completions"] == 2
    assert first["spec"]["template"]["spec"]["containers"][1]["command"][2] == "/data/2"
    assert second["metadata"]["annotations"][REQUEST] != first["metadata"]["annotations"][REQUEST]
    assert template == yaml.safe_load(TEMPLATE)


def test_a_template_may_be_json(tmp_path: Path) -> None:
    assert made(tmp_path, json.dumps(yaml.safe_load(TEMPLATE))) == made(tmp_path)


def test_fields_of_the_service_are_refused_all_at_once(tmp_path: Path) -> None:
    wrong = yaml.safe_load(TEMPLATE)
    wrong["metadata"] |= {"name": "mine", "namespace": "mine"}
    wrong["metadata"]["annotations"] = {REQUEST: "0"}
    wrong["spec"] |= {
        "completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": []}, "parallelism": 3,
        "successPolicy": {"rules": []}, "suspend": True,
    }  # fmt: skip
    wrong["spec"]["template"]["metadata"]["labels"] = {INSTANCE: "x", "mine": "y"}
    pod = wrong["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 3600}
    pod["containers"][1] |= {"image": "mine", "command": ["sh"], "args": ["-c"]}
    own = settings(tmp_path, json.dumps(wrong))
    with pytest.raises(ReshardError) as refused:
        read_template(own)
    assert str(refused.value) == (
        f"the template of Jobs {str(own.template)!r} sets metadata.name, metadata.namespace, spec.completionMode, spec.completions, "
        "spec.parallelism, spec.backoffLimitPerIndex, spec.podFailurePolicy, spec.successPolicy, spec.template.spec.restartPolicy, "
        "spec.template.spec.terminationGracePeriodSeconds, spec.template.spec.containers[1].image, "
        'spec.template.spec.containers[1].command, spec.template.spec.containers[1].args, metadata.annotations["reshard/request"], '
        'spec.template.metadata.labels["app.kubernetes.io/instance"], which the service sets itself; leave them out'
    )


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("kind: [", "cannot be read: while parsing a flow node"),
        ("--- 1\n--- 2", "cannot be read: expected a single document"),
        ("7", "cannot be used: expected a Job (apiVersion: batch/v1, kind: Job); deploy/kubernetes/engine.yaml has one that can"),
        ("{apiVersion: batch/v1, kind: CronJob}", "expected a Job"),
        ("{apiVersion: batch/v1, kind: Job, spec: 7}", "spec: expected an object"),
        ("{apiVersion: batch/v1, kind: Job, spec: {template: {spec: 7}}}", "spec.template.spec: expected an object"),
        ("{apiVersion: batch/v1, kind: Job, metadata: {labels: 7}}", "metadata.labels: expected an object"),
        ("{apiVersion: batch/v1, kind: Job}", "spec.template.spec.containers: expected one with the name 'convert'"),
        (TEMPLATE.replace("name: convert", "name: other"), "spec.template.spec.containers: expected one with the name 'convert'"),
        (TEMPLATE.replace("- name: logs", "- 7\n        - name: logs"), "spec.template.spec.containers: expected objects with names"),
        (TEMPLATE.replace("containers:", "containers: convert\n      other:"), "spec.template.spec.containers: expected one with the name"),
    ],
)  # fmt: skip
def test_what_is_no_template_is_told(tmp_path: Path, template: str, words: str) -> None:
    with pytest.raises(ReshardError) as refused:
        made(tmp_path, template)
    assert f"the template of Jobs {str(tmp_path / 'job.yaml')!r} cannot be" in str(refused.value)
    assert words in str(refused.value)


def test_a_template_that_is_not_there_is_told(tmp_path: Path) -> None:
    own = settings(tmp_path)
    own.template.unlink()
    with pytest.raises(ReshardError, match=r"name a file with one Job, as YAML or JSON, as engines\.kubernetes\.template"):  # fmt: skip
        read_template(own)


def job(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j", "namespace": "n"}, "status": status}


@pytest.mark.parametrize(
    ("status", "states"),
    [
        ({}, "wwwwww"),
        ({"active": 2}, "rrwwww"),
        ({"active": 2, "completedIndexes": "0,2-3"}, "drddrw"),
        ({"active": 9, "completedIndexes": "0-1,3,5-99", "failedIndexes": "2"}, "ddfdrd"),
        ({"active": None, "completedIndexes": None, "conditions": None}, "wwwwww"),
        ({"completedIndexes": "0-5"}, "dddddd"),
        ({"completedIndexes": "0-99999999999999999999"}, "dddddd"),
    ],
)
def test_the_states_of_parts(status: dict[str, Any], states: str) -> None:
    found = part_statuses(job(**status), 6)
    assert [one.number for one in found] == [1, 2, 3, 4, 5, 6]
    assert "".join(one.state[0] for one in found) == states
    assert [one.detail != "" for one in found] == [one.state == "failed" for one in found]
    assert job_end(job(**status)) is None


def test_a_job_without_a_status_waits() -> None:
    assert part_statuses({"metadata": {"name": "j", "namespace": "n"}}, 1) == (PartStatus(1, "waiting"),)  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "end"),
    [
        ([{"type": "Complete", "status": "False"}], None),
        ([{"type": "Suspended", "status": "True"}], None),
        ([{"type": "SuccessCriteriaMet", "status": "True"}], None),
        ([{"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}], None),
        ([{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}], JobEnd(is_complete=True)),
        ([{"type": "Failed", "status": "True"}], JobEnd(is_complete=False)),
        ([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}],
         JobEnd(False, "DeadlineExceeded", "too long")),
    ],
)  # fmt: skip
def test_the_end_of_a_job(conditions: list[dict[str, str]], end: JobEnd | None) -> None:
    assert job_end(job(conditions=conditions)) == end
