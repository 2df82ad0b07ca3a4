"""``reshard-init [OPTIONS of reshard convert] SOURCE TARGET``: fills the folder of an init container with a converted checkpoint.

TARGET may be an empty folder that a volume is mounted at: no rename replaces a mount point. So the checkpoint is made in a hidden folder in
TARGET, and proved there; then its files are moved up. Nothing reads TARGET meanwhile, since the other containers of a pod start after its
init containers.

``.reshard-init.json`` in TARGET has the words of the command. It is written before the first file is moved. So a container that is started
again moves what is left, and reads no source: a step that is the latest now does not change what the pod serves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from reshard.cli.app import ended, main, run
from reshard.cli.console import say
from reshard.cli.options import Misuse
from reshard.errors import ReshardError, TargetExistsError
from reshard.storage.local.files import storage_errors

RECORD = ".reshard-init.json"
MADE = ".reshard-init"
"""The folder in TARGET in which the checkpoint is made."""

_MARK = re.compile(r"[a-z0-9-]+\+(?=(?:gs|s3|az)://)")
"""A word before the scheme of a URL, such as ``reshard+gs://bucket/run``. KServe chooses a container by it; for us it says nothing."""

_USAGE = "usage: reshard-init [OPTIONS of reshard convert] SOURCE TARGET"


def initialize(args: Sequence[str]) -> int:
    """Fills TARGET; returns the exit code, which is that of ``reshard convert``."""
    return ended(lambda: _fill(args), "--json" in args)


def _fill(args: Sequence[str]) -> int:
    if args in (["--help"], ["-h"]):
        print(
            f"{_USAGE}\n\nsee: reshard convert --help, docs/how-to/serve-from-a-training-bucket.md"
        )
        return 0
    *options, source, target = args if len(args) > 1 else ("", "", "-")
    if source.startswith("-") or target.startswith("-"):
        raise Misuse(f"expected SOURCE and TARGET as the last words; {_USAGE}")
    words, folder = [*options, _MARK.sub("", source, count=1)], Path(target)
    made = folder / MADE
    if not _is_made(folder, words):
        if (code := run(["convert", *words, str(made)])) != 0:
            return code
        if not made.is_dir():
            raise ReshardError(
                f"no folder was made at {str(made)!r}; give no option that converts nothing here (--dry-run) or makes a single file"
            )
        _record(folder, words)
    _move_up(made, folder)
    say(f"{target} has {words[-1]}, converted")
    return 0


def _is_made(folder: Path, words: Sequence[str]) -> bool:
    """True if an earlier start did the conversion. TargetExistsError if it did another one."""
    record = folder / RECORD
    with storage_errors("read", record):
        if not record.exists():
            return False
        text = record.read_text(errors="replace")
    try:
        recorded = json.loads(text)
    except ValueError:
        recorded = text
    if recorded != words:
        raise TargetExistsError(
            f"{str(folder)!r} has what another command made ({RECORD}: {recorded}), and was left untouched; give an empty folder"
        )
    return True


def _record(folder: Path, words: Sequence[str]) -> None:
    """Records durably that the checkpoint is whole."""
    new = folder / f"{RECORD}.new"
    with storage_errors("write", new), new.open("w") as file:
        file.write(json.dumps(words))
        file.flush()
        os.fsync(file.fileno())
        new.replace(folder / RECORD)


def _move_up(made: Path, folder: Path) -> None:
    if not made.exists():  # an earlier start moved everything
        return
    with storage_errors("move", made):
        for path in sorted(made.iterdir()):
            there = folder / path.name
            # Against a file of somebody else, which a rename would replace.
            if os.path.lexists(there):
                raise TargetExistsError(
                    f"{str(there)!r} is there already, and the converted checkpoint has a file of this name; give an empty folder"
                )
            path.rename(there)
        made.rmdir()


def start() -> None:
    """Runs the command with the words of this process, and ends it."""
    main(initialize)


if __name__ == "__main__":
    start()
