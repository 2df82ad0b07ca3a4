"""Places of checkpoints: locations, a test for committed checkpoints, and the removal of a finished output."""

from __future__ import annotations

from reshard.deltas.versions import version_folders
from reshard.formats.delta.index_values import version_text
from reshard.formats.delta.read_delta import version_of_name
from reshard.formats.known_formats import files_of
from reshard.formats.registry import (
    committed_format,
    is_there,
    may_stand_above_others,
    single_files,
    viewed,
)
from reshard.formats.steps import committed_among, committed_steps, named_steps, names_in
from reshard.formats.tensorflow.files import prefixes_in
from reshard.storage.location import Location, locate
from reshard.storage.targets import remove_finished, stamp_of_finished

__all__ = [
    "Location",
    "committed_among",
    "committed_format",
    "committed_steps",
    "files_of",
    "is_there",
    "locate",
    "may_stand_above_others",
    "named_steps",
    "names_in",
    "prefixes_in",
    "remove_finished",
    "single_files",
    "stamp_of_finished",
    "version_folders",
    "version_of_name",
    "version_text",
    "viewed",
]
