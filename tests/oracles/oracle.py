"""A library that tests ask for its answer: one process in an environment of its own, kept running.

``make oracles`` makes the environments. Tests that ask TensorFlow share the xdist group ``tensorflow``, those that
ask torch the group ``torch``, and those that ask the clients of clouds the group ``cloud``, so that only one worker starts it.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".oracles"
SECONDS = 400


class RefusedError(Exception):
    """The library raised; ``kind`` is the name of its exception's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Oracle:
    """A running library, such as ``"tensorflow"``; ``ask`` calls one of the functions of ``tensorflow_process.py``.

    ``variables`` are set in its environment. ``program`` names another process of the same environment, such as ``"loading"``.
    """

    def __init__(
        self, library: str, environments: Path = ENVIRONMENTS, variables: Mapping[str, str] | None = None,
        program: str | None = None,
    ) -> None:  # fmt: skip
        self.library = library
        python = environments / library / "bin" / "python"
        assert python.exists(), f"{python} is missing, so nothing can be compared: run make oracles"
        environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "XLA_FLAGS"}}
        self.process = subprocess.Popen(
            [python, Path(__file__).with_name(f"{program or library}_process.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment | dict(variables or {}), text=True,
        )  # fmt: skip

    def ask(self, function: str, **arguments: Any) -> Any:
        """Its answer, arrays as numpy arrays; RefusedError where it raised."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"function": function, "arguments": {k: encoded(v) for k, v in arguments.items()}}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answered = select.poll()  # ``select`` knows no descriptors from 1,024 on
        answered.register(self.process.stdout, select.POLLIN)
        line = self.process.stdout.readline() if answered.poll(SECONDS * 1000) else ""
        assert line, f"{self.library} did not answer {function} within {SECONDS} s, or ended"
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"], answer["text"])
        return decoded(answer["value"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=SECONDS)


def encoded(value: Any) -> Any:
    """Arrays, bytes and parts of an index as JSON."""
    if isinstance(value, list | tuple):
        return [encoded(v) for v in value]
    if isinstance(value, dict):
        return {name: encoded(v) for name, v in value.items()}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": text, "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, EllipsisType):
        return {"ellipsis": True}
    return int(value) if isinstance(value, np.integer) else value


def decoded(value: Any) -> Any:
    """Arrays and bytes from their JSON form."""
    if isinstance(value, list):
        return [decoded(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "array" in value:
        data = np.frombuffer(base64.b64decode(value["array"]), value["dtype"])
        return data.reshape(value["shape"])
    return {name: decoded(v) for name, v in value.items()}
