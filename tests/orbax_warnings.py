"""What stock Orbax warns of when it restores a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

RESTORE = """
    import json, logging, sys, warnings
    from absl import logging as absl_logging
    import orbax.checkpoint as ocp
    from orbax.checkpoint import v1

    logged = []
    class Handler(logging.Handler):
        def emit(self, record):
            if record.levelno >= logging.WARNING:
                logged.append(record.getMessage())
    for logger in (logging.getLogger(), absl_logging.get_absl_logger()):
        logger.addHandler(Handler())

    def said(path):
        logged.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if not path.endswith("v1"):
                ocp.StandardCheckpointer().restore(path)
                ocp.PyTreeCheckpointer().restore(path)
            v1.load(path)
        lines = {f"{w.category.__name__}: {w.message}" for w in caught} | set(logged)
        return [line.replace(path, "").replace("\\n", " ") for line in lines]

    print(json.dumps({path: said(path) for path in sys.argv[1:]}))
"""


def warnings_of(*checkpoints: Path) -> list[set[str]]:
    """The warnings of restoring each checkpoint, by every reader of Orbax, without its path.

    One fresh process restores them in order; a folder named ``v1`` is read by v1 only.
    """
    command = [sys.executable, "-c", textwrap.dedent(RESTORE), *map(str, checkpoints)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return [set(said[str(path)]) for path in checkpoints]
