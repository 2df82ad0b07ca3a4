"""Starts a server on this host and converts through its Python client."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from reshard_server.client import Client

import reshard

folder = Path(tempfile.mkdtemp())
reshard.save(folder / "data" / "train", {"kernel": np.ones((64, 32), np.float32)})

command = [sys.executable, "-m", "reshard", "serve", "--insecure", "--port", "0"]
server = subprocess.Popen(
    [*command, "--root", f"data={folder / 'data'}"], cwd=folder, stderr=subprocess.PIPE, text=True
)
try:
    assert server.stderr is not None
    said = next(line for line in server.stderr if "listens on" in line)
    url = next(word for word in said.split() if word.startswith("http://"))
    with Client(url) as client:
        (report,) = client.convert("data/train", "data/served", mesh="model=8").wait()
        print(report)
        rows = client.tensors.read("data/served", "kernel", "0:8,:")
        assert rows.shape == (8, 32)
finally:
    server.terminate()
    server.wait()
