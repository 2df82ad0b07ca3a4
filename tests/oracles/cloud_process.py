"""Runs inside the environment of the clouds' clients: one JSON request a line in, one JSON answer a line out.

Nothing of reshard is imported here. Standard output is kept for answers alone; what the libraries
print goes to standard error. ``cloud_clients.py`` and ``cloud_orbax.py`` have what is answered.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
# gcsfs asks by gRPC whether a bucket has folders; the server of the tests speaks HTTP only, and has none.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import cloud_clients  # noqa: E402  after the environment is set
import cloud_orbax  # noqa: E402  after the environment is set
from oracle import decoded, encoded  # noqa: E402  after the environment is set

FUNCTIONS: dict[str, Any] = {**cloud_clients.FUNCTIONS, **cloud_orbax.FUNCTIONS}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = {name: decoded(value) for name, value in request["arguments"].items()}
        return {"value": encoded(FUNCTIONS[request["function"]](**arguments))}
    except Exception as error:  # noqa: BLE001  what a client raises is an answer too
        return {"error": type(error).__name__, "text": str(error)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
