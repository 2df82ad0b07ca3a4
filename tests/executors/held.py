"""Parts that are held back in their midst on whatever host they are, until a test lets them go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from reshard.conversion.parts import part as part_module
from reshard.conversion.parts.on_executor import PartWork
from reshard.engine import task_stream

AFTER = 1
"""Records of a part before it is held back."""


class HeldWork(Struct, frozen=True):
    """The work of parts; each is held back in ``folder`` until the file ``go`` is there, but not when it is done again.

    A file with the name of the part tells the process that began it; ``NAME.ended`` is there once it ended, in whatever way.
    """

    work: PartWork
    folder: str

    @property
    def max_memory(self) -> int:
        """As the work says, which executors ask for."""
        return self.work.max_memory

    @property
    def workers(self) -> int:
        """As the work says."""
        return self.work.workers

    def __call__(self, name: str) -> Any:
        """Does the part."""
        note = Path(self.folder, name.replace("/", "-of-"))
        if note.exists():
            return self.work(name)
        usual, batch, done = part_module._record, task_stream.BATCH_TASKS, 0

        def record(*arguments: Any) -> None:
            nonlocal done
            usual(*arguments)
            done += 1
            if done == AFTER:
                note.write_text(str(os.getpid()))
                while not Path(self.folder, "go").exists():
                    time.sleep(0.01)

        part_module._record, task_stream.BATCH_TASKS = record, 1
        try:
            return self.work(name)
        finally:
            part_module._record, task_stream.BATCH_TASKS = usual, batch
            note.with_suffix(".ended").touch()


def begun(folder: Path) -> dict[str, int]:
    """The process of each part that was held back, also of those that have ended."""
    notes = [note for note in folder.glob("*-of-*") if not note.suffix]
    return {note.name: int(text) for note in notes if (text := note.read_text())}


def go(folder: Path) -> None:
    """Lets all parts go on."""
    (folder / "go").touch()
