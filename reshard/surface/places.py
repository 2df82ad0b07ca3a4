"""Where checkpoints are: locations, which of them hold committed checkpoints, and the removal of a finished output under the lease of its target."""

from __future__ import annotations

from reshard.formats.delta.index import version_text
from reshard.formats.delta.read_delta import version_of_name
from reshard.formats.registry import committed_format, files_of, is_there, single_files, viewed
from reshard.formats.steps import committed_among, committed_steps, named_steps, names_in
from reshard.formats.tensorflow.files import prefixes_in
from reshard.storage.buckets.objects import delete
from reshard.storage.buckets.store import BucketStore
from reshard.storage.local.prefix_files import remove_files
from reshard.storage.local.staging import FILES_OF_PREFIX
from reshard.storage.location import Location, locate
from reshard.storage.targets import held_target

__all__ = [
    "FILES_OF_PREFIX",
    "BucketStore",
    "Location",
    "committed_among",
    "committed_format",
    "committed_steps",
    "delete",
    "files_of",
    "held_target",
    "is_there",
    "locate",
    "named_steps",
    "names_in",
    "prefixes_in",
    "remove_files",
    "single_files",
    "version_of_name",
    "version_text",
    "viewed",
]
