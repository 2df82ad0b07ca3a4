"""Where checkpoints are: locations, and which of them hold committed checkpoints."""

from __future__ import annotations

from reshard.formats.registry import committed_format, files_of, is_there, viewed
from reshard.formats.steps import committed_among, committed_steps, names_in
from reshard.formats.tensorflow.files import prefixes_in
from reshard.storage.location import Location, locate

__all__ = [
    "Location",
    "committed_among",
    "committed_format",
    "committed_steps",
    "files_of",
    "is_there",
    "locate",
    "names_in",
    "prefixes_in",
    "viewed",
]
