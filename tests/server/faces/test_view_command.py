"""``reshard view`` as a process: stock clients load what it serves, and its signals, words and refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

import reshard
from reshard.cli.app import run
from tests.oracles.oracle import ENVIRONMENTS
from tests.server.faces.tiny_llama import save_llama
from tests.server.faces.viewing import SECONDS, Viewing, running

CLIENT = Path(__file__).with_name("hub_client.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("view")
    (found / "words").write_text(json.dumps(save_llama(found)))
    (found / "token").write_text("a secret\n".replace(" ", "-"))
    options: dict[str, Any] = {"map": found / "map.json", "config": found / "config"}
    reshard.convert(
        found / "llama", found / "converted", to="safetensors", file_bytes=20_000, **options
    )
    return found


def viewing(folder: Path, *words: str) -> AbstractContextManager[Viewing]:
    return running(folder, "llama", *json.loads((folder / "words").read_text()), *words)


@pytest.mark.xdist_group("torch")
def test_stock_clients_load_a_view(folder: Path, tmp_path: Path) -> None:
    with viewing(folder, "--name", "tiny") as view:
        export, download, *for_s3 = view.said().splitlines()
        variable, _, endpoint = export.removeprefix("export ").partition("=")
        url = endpoint.removesuffix("/hf")
        assert for_s3 == [
            f"export AWS_ENDPOINT_URL={url}/s3 AWS_ACCESS_KEY_ID=view AWS_SECRET_ACCESS_KEY=view",
            "aws s3 sync s3://views/tiny tiny",
        ]
        listed = httpx.get(
            f"{url}/s3/views?list-type=2&prefix=tiny/", headers={"Host": "localhost"}
        )
        assert "<Key>tiny/config.json</Key>" in listed.text
        assert (variable, download) == ("HF_ENDPOINT", "hf download views/tiny")
        python = ENVIRONMENTS / "torch" / "bin" / "python"
        assert python.exists(), f"{python} is missing, so nothing can be compared: run make oracles"
        done = subprocess.run(
            [python, CLIENT, "views/tiny", folder / "converted"],
            capture_output=True, text=True, check=False, timeout=SECONDS * 3,
            env={"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path / "home"), variable: endpoint, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert view.end() == 0
        assert "error" not in view.errors()
    found = json.loads(done.stdout)
    names = found["expected"]
    names.remove("slices.json")  # the source records no digests
    assert found == {
        "downloaded": dict.fromkeys(names, True), "expected": names, "listed": names, "range": True, "parameters": {"F32": 14432},
        "tensors": 12, "paths": ["config.json"], "branches": ["main"], "models": ["views/tiny"], "logits": True,
        "errors": ["RemoteEntryNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError"],
    }  # fmt: skip


def test_a_download_goes_on_at_a_server_that_was_started_again(folder: Path) -> None:
    with viewing(folder, "--json") as view:
        told = json.loads(view.said())
        sizes = {one["path"]: one["nbytes"] for one in told["files"]}
        path = max(sizes, key=lambda path: sizes[path])
        url = f"{told['endpoint']}/{told['model']}/resolve/{told['revision']}/{path}"
        first = httpx.get(url, headers={"Range": "bytes=0-4999"})
        view.end(signal.SIGKILL)
    with viewing(folder, "--json") as again:
        url = url.replace(told["endpoint"], json.loads(again.said())["endpoint"])
        known = {"Range": "bytes=5000-", "If-Range": first.headers["etag"]}
        rest = httpx.get(url, headers=known)
        assert again.end(signal.SIGINT) == 0
    assert (first.status_code, rest.status_code) == (206, 206)
    assert first.content + rest.content == (folder / "converted" / path).read_bytes()


def test_what_it_prints(folder: Path) -> None:
    """A program gets one object; a person lines for the shell on stdout, and the rest on stderr."""
    with viewing(folder, "--json", "--quantize-like", "x") as view:
        assert view.process.wait(SECONDS) == 1
        assert json.loads(view.said())["error"]["type"] == "MissingError"
    with viewing(folder, "--json") as view:
        told = json.loads(view.said())
        assert list(told) == [
            "command", "source", "model", "revision", "endpoint", "s3_endpoint", "warnings", "files",
        ]  # fmt: skip
        assert told["model"] == "views/llama"
        assert view.end() == 0
    with viewing(folder, "--token-file", "token") as view:
        export, download, for_s3, _ = view.said().splitlines()
        assert for_s3.endswith('AWS_SECRET_ACCESS_KEY="$(cat token)"')
        assert export.endswith('/hf HF_TOKEN="$(cat token)"')
        assert f"{folder}/llama: 6 files, " in view.errors()
        endpoint = export.split()[1].partition("=")[2]
        url = f"{endpoint}/api/models/{download.split()[-1]}"
        assert httpx.get(url).status_code == 401
        known = {"Authorization": "Bearer a-secret"}
        assert httpx.get(url, headers=known).json()["sha"] == told["revision"]
        assert view.end() == 0


def test_a_changed_source_is_told_on_stderr(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "llama", tmp_path / "llama")
    for name in ("words", "map.json", "config/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / name, tmp_path / name)
    with viewing(tmp_path, "--json") as view:
        told = json.loads(view.said())
        for file in (tmp_path / "llama").rglob("*"):
            os.utime(file)
        path = told["files"][-2]["path"]
        answer = httpx.get(f"{told['endpoint']}/{told['model']}/resolve/main/{path}")
        assert answer.status_code == 409
        assert "if SRC was changed, start reshard view again" in view.errors()
        assert f"{tmp_path}/llama was changed since the view of it was planned" in view.errors()
        assert view.end() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--host 0.0.0.0", "--host is '0.0.0.0', which other machines reach, and no token is asked for; listen on 127.0.0.1, or give --token-file"),
        ("--overwrite", "no such option: --overwrite"),
        ("--target x=y", "no such option: --target"),
        ("--port 70000", "70000 is not in the range 0<=x<=65535"),
        ("--mesh x", "mesh 'x': expected NAME=SIZE"),
        ("--to safetensors --ocdbt", "ocdbt is an option of Orbax targets"),
    ],
)  # fmt: skip
def test_usage_errors(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    assert run(["view", "ckpt", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said.lower() in err.lower()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to dcp", "hold checksums of all of their tensors"),
        ("--token-file nothing", "the token file 'nothing' cannot be read"),
        ("--select nothing", "nothing"),
        ("--host 203.0.113.1 --token-file TOKEN", "cannot listen on 203.0.113.1 port 8080"),
    ],
)
def test_refusals(folder: Path, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    given = words.replace("TOKEN", str(folder / "token")).split()
    assert run(["view", str(folder / "llama"), *given]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
