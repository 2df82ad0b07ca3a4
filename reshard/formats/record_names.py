"""Names of the files that record something about a checkpoint and are no part of it."""

from __future__ import annotations

from reshard.formats.slices.slice_file import FILE_NAME, PARTIAL_NAME

IDENTITY_NAME = "identity.json"
TREE_NAME = "identity.tree"
SIGNATURE_NAME = "identity.dsse.json"
RECEIPT_NAME = "identity.receipt.json"
SHA256_NAME = "sha256.json"
PROBE_NAME = ".identity.probe"
"""Written and removed at once, as a test that files can be written."""

OF_IDENTITY = (IDENTITY_NAME, TREE_NAME, SIGNATURE_NAME, RECEIPT_NAME, SHA256_NAME)
"""The files of an identity, at the top of a checkpoint."""

OF_RECORDS = frozenset({FILE_NAME, PARTIAL_NAME, PROBE_NAME, *OF_IDENTITY})
"""Names that do not count for the state of a checkpoint, and are not carried into another."""
