"""Does the steps of a page, as a reader with one shell and one interpreter: ``python reader.py STEPS DONE``.

STEPS is a JSON list of ``tests.docs.page.Step``. A list of what each step said goes to DONE, up to and
including the first that fails. Imports the standard library only, so that the page decides when jax begins its backends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

SHELL = '{}\n__code=$?; pwd >"$__STATE/pwd"; env -0 >"$__STATE/env"; exit $__code'
"""Where a command leads, and what it exports, counts for the next one."""


def do(step: dict[str, Any], namespace: dict[str, Any], state: Path) -> dict[str, Any]:
    """What one step said, and what went wrong with it."""
    if step["kind"] == "file":
        path = Path(step["name"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step["text"], "utf-8")
        return {"said": "", "wrong": ""}
    return command(step, state) if step["kind"] == "command" else python(step, namespace)


def command(step: dict[str, Any], state: Path) -> dict[str, Any]:
    """A command in bash, with the folder and the variables that the one before left."""
    done = subprocess.run(
        ["bash", "-c", SHELL.format(step["text"])],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "__STATE": str(state)},
    )  # fmt: skip
    if (state / "pwd").exists():
        os.chdir((state / "pwd").read_text().rstrip("\n"))
        lines = (state / "env").read_text().split("\0")
        kept = dict(line.split("=", 1) for line in lines if "=" in line)
        os.environ.clear()
        os.environ.update({name: value for name, value in kept.items() if name != "__STATE"})
    wrong = f"exit code {done.returncode}\n{done.stdout}{done.stderr}" if done.returncode else ""
    return {"said": done.stdout, "errors": done.stderr, "wrong": wrong}


def python(step: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """Code in the page's interpreter; a traceback names lines of the page."""
    said = io.StringIO()
    try:
        code = compile("\n" * (step["line"] - 1) + step["text"], namespace["__file__"], "exec")
        with contextlib.redirect_stdout(said):
            exec(code, namespace)  # noqa: S102  the code of the page
    except BaseException:  # noqa: BLE001  whatever it is, the page does not run
        return {"said": said.getvalue(), "wrong": said.getvalue() + traceback.format_exc()}
    return {"said": said.getvalue(), "wrong": ""}


def main(steps: Path, done: Path) -> None:
    """Do every step, and write down what each said."""
    sys.path[0] = ""
    page = json.loads(steps.read_text("utf-8"))
    namespace = {"__name__": "__main__", "__file__": page["page"]}
    said: list[dict[str, Any]] = []
    for step in page["steps"]:
        said.append(do(step, namespace, done.parent))
        done.write_text(json.dumps(said), "utf-8")
        if said[-1]["wrong"]:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
