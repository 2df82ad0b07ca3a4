"""The service with Jobs of its cluster, and its autoscaled workers: patched, with no more rights than it uses, and room enough."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml
from reshard_server.engines.job_document import CONTAINER, LABELS, job_document, read_template
from reshard_server.settings import KubernetesSettings, load_settings

from tests.deploy.documents import DEPLOY, MIB, ROOT, job_template, manifest, parse_size, pod
from tests.docs.page import code_of
from tests.server.engines.cluster import VERBS

pytestmark = pytest.mark.xdist_group("deploy")
CUSTOM = DEPLOY / "kubernetes" / "custom"
SERVER_TOML = manifest("ConfigMap", "reshard-settings")["data"]["server.toml"]
WORKERS = pod("Deployment", "reshard-workers")


def patched(given: Any, patch: Any) -> Any:
    """A strategic merge patch as kubectl applies it: lists of named objects are merged by the name, volume mounts by their path."""
    if isinstance(given, dict) and isinstance(patch, dict):
        return {**given, **{k: patched(given[k], v) if k in given else v for k, v in patch.items()}}
    if isinstance(given, list) and isinstance(patch, list):
        key = "mountPath" if "mountPath" in patch[0] else "name"
        new = {one[key]: one for one in patch}
        kept = [patched(one, new.pop(one[key])) if one[key] in new else one for one in given]
        return [*kept, *new.values()]
    return patch


PATCHED = patched(
    manifest("Deployment", "reshard"),
    yaml.safe_load((DEPLOY / "kubernetes" / "patches" / "engine.yaml").read_text()),
)
SERVER = PATCHED["spec"]["template"]["spec"]


def engine(monkeypatch: pytest.MonkeyPatch, folder: Path) -> KubernetesSettings:
    """The settings of the patched server, with its template as a file here."""
    (container,) = SERVER["containers"]
    for entry in container["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    found = load_settings(tomllib.loads(SERVER_TOML), None).engines
    assert found is not None
    assert found.kubernetes is not None
    (folder / "job.yaml").write_text(yaml.safe_dump(job_template()))
    return found.kubernetes.model_copy(update={"template": folder / "job.yaml"})


@pytest.mark.parametrize("version", ["1.29.0", "1.32.0", "1.37.0"])
def test_the_patched_deployment_fits_the_schema(version: str) -> None:
    kubernetes_validate.validate(PATCHED, version, strict=True)
    (container,) = SERVER["containers"]
    assert len(container["volumeMounts"]) == len(pod("Deployment", "reshard")["containers"][0]["volumeMounts"]) + 2  # fmt: skip
    assert container["readinessProbe"]


def test_the_server_has_its_template_its_token_and_the_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (container,) = SERVER["containers"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in SERVER["volumes"]}
    given = {one["name"]: one["value"] for one in container["env"]}
    template = Path(given["RESHARD_ENGINES__KUBERNETES__TEMPLATE"])
    holder = volumes[mounts[str(template.parent)]]["configMap"]["name"]
    assert template.name in manifest("ConfigMap", holder)["data"]
    for entry in container["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    own = load_settings({}, None).engines.kubernetes
    api = volumes[mounts[str(own.token_file.parent)]]["projected"]["sources"]
    assert own.token_file.parent == own.ca_file.parent
    assert api[0]["serviceAccountToken"]["path"] == own.token_file.name
    assert api[1]["configMap"]["items"] == [{"key": own.ca_file.name, "path": own.ca_file.name}]
    assert own.namespace == manifest("ServiceAccount", "reshard-engine")["metadata"]["namespace"]


def test_the_job_of_this_template_fits_the_schema_and_its_pods_have_what_the_server_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = engine(monkeypatch, tmp_path)
    job = job_document(own, read_template(own), "019abc", "/data/served/1000", 16)
    kubernetes_validate.validate(job, "1.32.0", strict=True)
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    settings = load_settings(tomllib.loads(SERVER_TOML), None)
    assert container["name"] == CONTAINER
    assert container["image"] == SERVER["containers"][0]["image"]
    assert {str(root) for root in settings.roots.values()} <= {m["mountPath"] for m in container["volumeMounts"]}  # fmt: skip
    limit = parse_size(container["resources"]["limits"]["memory"])
    assert limit >= settings.max_memory + 128 * MIB
    assert container["resources"]["requests"]["cpu"] == str(settings.workers)
    claims = [v["persistentVolumeClaim"] for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [v["persistentVolumeClaim"] for v in SERVER["volumes"] if "persistentVolumeClaim" in v]  # fmt: skip
    (buckets,) = manifest("NetworkPolicy", "buckets")["spec"]["podSelector"]["matchExpressions"]
    assert LABELS[buckets["key"]] in buckets["values"]


def test_the_page_shows_these_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (shown,) = code_of(ROOT / "docs" / "how-to" / "service" / "kubernetes.md", "toml")
    (tmp_path / "server.toml").write_text(shown)
    found = load_settings({}, tmp_path / "server.toml").engines
    assert found is not None
    patched_in = engine(monkeypatch, tmp_path)
    assert found.kubernetes == patched_in.model_copy(update={"template": Path("/etc/reshard/engine/job.yaml")})  # fmt: skip


def test_the_role_allows_what_the_service_asks_for_and_no_more() -> None:
    (rule,) = manifest("Role", "reshard-engine")["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["batch"], ["jobs"])
    binding = manifest("RoleBinding", "reshard-engine")
    assert binding["roleRef"]["name"] == "reshard-engine"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": SERVER["serviceAccountName"], "namespace": "reshard"}]  # fmt: skip
    assert sorted(rule["verbs"]) == sorted(VERBS)  # of the API that the engine is tested with


def test_the_server_reaches_the_api() -> None:
    policy = manifest("NetworkPolicy", "engine")["spec"]
    labels = PATCHED["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert [p["port"] for p in policy["egress"][0]["ports"]] == [443, 6443]


def test_a_worker_has_what_a_server_has_but_no_port_and_room_for_its_conversions() -> None:
    (worker,), (server,) = WORKERS["containers"], pod("Deployment", "reshard")["containers"]
    assert worker["args"] == ["work", *server["args"][1:]]
    assert worker["volumeMounts"] == server["volumeMounts"]
    assert WORKERS["volumes"] == pod("Deployment", "reshard")["volumes"]
    assert "ports" not in worker
    settings = load_settings(tomllib.loads(SERVER_TOML), None)
    most = 256 * MIB + settings.running * (settings.max_memory + 128 * MIB)
    limits = worker["resources"]
    assert limits["limits"]["memory"] == limits["requests"]["memory"]
    assert parse_size(limits["limits"]["memory"]) >= most
    assert WORKERS["terminationGracePeriodSeconds"] >= settings.drain_seconds + 15


def scaled_object() -> dict[str, Any]:
    return yaml.safe_load((CUSTOM / "workers-keda.yaml").read_text())


def test_both_autoscalers_want_a_worker_for_as_much_as_one_runs() -> None:
    by_hpa, by_keda = manifest("HorizontalPodAutoscaler", "reshard-workers")["spec"], scaled_object()["spec"]  # fmt: skip
    settings = load_settings(tomllib.loads(SERVER_TOML), None)
    deployment = manifest("Deployment", "reshard-workers")
    (metric,), (trigger,) = by_hpa["metrics"], by_keda["triggers"]
    assert by_hpa["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "reshard-workers"}  # fmt: skip
    assert by_keda["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": str(settings.running)}  # fmt: skip
    assert trigger["metadata"]["threshold"] == str(settings.running)
    assert by_hpa["maxReplicas"] == by_keda["maxReplicaCount"]
    text = (DEPLOY / "kubernetes" / "workers.yaml").read_text()
    query = trigger["metadata"]["query"]
    assert f"metricsQuery: {query}\n" in text
    assert f"as: {metric['external']['metric']['name']}}}" in text
    promql_parser.parse(query)


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}
SCALED_OBJECT = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["scaleTargetRef", "triggers"],
            "additionalProperties": False,
            "properties": {
                "scaleTargetRef": {"type": "object", "required": ["name"], "additionalProperties": False,
                                   "properties": {name: {"type": "string"} for name in ("apiVersion", "kind", "name", "envSourceContainerName")}},
                "minReplicaCount": COUNT, "maxReplicaCount": COUNT, "idleReplicaCount": COUNT, "pollingInterval": COUNT, "cooldownPeriod": COUNT,
                "triggers": {"type": "array", "minItems": 1, "items": {
                    "type": "object", "required": ["type", "metadata"], "additionalProperties": False,
                    "properties": {"type": {"const": "prometheus"}, "name": {"type": "string"},
                                   "metadata": {**TEXTS, "required": ["serverAddress", "query", "threshold"]}},
                }},
            },
        },
    },
}  # fmt: skip
"""The fields of ``config/crd/bases/keda.sh_scaledobjects.yaml`` that the file uses, and the metadata of KEDA's Prometheus scaler."""


def test_the_scaled_object_fits_its_schema() -> None:
    jsonschema.validate(scaled_object(), SCALED_OBJECT)
    wrong = scaled_object()
    wrong["spec"]["minReplicas"] = 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCALED_OBJECT)
