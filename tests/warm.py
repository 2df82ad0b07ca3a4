"""The programs ``python`` and ``reshard`` of pages, as forks of a process that has imported what most of them import.

A fresh Python takes up to two seconds of each command, most of them for jax, Flax and Orbax. Keras is not imported, since a page
names its backend before. What is neither a command of reshard nor a file of Python, or has a PYTHONPATH, runs as usual.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import multiprocessing.process
import os
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
IMPORTED = ("tests.server.imported", "flax.nnx", "optax", "orbax.checkpoint")
PROGRAM = """\
#!{python} -IS
import json, os, socket, sys
name, first = os.path.basename(sys.argv[0]), "".join(sys.argv[1:2])
if "PYTHONPATH" in os.environ or (name == "python" and not first.endswith(".py")):
    usual = os.path.join({usual!r}, name)
    os.execv(usual, [usual, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as warm:
    warm.connect({address!r})
    given = json.dumps([sys.argv, os.getcwd(), dict(os.environ)])
    socket.send_fds(warm, [given.encode()], [0, 1, 2])
    sys.exit(*(warm.recv(1) or [255]))
"""


@cache
def programs() -> Path:
    """The folder of the two programs, which work as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # a socket needs a short path
    python, address = Path(sys.executable), str(folder / "socket")
    for name in ("python", "reshard"):
        text = PROGRAM.format(python=python, usual=str(python.parent), address=address)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(server.fileno())],
            stdin=subprocess.PIPE, pass_fds=[server.fileno()], cwd=ROOT,
        )  # fmt: skip
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.communicate)
    return folder


def main(server: socket.socket) -> None:
    """Forks for each program that is started, until the process of the tests ends."""
    for name in IMPORTED:
        import_module(name)
    logging.root.handlers.clear()  # one is Orbax'
    gc.freeze()
    while 0 not in select.select([0, server], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            _become(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(connection: socket.socket) -> NoReturn:
    text, given, *_ = socket.recv_fds(connection, 1 << 20, 3)
    for number, descriptor in enumerate(given):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, folder, variables = json.loads(text)
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(variables)
    code = _run(words)
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of Python: waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    connection.send(bytes([code]))
    os._exit(code)


def _run(words: list[str]) -> int:
    """Runs the program; its exit code."""
    program, *rest = words
    sys.argv = words if Path(program).name == "reshard" else rest
    try:
        if sys.argv is words:
            from reshard.cli import main

            main()
        else:
            sys.path[0] = str(Path(rest[0]).resolve().parent)
            runpy.run_path(rest[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else ended.code is not None
    except BaseException:  # noqa: BLE001  as Python ends with any
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
