"""The manifests: valid, of one piece, within the restricted Pod Security, and what they start works."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import numpy as np
import pytest
from reshard_server.settings import Settings, load_settings

import reshard
from tests.deploy.deployed import Installation, Place, as_user, started, tokens_toml
from tests.deploy.documents import (
    image_environment,
    job_template,
    manifest,
    manifests,
    most_bytes,
    parse_size,
    pod,
)
from tests.server.live import Live
from tests.server.tokens import TOKENS

pytestmark = pytest.mark.xdist_group("deploy")
NAMES = [f"{m['kind']}/{m['metadata']['name']}" for m in manifests()]
PODS = [
    pod("Deployment", "reshard"), pod("CronJob", "reshard-nightly"), pod("Job", "reshard-parts"), pod("Job", "reshard-commit"),
    pod("Deployment", "reshard-workers"), job_template()["spec"]["template"]["spec"],
]  # fmt: skip
POD_NAMES = ["server", "nightly", "parts", "commit", "worker", "engine"]
SERVER = PODS[0]["containers"][0]
SETTINGS = manifest("ConfigMap", "reshard-settings")["data"]["server.toml"]


@pytest.mark.parametrize("version", ["1.29.0", "1.32.0", "1.37.0"])
@pytest.mark.parametrize("which", range(len(NAMES)), ids=NAMES)
def test_every_manifest_fits_the_schema(which: int, version: str) -> None:
    kubernetes_validate.validate(list(manifests())[which], version, strict=True)


def test_a_slip_is_found() -> None:
    wrong = manifest("Deployment", "reshard")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.32.0", strict=True)


def test_every_kind_is_there() -> None:
    assert {name.partition("/")[0] for name in NAMES} == {
        "Namespace", "ServiceAccount", "ConfigMap", "Secret", "PersistentVolumeClaim", "Deployment", "Service",
        "PodDisruptionBudget", "CronJob", "Job", "NetworkPolicy", "Role", "RoleBinding", "HorizontalPodAutoscaler",
    }  # fmt: skip
    assert {m["metadata"].get("namespace", "reshard") for m in manifests()} == {"reshard"}


@pytest.mark.parametrize("spec", PODS, ids=POD_NAMES)
def test_pods_are_restricted(spec: dict[str, Any]) -> None:
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False  # the Service's RESHARD_PORT is no port of ours
    assert spec["serviceAccountName"] == manifest("ServiceAccount", "reshard")["metadata"]["name"]
    assert {next(k for k in v if k != "name") for v in spec["volumes"]} <= {
        "configMap", "secret", "emptyDir", "persistentVolumeClaim",
    }  # fmt: skip


@pytest.mark.parametrize("spec", PODS, ids=POD_NAMES)
def test_what_is_mounted_exists(spec: dict[str, Any]) -> None:
    mounted = {m["name"] for container in spec["containers"] for m in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    for volume in spec["volumes"]:
        if "configMap" in volume:
            manifest("ConfigMap", volume["configMap"]["name"])
        if "secret" in volume:
            manifest("Secret", volume["secret"]["secretName"])
        if "persistentVolumeClaim" in volume:
            claim = manifest("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
            assert claim["spec"]["accessModes"] == ["ReadWriteMany"]  # several pods


def test_all_select_the_servers_pods() -> None:
    spec = manifest("Deployment", "reshard")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    policy = manifest("NetworkPolicy", "server")["spec"]
    assert spec["replicas"] >= 2
    assert spec["selector"]["matchLabels"] == labels
    assert manifest("Service", "reshard")["spec"]["selector"] == labels
    budget = manifest("PodDisruptionBudget", "reshard")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["minAvailable"] < spec["replicas"]
    assert policy["podSelector"]["matchLabels"] == labels


def test_policies_let_the_nightly_job_and_the_database_through() -> None:
    job = manifest("CronJob", "reshard-nightly")["spec"]["jobTemplate"]["spec"]["template"]
    servers = manifest("Deployment", "reshard")["spec"]["template"]["metadata"]["labels"]
    server, nightly = (manifest("NetworkPolicy", name)["spec"] for name in ("server", "nightly"))
    assert nightly["podSelector"]["matchLabels"].items() <= job["metadata"]["labels"].items()
    assert server["ingress"][0]["from"][0]["podSelector"] == nightly["podSelector"]
    assert server["ingress"][0]["ports"] == [{"protocol": "TCP", "port": settings().port}]
    assert nightly["egress"][1]["to"] == [{"podSelector": {"matchLabels": servers}}]
    assert nightly["egress"][1]["ports"] == server["ingress"][0]["ports"]
    assert server["egress"][1]["ports"] == [{"protocol": "TCP", "port": 5432}]
    assert manifest("NetworkPolicy", "nothing-else")["spec"]["podSelector"] == {}


def test_what_may_use_buckets_reaches_them() -> None:
    """The pods of the server, the workers, the parts and their commit: names, HTTPS, and the credentials of their role."""
    policy = manifest("NetworkPolicy", "buckets")["spec"]
    (chosen,) = policy["podSelector"]["matchExpressions"]
    pods = [
        manifest("Deployment", "reshard")["spec"]["template"],
        manifest("Deployment", "reshard-workers")["spec"]["template"],
        manifest("Job", "reshard-parts")["spec"]["template"],
        manifest("Job", "reshard-commit")["spec"]["template"],
    ]
    labels = [pod["metadata"]["labels"][chosen["key"]] for pod in pods]
    assert (chosen["operator"], chosen["values"]) == ("In", labels)
    open_to_all, credentials = policy["egress"]
    assert {port["port"] for port in open_to_all["ports"]} == {53, 443}
    assert "to" not in open_to_all
    (block,) = credentials["to"]
    assert ip_address("169.254.169.254") in ip_network(block["ipBlock"]["cidr"])


def settings() -> Settings:
    """As the ConfigMap has them."""
    return load_settings(tomllib.loads(SETTINGS), None)


def test_memory_and_time_suffice() -> None:
    limits = SERVER["resources"]
    assert limits["limits"]["memory"] == limits["requests"]["memory"]
    assert most_bytes(settings()) <= parse_size(limits["limits"]["memory"])
    before = int(SERVER["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = PODS[0]["terminationGracePeriodSeconds"]
    assert grace >= before + settings().drain_seconds + 15


def test_paths_and_ports_agree() -> None:
    found, mounts = settings(), {m["mountPath"] for m in SERVER["volumeMounts"]}
    assert {str(found.state), *map(str, found.roots.values()), SERVER["args"][-1]} <= mounts
    for file in (found.tokens_file, found.database_password_file):
        assert file
        assert str(file.parent) in mounts
        assert file.name in manifest("Secret", "reshard")["stringData"]
    assert SERVER["ports"] == [{"name": "http", "containerPort": found.port}]
    (port,) = manifest("Service", "reshard")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (found.port, "http")
    assert found.database_url
    assert "postgres.databases.svc" in found.database_url.get_secret_value()


@pytest.fixture
def server(image: Installation, at: Place) -> Iterator[Live]:
    """The Deployment's container, with its records in SQLite; the compose file's tests have the Postgres."""
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    reshard.save(at.at("/data/train"), {"kernel": weights}, step=1000)
    at.make_writable("/data", "/var/lib/reshard")
    at.write("/etc/reshard/secret/tokens.toml", tokens_toml())
    file = SERVER["args"][-1]
    lines = [line for line in SETTINGS.splitlines() if not line.startswith("database_")]
    assert len(lines) == len(SETTINGS.splitlines()) - 2
    at.write(file, at.translate("\n".join(lines), "/var/lib/reshard", "/etc/reshard", "/data"))
    command = [image.reshard, *SERVER["args"][:-1], at.at(file)]
    own = {k: v for k, v in image_environment().items() if k.startswith("RESHARD_")}
    paths = {k: str(at.at(v)) if v.startswith("/") else v for k, v in own.items()}
    with started(at, command, paths) as found:
        yield found


def test_the_nightly_job_converts_once_however_often_its_pod_dies(
    server: Live, image: Installation, at: Place
) -> None:
    """By a server that answers its probes, and that SIGTERM drains."""
    with server.client(who=None) as client:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert SERVER[probe]["httpGet"]["port"] == "http"
            answer = client.get(SERVER[probe]["httpGet"]["path"])
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    script = manifest("ConfigMap", "reshard-nightly")["data"]["convert.py"]
    (container,) = PODS[1]["containers"]
    at.write(container["command"][-1], script)
    given = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    at.write(given["TOKEN_FILE"], TOKENS["ann"][0] + "\n")
    port = manifest("Service", "reshard")["spec"]["ports"][0]["port"]
    assert given["SERVER"] == f"http://{manifest('Service', 'reshard')['metadata']['name']}:{port}"
    here = {"SERVER": server.url, "TOKEN_FILE": str(at.at(given["TOKEN_FILE"]))}
    told = []
    for job in ("nightly-1", "nightly-1", "nightly-2"):
        words = as_user([image.python, at.at(container["command"][-1])])
        environment = {**given, **here, "JOB": job}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told[0] == told[1] != told[2]
    assert "converted 1 tensors" in told[0]
    with server.client() as client:
        labels = [
            c["request"]["labels"]["job"]
            for c in client.get("/v1/conversions").json()["conversions"]
        ]
    assert labels == ["nightly-2", "nightly-1"]
    assert Path(at.at("/" + given["TARGET"])).is_dir()
    assert server.end(PODS[0]["terminationGracePeriodSeconds"]) == 0
