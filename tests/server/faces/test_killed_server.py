"""A server that is killed in the middle of a download: the client goes on where it was, once another server answers at the address."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.emulators.buckets import Bucket
from tests.emulators.faults import Call
from tests.oracles.oracle import ENVIRONMENTS
from tests.ports import kept_port
from tests.server.faces.viewed import Programs, put_view, sums, variables
from tests.server.live import Live, live

TENSORS, MIB = 20, 1 << 20
FILE = "model.safetensors"
CAST = [["float", "bfloat16"]]


@pytest.mark.parametrize("library", ["models", pytest.param("torch", marks=pytest.mark.campaign)])
def test_a_download_goes_on(s3_bucket: Bucket, tmp_path: Path, library: str) -> None:
    """By huggingface_hub, which tries five times; 0.36 keeps what it has for the next call, 2.4 does not."""
    random = np.random.default_rng(3)
    tree = {f"w{n:02}": random.standard_normal((4, MIB // 4), np.float32) for n in range(TENSORS)}
    source, out = f"{s3_bucket.url}/run", tmp_path / "out"
    reshard.save(source, tree)
    reshard.convert(source, tmp_path / "converted", to="safetensors", cast=CAST)
    with kept_port() as port:
        words = ("--root", f"models={s3_bucket.url}", "--port", str(port))
        with live(tmp_path / "server", *words) as server:
            put_view(server, "run", "root", source="models/run", cast=CAST)
            # 32 MiB are read by then. Of these the client has written 10 MiB at least, a piece of it, whatever is on its way.
            kill = Call(lambda: server.process.send_signal(signal.SIGKILL))
            rule = s3_bucket.emulator.faults.add(kill, operation="get", key=r"w16.*/c")
            client = download(library, server, out)
            server.process.wait(60)
            assert rule.struck
        s3_bucket.emulator.faults.clear()
        with live(tmp_path / "server", *words) as server:
            while client.wait(120):  # it has tried too often
                client = download(library, server, out)
            # The AWS CLI takes such a file in several ranges at once.
            programs = Programs(variables(server.url, tmp_path / "home", "root"))
            programs.said("models", "aws", "s3", "cp", f"s3://views/run/{FILE}", tmp_path / "bucket" / FILE)  # fmt: skip
            answered = [
                line["status"] for line in server.lines()
                if line.get("method") == "GET" and line["path"].startswith("/hf") and line["path"].endswith(FILE)
            ]  # fmt: skip
    assert answered == [206] or library == "torch"
    whole = sums(tmp_path / "converted")[FILE]
    assert sums(out) == sums(tmp_path / "bucket") == {FILE: whole}


def download(library: str, server: Live, out: Path) -> subprocess.Popen[bytes]:
    program = ENVIRONMENTS / library / "bin" / "hf"
    return subprocess.Popen(
        [program, "download", "views/run", "--local-dir", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", **variables(server.url, out.parent / "home", "root")},
    )  # fmt: skip
