"""``reshard demo``: a real checkpoint resharded before your eyes, by the commands you would type."""

from __future__ import annotations

from reshard.demo.story import run_demo

__all__ = ["run_demo"]
