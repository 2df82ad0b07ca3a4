"""The Job of a conversion: a template of the operator, to which the service adds the fields that are its own.

The template says where and how pods run (volumes, resources, node selectors, tolerations, service account). The service says what
runs in them and how often, so a template with one of these fields is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import yaml

from reshard.errors import ReshardError
from reshard_server.engines.job_api import Job
from reshard_server.settings import KubernetesSettings

CONTAINER = "convert"
"""The container of the template in which a part is done; others are the operator's."""

RETRIES = 6
"""Times that a part is tried again after its pod failed; as in deploy/kubernetes/parts.yaml."""

GRACE_SECONDS = 10
"""Seconds that a part has to record its work before it is killed; as the service's own processes have (``jobs.attempt``)."""

KEPT_SECONDS = 7 * 24 * 3600
"""Seconds after which Kubernetes removes a Job that ended and was never removed, unless the template has another number; a week, as for
idempotency keys."""

CONVERSION, REQUEST = "reshard/conversion", "reshard/request"
"""Annotations with the conversion's id, and with the digest of what its parts do."""

LABELS = {
    "app.kubernetes.io/name": "reshard",
    "app.kubernetes.io/component": "parts",
    "app.kubernetes.io/managed-by": "reshard",
}
INSTANCE = "app.kubernetes.io/instance"
"""The label with the conversion's id."""

FAILURE_POLICY = {
    "rules": [
        # A command line that is wrong stays wrong.
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [2]},
        },
        # A pod that was evicted is no failure of the part, which resumes.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
}

_OWNED = {
    ("metadata",): ("name", "generateName", "namespace"),
    ("spec",): (
        "completionMode", "completions", "parallelism", "backoffLimit", "backoffLimitPerIndex", "podFailurePolicy", "podReplacementPolicy",
        "successPolicy", "selector", "manualSelector", "managedBy",
    ),
    ("spec", "template", "spec"): ("restartPolicy", "terminationGracePeriodSeconds"),
}  # fmt: skip
_OWNED_BY_CONTAINER = ("image", "command", "args")
_LABELLED = (("metadata",), ("spec", "template", "metadata"))


def job_name(conversion: str) -> str:
    """The name of a conversion's Job: the same for every server process, so that the next one finds it."""
    return f"reshard-{conversion}"


def request_digest(conversion: str, target: str, parts: int) -> str:
    """A digest that is equal for two Jobs whose parts do the same; template and image may differ."""
    text = json.dumps([conversion, target, parts])
    return hashlib.sha256(text.encode()).hexdigest()


def read_template(settings: KubernetesSettings) -> Job:
    """The template. ReshardError if it cannot be used, with all fields that are the service's own."""
    file = settings.template
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ReshardError(
            f"the template of Jobs {str(file)!r} cannot be read: {' '.join(str(error).split())}; name a file with one Job, as YAML or JSON, as "
            "engines.kubernetes.template"
        ) from error
    wrong = _no_job(found)
    if wrong:
        raise ReshardError(
            f"the template of Jobs {str(file)!r} cannot be used: {wrong}; deploy/kubernetes/engine.yaml has one that can"
        )
    owned = list(_owned_fields(found))
    if owned:
        raise ReshardError(
            f"the template of Jobs {str(file)!r} sets {', '.join(owned)}, which the service sets itself; leave them out"
        )
    template: Job = found
    return template


def _no_job(found: object) -> str:
    """The first reason why a document is no Job with a container for the parts; "" for none."""
    if not isinstance(found, dict) or found.get("kind") != "Job" or found.get("apiVersion") != "batch/v1":  # fmt: skip
        return "expected a Job (apiVersion: batch/v1, kind: Job)"
    for path in (*_LABELLED, ("spec",), ("spec", "template"), ("spec", "template", "spec")):
        if not isinstance(_at(found, path), dict):
            return f"{'.'.join(path)}: expected an object"
    for path in _LABELLED:
        for kind in ("labels", "annotations"):
            if not isinstance(_at(found, (*path, kind)), dict):
                return f"{'.'.join(path)}.{kind}: expected an object"
    containers = _at(found, ("spec", "template", "spec")).get("containers")
    listed = containers if isinstance(containers, list) else []
    if not all(isinstance(one, dict) and "name" in one for one in listed):
        return "spec.template.spec.containers: expected objects with names"
    if [one["name"] for one in listed].count(CONTAINER) != 1:
        return f"spec.template.spec.containers: expected one with the name {CONTAINER!r}"
    return ""


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The member at a path; an empty object where nothing is given."""
    for name in path:
        found = document.get(name) if isinstance(document, dict) else None
        document = {} if found is None else found
    return document


def _owned_fields(template: Job) -> Iterator[str]:
    for path, names in _OWNED.items():
        yield from (".".join((*path, name)) for name in names if name in _at(template, path))
    for number, one in enumerate(_at(template, ("spec", "template", "spec", "containers"))):
        if one["name"] == CONTAINER:
            where = f"spec.template.spec.containers[{number}]"
            yield from (f"{where}.{name}" for name in _OWNED_BY_CONTAINER if name in one)
    for path in _LABELLED:
        for kind, own in (("labels", (*LABELS, INSTANCE)), ("annotations", (CONVERSION, REQUEST))):
            given = _at(template, (*path, kind))
            yield from (f'{".".join(path)}.{kind}["{name}"]' for name in own if name in given)


def job_document(
    settings: KubernetesSettings, template: Job, conversion: str, target: str, parts: int
) -> Job:
    """The Job that does all parts of a conversion that is recorded at its target, part i in the pod with the index i - 1."""
    job = deepcopy(template)
    job["metadata"] = {
        **(job.get("metadata") or {}),
        "name": job_name(conversion),
        "namespace": settings.namespace,
    }
    _label(job, conversion)
    job["metadata"]["annotations"] = {
        **(job["metadata"].get("annotations") or {}),
        CONVERSION: conversion,
        REQUEST: request_digest(conversion, target, parts),
    }
    spec = job["spec"] = {
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        **job["spec"],
        "completionMode": "Indexed",
        "completions": parts,
        "parallelism": min(settings.parallelism or parts, parts),
        "backoffLimitPerIndex": RETRIES,
        "podFailurePolicy": deepcopy(FAILURE_POLICY),
    }
    _label(spec["template"], conversion)
    pod = spec["template"]["spec"]
    pod |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS}
    (container,) = (one for one in pod["containers"] if one["name"] == CONTAINER)
    container["image"] = settings.image
    container["command"] = ["reshard", "part", target, "--of", str(parts)]
    return job


def _label(labelled: Job, conversion: str) -> None:
    metadata = labelled["metadata"] = {**(labelled.get("metadata") or {})}
    metadata["labels"] = {**(metadata.get("labels") or {}), **LABELS, INSTANCE: conversion}
