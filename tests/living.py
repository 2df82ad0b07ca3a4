"""Whether a process is still running."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """False for a zombie too, which stays where nobody waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
