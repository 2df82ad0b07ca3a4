"""The connection to the API: of the own cluster by default, with its certificates checked; and the settings that name another."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from reshard_server.engines.job_api import JobApiError, open_api
from reshard_server.serve import serve
from reshard_server.settings import KubernetesSettings, load_settings

from reshard.errors import ReshardError
from tests.server.engines.cluster import NAMESPACE, TOKEN, cluster
from tests.server.engines.templates import TEMPLATE


def settings(folder: Path, **more: Any) -> KubernetesSettings:
    (folder / "token").write_text(TOKEN)
    given = {"namespace": NAMESPACE, "image": "i", "template": "t", "token_file": folder / "token"}
    return KubernetesSettings(**given, **more)


def certify(folder: Path) -> Path:
    """A key and a certificate for this address that signs itself, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = folder / "ca.crt"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *form)
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return file


def test_the_own_cluster_is_asked_and_its_certificate_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certify(tmp_path))
    (tmp_path / "other").mkdir()
    with cluster(tmp_path, tmp_path, tls) as made:
        host, port = made.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # it must not get the token
        with open_api(settings(tmp_path, ca_file=tmp_path / "ca.crt")) as api:
            assert api.get("reshard-1") is None
        other = settings(tmp_path, ca_file=certify(tmp_path / "other"))
        with open_api(other) as api, pytest.raises(JobApiError, match="certificate verify failed") as refused:  # fmt: skip
            api.get("reshard-1")
        assert refused.value.may_pass
    assert made.asked == [("GET", 404)]


def test_an_address_of_version_6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    with open_api(settings(tmp_path, ca_file=certify(tmp_path))) as api:
        assert str(api.client.base_url) == "https://[fd00::1]"


def test_outside_of_a_cluster_the_api_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        ReshardError, match=r"is in no pod of a cluster .*; set engines\.kubernetes\.api to"
    ):
        open_api(settings(tmp_path)).__enter__()


def test_missing_certificates_are_told(tmp_path: Path) -> None:
    own = settings(tmp_path, api="https://127.0.0.1:1", ca_file=tmp_path / "none")
    with pytest.raises(
        ReshardError, match=r"name a file with them as engines\.kubernetes\.ca_file"
    ):
        open_api(own).__enter__()


@pytest.mark.parametrize("content", [b"[]", b"<html>sign in</html>"])
def test_an_answer_of_something_else_is_told(tmp_path: Path, content: bytes) -> None:
    with cluster(tmp_path, tmp_path) as made:
        made.rewrites = lambda _: content
        with open_api(settings(tmp_path, api=made.url)) as api, pytest.raises(JobApiError) as refused:  # fmt: skip
            api.get("reshard-1")
    assert str(refused.value) == (
        f"{made.url}/apis/batch/v1/namespaces/reshard/jobs/reshard-1 was answered with 404 and not as the Kubernetes API answers; check that "
        "engines.kubernetes.api is its URL"
    )
    assert refused.value.may_pass  # a gateway that starts knows no way to the API yet


def test_settings_from_a_file_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.toml"
    file.write_text('[engines.kubernetes]\nnamespace = "a"\nimage = "i"\ntemplate = "job.yaml"\n')
    monkeypatch.setenv("RESHARD_ENGINES__KUBERNETES__NAMESPACE", "b")
    found = load_settings({}, file).engines
    assert found is not None
    assert found.kubernetes == KubernetesSettings(namespace="b", image="i", template=Path("job.yaml"))  # fmt: skip
    assert found.kubernetes.token_file == Path(
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('image = "i"', "engines.kubernetes.namespace: "),
        ('namespace = "Upper"', "engines.kubernetes.namespace: "),
        ('api = "http://10.0.0.1:6443"', "engines.kubernetes.api: "),
        ('api = "https://user:pass@host"', "engines.kubernetes.api: "),
        ("parallelism = 0", "engines.kubernetes.parallelism: expected at least 1"),
        ('tempalte = "x"', "engines.kubernetes.tempalte: there is no member of this name"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(f"[engines.kubernetes]\n{lines}\n")
    with pytest.raises(ReshardError) as refused:
        load_settings({}, file)
    assert words in str(refused.value)


@pytest.mark.parametrize("api", ["http://127.0.0.1:8001", "http://[::1]", "https://k8s.example/k8s/clusters/c-1"])  # fmt: skip
def test_apis_that_can_be(tmp_path: Path, api: str) -> None:
    assert settings(tmp_path, api=api).api == api


def test_the_server_refuses_a_template_with_its_own_fields_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TEMPLATE.replace("spec:", "spec:\n  completions: 3", 1))
    engine = {"namespace": "n", "image": "i", "template": tmp_path / "job.yaml"}
    given = load_settings({"insecure": True, "state": tmp_path, "engines": {"kubernetes": engine}}, None)  # fmt: skip
    with pytest.raises(ReshardError, match=r"sets spec\.completions, which the service sets itself; leave them out"):  # fmt: skip
        serve(given)
