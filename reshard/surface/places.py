"""Where checkpoints are: locations, and which of them hold committed checkpoints."""

from __future__ import annotations

from reshard.formats.registry import committed_format
from reshard.formats.steps import committed_among, committed_steps
from reshard.storage.location import Location, locate

__all__ = ["Location", "committed_among", "committed_format", "committed_steps", "locate"]
