"""The pages about the service: commands work in their order; metrics, formula and routes are the server's."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import boto3
import httpx
import numpy as np
import orbax.checkpoint as ocp
import pytest
from botocore.exceptions import ClientError
from prometheus_client.parser import text_string_to_metric_families
from reshard_server.app import create_app
from reshard_server.schemas.conversion import OneTarget
from reshard_server.schemas.schedule import ScheduleBody
from reshard_server.settings import Settings, load_settings

import reshard
from tests.deploy.documents import most_bytes
from tests.docs.page import code_of
from tests.docs.serving import serving
from tests.server.asking import converted
from tests.server.live import ROOT, Live, environment, live
from tests.server.tokens import TOKENS

pytestmark = pytest.mark.xdist_group("service page")  # they share a server
DOCS = Path(__file__).parents[2] / "docs"
CLIENTS = DOCS / "how-to" / "service" / "clients.md"
SCHEDULES = DOCS / "how-to" / "service" / "schedules.md"
TOKENS_PAGE = DOCS / "how-to" / "service" / "tokens.md"
WEBHOOKS = DOCS / "how-to" / "service" / "webhooks.md"
API = DOCS / "reference" / "service" / "api.md"
HOSTS = DOCS / "how-to" / "service" / "more-than-one-host.md"
SETTINGS = DOCS / "reference" / "service" / "settings.md"
METRICS = (DOCS / "reference" / "service" / "monitoring.md").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the checkpoints that the page speaks of."""
    folder = tmp_path_factory.mktemp("page")
    weights = np.arange(256 * 32, dtype=np.float32).reshape(256, 32)
    tree = {"params": {"kernel": weights, "bias": weights[0]}}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "data" / "run7" / "1000", tree)
    reshard.identify(folder / "data" / "run7" / "1000", write=True)
    options = {"steps": [1000, 2500, 500], "form": "v0", "keep": None, "pause": 0}
    training = [sys.executable, ROOT / "tests" / "server" / "schedules" / "training_run.py"]
    steps = folder / "data" / "run7" / "checkpoints"
    subprocess.run(
        [*training, steps, json.dumps(options)],
        check=True,
        capture_output=True,
        env=environment(),
        timeout=300,
    )
    with live(folder) as found:
        yield found


def walk() -> str:
    """The commands of the page, without the line that names a server."""
    (block,) = (text for text in code_of(CLIENTS, "sh") if "ask()" in text)
    first, _, rest = block.partition("\n")
    assert first.startswith("export SERVER=")
    return rest


def test_every_command_works(server: Live, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-e", "-c", walk()],
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SERVER": server.url,
            "TOKEN": TOKENS["ann"][0],
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.count('"state":"succeeded"') >= 3
    assert (
        '"name":"weight_v000002","version":"000002","base_version":"000001"'
        in done.stdout.replace('": ', '":').replace(', "', ',"')
    )
    assert (tmp_path / "slice.bin").stat().st_size == 8 * 32 * 2
    assert (tmp_path / "shard-3.safetensors").stat().st_size > 0


CURL = """\
#!/usr/bin/env bash
exec /usr/bin/curl --silent --show-error --fail-with-body -H "Authorization: Bearer $TOKEN" "${@//http:\\/\\/127.0.0.1:8080/$SERVER}"
"""
"""The page's program with a token; the page shows none, because its server needs none."""


def test_the_other_commands_work_too(server: Live, tmp_path: Path) -> None:
    """The commands of the pages about schedules and the API, on a server that has run the page about clients."""
    (tmp_path / "curl").write_text(CURL)
    (tmp_path / "curl").chmod(0o755)
    body, *_ = code_of(SCHEDULES, "json")
    (tmp_path / "schedule.json").write_text(body)
    layout = {
        "mesh": {"axes": ["model"], "shape": [8]},
        "rules": [{"match": "kernel", "axes": [None, "model"]}],
    }
    with server.client() as client:
        assert client.put("/v1/layouts/serving", json={"layout": layout}).is_success
        wish = {"source": "data/run7/1000", "target": "data/asked", "layout": "serving"}
        made = client.post("/v1/conversions", json=wish).json()["id"]
        typed = [
            *code_of(SCHEDULES, "sh"),
            *(text.replace("$ ", "") for text in code_of(API, "console")),
        ]
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(typed)],
            env={"PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin", "SERVER": server.url, "TOKEN": TOKENS["ann"][0], "ID": made},
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        client.delete("/v1/schedules/serve-run7")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert (tmp_path / "slice.bin").stat().st_size == 128 * 32 * 2
    assert (tmp_path / "shard-3.safetensors").stat().st_size > 0
    proof, identity = (
        json.loads((tmp_path / f).read_text()) for f in ("proof.json", "identity.json")
    )
    assert (proof["root"], proof["slice"]) == (identity["root"], "0:256,0:32")
    whole = np.arange(256 * 32, dtype=np.float32).reshape(256, 32)
    found = reshard.SliceProof.from_dict(proof)
    found.check(whole, tmp_path / "identity.json", root=identity["root"])


def test_a_token_lets_its_reader_in(tmp_path: Path) -> None:
    """The page about tokens: two are made, the server reads them, and curl and boto3 get an answer with them only."""
    made, serve, curl, made_for_s3 = (
        text.partition("#")[0].strip()
        for block in code_of(TOKENS_PAGE, "console")
        for text in block.split("$ ")[1:]
    )
    (tmp_path / "srv").mkdir()
    (tmp_path / "server.toml").write_text(
        f'tokens_file = "tokens.toml"\nstate = "{tmp_path}/state"\n'
    )
    typed, _ = (
        subprocess.run(
            ["bash", "-c", line.replace("reshard", f"{sys.executable} -m reshard", 1)],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True,
        )
        for line in (made, made_for_s3)
    )  # fmt: skip
    words = serve.replace("/srv/checkpoints", str(tmp_path / "srv")).split()[1:]
    with serving(words, tmp_path, tmp_path / "log") as url:
        for token, status in ((typed.stderr.split()[-1], 0), ("rsh_unknown", 22)):
            asked = curl.replace("rsh_…", token).replace("http://127.0.0.1:8080", url)
            done = subprocess.run(["bash", "-c", f"{asked} --silent --fail"], capture_output=True)
            assert done.returncode == status, done
        kept = tomllib.loads((tmp_path / "tokens.toml").read_text())["tokens"][1]
        for secret, code in (
            (kept["s3_secret"], None),
            ("another secret", "SignatureDoesNotMatch"),
        ):
            client = boto3.client(
                "s3", endpoint_url=f"{url}/s3", region_name="x", aws_access_key_id="loader", aws_secret_access_key=secret
            )  # fmt: skip
            with nullcontext() if code is None else pytest.raises(ClientError, match=code):
                assert [each["Name"] for each in client.list_buckets()["Buckets"]] == ["views"]


def test_a_receiver_is_told(tmp_path: Path) -> None:
    """The page about webhooks: a secret is made, the server signs with it, and the receiver of the page knows the signature."""
    make, convert = (text.removeprefix("$ ").strip() for text in code_of(WEBHOOKS, "console"))
    (code,), (toml,), (schedule,) = (code_of(WEBHOOKS, n) for n in ("python", "toml", "json"))
    assert ScheduleBody.model_validate_json(schedule).notify == ("https://hooks.example/reshard",)
    subprocess.run(["bash", "-c", make], cwd=tmp_path, check=True)
    secrets = tmp_path / "secrets"
    assert secrets.stat().st_mode & 0o777 == 0o600
    (tmp_path / "page.toml").write_text(toml.replace('"hooks.example"', '"127.0.0.1"'))
    settings = load_settings({}, tmp_path / "page.toml")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = [sys.executable, "-c", code.replace("8000", port)]
    env = {**environment(), "SECRET": secrets.read_text().strip()}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as receiver:
        try:
            reshard.save(tmp_path / "data" / "run" / "1000", {"w": np.arange(8, dtype="f4")})
            given = settings.model_dump(mode="json", include={"notify_hosts", "notify_private"})
            with live(tmp_path, notify_secrets_file=str(secrets), **given) as server:
                line = convert.replace("8000", port).replace(
                    "reshard", f"{sys.executable} -m reshard", 1
                )
                asked = {"RESHARD_SERVER": server.url, "RESHARD_TOKEN": TOKENS["ann"][0]}
                subprocess.run(["bash", "-c", line], env={**environment(), **asked}, check=True)
                assert receiver.stdout is not None
                event, kind, target = receiver.stdout.readline().split()
                # A message with another signature is refused.
                forged = {
                    "webhook-id": event,
                    "webhook-timestamp": "1",
                    "webhook-signature": "v1,x",
                }
                url = f"http://127.0.0.1:{port}/reshard"
                assert httpx.post(url, headers=forged, content=b"{}").status_code == 401
        finally:
            receiver.kill()
    assert (kind, target) == ("dev.reshard.conversion.succeeded", "data/served/1000")


def test_the_python_of_the_page_runs(
    server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(code_of(CLIENTS, "python"))
    token = TOKENS["ann"][0]
    here = {
        "http://checkpoints:8080": server.url,
        "rsh_...": token,
        "data/run/1000": "data/run7/1000",
        "d0c8...": reshard.identify(server.log.parent / "data" / "run7" / "1000").root,
    }
    for there, instead in here.items():
        assert there in code
        code = code.replace(there, instead)
    layout = {
        "mesh": {"axes": ["model"], "shape": [8]},
        "rules": [{"match": "kernel", "axes": [None, "model"]}],
    }
    with server.client() as client:
        assert client.put("/v1/layouts/serving", json={"layout": layout}).is_success
    names: dict[str, Any] = {}
    exec(compile(code, str(CLIENTS), "exec"), names)  # noqa: S102  the code of the page
    assert names["report"].target == "data/served/run"
    assert [one.kind for one in names["chain"]] == ["full", "delta"]
    assert names["delta"].version == "000002"
    assert names["kernel"].shape == names["checked"].shape == (128, 32)
    assert (tmp_path / "shard-3.safetensors").exists()


def test_the_commands_that_ask_a_server_work(server: Live, tmp_path: Path) -> None:
    """The command lines of the page about clients, in their order."""
    typed = [text for text in code_of(CLIENTS, "sh") if "reshard " in text and "ask()" not in text]
    assert len(typed) == 3
    (tmp_path / "token").write_text(TOKENS["ann"][0])
    (tmp_path / "serving.yaml").write_text(
        "mesh: {axes: [model], shape: [8]}\nrules: [{match: kernel, axes: [null, model]}]\n"
    )
    text = "\n".join(typed).replace("data/run/1000", "data/run7/1000")
    text = text.replace("data/served", "data/by-command")  # another page of the same server made it
    done = subprocess.run(
        ["bash", "-e", "-c", text.replace("http://checkpoints:8080", server.url)],
        env={**environment(), "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"},
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "equal: 2 of 2 tensors" in done.stdout
    assert "data/run7/1000 → data/new" in done.stdout
    assert "only failed and cancelled ones can be retried" in done.stderr


def test_bodies_and_settings_of_the_page_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (conversion,) = map(json.loads, code_of(API, "json"))
    schedules = [*map(json.loads, code_of(SCHEDULES, "json"))]
    OneTarget.model_validate(conversion)
    assert [ScheduleBody.model_validate(one).delta is None for one in schedules] == [True, False]
    (toml,) = code_of(SETTINGS, "toml")
    (tmp_path / "server.toml").write_text(toml)
    assert load_settings({}, tmp_path / "server.toml").max_memory == 512 << 20
    host, cluster = code_of(HOSTS, "toml")
    (tmp_path / "server.toml").write_text(host)
    assert load_settings({}, tmp_path / "server.toml").labels == {"disk": "nvme", "zone": "a"}
    (tmp_path / "server.toml").write_text(cluster)
    engines = load_settings({}, tmp_path / "server.toml").engines
    assert engines is not None and engines.ray is not None
    (variables,) = (text for text in code_of(SETTINGS, "sh") if "export RESHARD_ROOTS" in text)
    for name, value in re.findall(
        r"^export (\w+)='?([^'#\n]*?)'?\s*(?:#.*)?$", variables, re.MULTILINE
    ):
        monkeypatch.setenv(name, value.replace("9f86…", "0" * 64))
    assert {name: str(path) for name, path in load_settings({}, None).roots.items()} == {
        "data": "/srv/checkpoints", "served": "/mnt/served",
    }  # fmt: skip


def test_every_route_is_asked() -> None:
    asked = re.sub(r"\$\{?(ID|OTHER|FULL|DELTA|DELIVERY)\b", "{id}", walk()).replace(
        "serve-run7", "{name}"
    )
    asked = asked.replace("/layouts/serving", "/layouts/{name}").replace("/maps/to_hf", "/maps/{name}").replace("/views/hf", "/views/{name}")  # fmt: skip
    paths = {
        p
        for p in create_app(Settings(insecure=True)).openapi()["paths"]
        if not p.startswith("/pages")
    }
    wanted = {re.sub(r"\{\w+\}", "{}", path) for path in paths}
    named = {re.sub(r"\{\w+\}", "{}", path) for path in re.findall(r"\$SERVER([^\s\"?]+)", asked)}
    assert wanted == named


def test_the_metrics_are_those_of_a_server(server: Live) -> None:
    with server.client() as client:
        done = converted(
            client, source="data/run7/1000", target="data/measured"
        )  # some have labels
        assert done["state"] == "succeeded", done["error"]
        text = client.get("/metrics").text
    table = dict(
        re.findall(r"^\| `(reshard_\w+)(?:\{[\w,]*\})?` \| \w+ \| (.*) \|$", METRICS, re.MULTILINE)
    )
    told = {
        f"{f.name}_total" if f.type == "counter" else f.name: (f.type, f.documentation)
        for f in text_string_to_metric_families(text)
        if f.name.startswith("reshard_") and not f.name.endswith("_created")
    }
    assert {name: words for name, (_, words) in told.items()} == table
    for name, (kind, _) in told.items():
        labels = {
            k
            for f in text_string_to_metric_families(text)
            for s in f.samples
            if s.name.startswith(name)
            for k in s.labels
        }
        shown = ",".join(k for k in ("method", "route", "status", "state", "host") if k in labels)
        assert f"| `{name}{{{shown}}}` | {kind} |" in METRICS or (
            not shown and f"| `{name}` | {kind} |" in METRICS
        )


def test_the_memory_of_the_default_settings() -> None:
    text = SETTINGS.read_text()
    assert (
        "256 MiB + (running + looks + reads) × (max_memory + 128 MiB) + streams × stream_memory\n"
        "        + view_cache + 32 MiB\n" in text
    )
    assert f"that is {most_bytes(Settings()) / (1 << 30):.2f} GiB" in text
    deployed = Settings(
        max_memory=512 << 20, running=2, looks=2, reads=1, streams=32, stream_memory=16 << 20,
        view_cache=64 << 20,
    )  # fmt: skip
    assert f"it is {most_bytes(deployed) >> 20} MiB" in text
