"""Recognises and removes the output of a conversion, by the record that the conversion wrote into it."""

from __future__ import annotations

import logging

from reshard.storage.location import Location
from reshard.storage.targets import remove_finished, stamp_of_finished
from reshard_server.auth.path_rules import REMOVED_PREFIX

LOG = logging.getLogger(__name__)

RECORD = "slices.json"
INDEX = "model.safetensors.index.json"
"""The record of a delta, which has no other and writes it last."""

RECORDS = (RECORD, INDEX)


def output_stamp(output: Location) -> str | None:
    """A stamp that changes when something else replaces a converted checkpoint; None without a checkpoint."""
    return stamp_of_finished(output, RECORDS)


def is_full_version(output: Location) -> bool:
    """True if a version of the weights needs no other: a conversion leaves its record there, a delta does not."""
    return (output / RECORD).is_file()


def remove(output: Location, number: str, known: str) -> bool:
    """Removes an output; False if it is gone or something else has its name.

    Args:
        number: distinguishes it from other outputs.
        known: its stamp.
    """
    is_removed = remove_finished(output, known, RECORDS, f"{REMOVED_PREFIX}{number[:32]}")
    if is_removed:
        LOG.info("removed %s, an old output of a schedule", output)
    return is_removed
