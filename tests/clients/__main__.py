"""``python -m tests.clients TOOLS``: generates clients of the service from its OpenAPI document, and works with them.

``make clients`` installs the generators and calls it: openapi-python-client, OpenAPI Generator (Python; it needs Java) and openapi-typescript
with openapi-fetch. With each client a program converts, lists, streams events, reads an answer narrowed by ``fields``, and cancels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import reshard
from tests.server.live import live
from tests.server.tokens import TOKENS

HERE = Path(__file__).parent
TOOLS = Path(sys.argv[1]).absolute()
"""The environment with the generators, and beside it what npm installed."""
SECONDS = 600
TARGETS = ["openapi_python_client", "openapi_generator", "openapi_fetch"]


def main() -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reshard.save(folder / "live" / "data" / "run" / "7", {"w": np.arange(4096.0)})
        idle = live(folder / "idle", module="tests.server.idle")
        with live(folder / "live") as server, idle as waiting, server.client(None) as client:
            document = folder / "openapi.json"
            document.write_bytes(client.get("/openapi.json").content)
            failed = [
                target
                for target in TARGETS
                if not works(target, folder, document, server.url, waiting.url)
            ]
    return bool(failed)


def works(target: str, folder: Path, document: Path, url: str, idle_url: str) -> bool:
    """Generates a client, runs its program and compares what it says with what is right; prints both."""
    made = {
        "openapi_python_client": with_openapi_python_client,
        "openapi_generator": with_openapi_generator,
        "openapi_fetch": with_openapi_fetch,
    }[target](document, folder)
    command = [*made, url, idle_url, TOKENS["ann"][0], f"data/out/{target}"]
    said = json.loads(run(command, folder).splitlines()[-1])
    expected = expected_of(f"data/out/{target}")
    print(f"{target}: {'ok' if said == expected else f'{said}, expected {expected}'}", flush=True)
    return bool(said == expected)


def expected_of(target: str) -> dict[str, Any]:
    """What each program says."""
    return {
        "state": "succeeded",
        "asked": {"source": "data/run/7", "target": target, "cast": [["float", "bfloat16"]]},
        "tensors": 1,
        "listed": [target],
        "narrowed": ["succeeded", None],
        "events": True,
        "cancelled": "cancelled",
        "refused": "urn:reshard:problem:not-found",
    }


def with_openapi_python_client(document: Path, folder: Path) -> list[str]:
    """The command of its program."""
    made = folder / "made_by_openapi_python_client"
    run([tool("openapi-python-client"), "generate", "--path", document, "--output-path", made, "--meta", "none"], folder)  # fmt: skip
    return [tool("python"), str(HERE / "use_openapi_python_client.py")]


def with_openapi_generator(document: Path, folder: Path) -> list[str]:
    """The command of its program."""
    run([tool("openapi-generator-cli"), "generate", "-g", "python", "-i", document, "-o", folder / "og", "--package-name", "made_by_openapi_generator"], folder)  # fmt: skip
    (folder / "og" / "made_by_openapi_generator").rename(folder / "made_by_openapi_generator")
    return [tool("python"), str(HERE / "use_openapi_generator.py")]


def with_openapi_fetch(document: Path, folder: Path) -> list[str]:
    """The command of its program, whose types TypeScript has checked."""
    made, modules = folder / "ts", TOOLS / "node_modules"
    made.mkdir()
    (made / "node_modules").symlink_to(modules)
    (made / "use.ts").write_text((HERE / "use_openapi_fetch.ts").read_text())
    (made / "package.json").write_text('{"type": "module"}')
    node = str(Path(sys.executable).parent / "node")
    run(
        [
            node,
            modules / "openapi-typescript/bin/cli.js",
            document,
            "-o",
            made / "schema.ts",
            "--default-non-nullable=false",
        ],
        made,
    )
    run([node, modules / "typescript/bin/tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck", "--lib", "es2022,dom,dom.iterable", "--types", "node", "use.ts"], made)  # fmt: skip
    return [node, str(made / "use.js")]


def tool(name: str) -> str:
    """A program of the environment with the generators."""
    return str(TOOLS / "bin" / name)


def run(command: list[Any], folder: Path) -> str:
    """The standard output of a program, which finds what was made in the folder. Raises SystemExit if it fails."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, cwd=folder, env=env, timeout=SECONDS
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))} failed:\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
