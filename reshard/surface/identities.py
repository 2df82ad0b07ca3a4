"""Identities of weights and proofs of slices, for programs that send or receive slices."""

from __future__ import annotations

from reshard.formats.safetensors.slices import FileSlice, slices_of
from reshard.geometry.dtypes import PACKED, numpy_dtype, opaque_dtype, storage_bytes
from reshard.identity.envelope import NoSignatureError
from reshard.identity.identity_file import (
    hashed_dtype,
    how_to_record,
    parse_identity,
    render_identity,
    tree_of_identity,
)
from reshard.identity.keys import public_text
from reshard.identity.leaf_tree import HASH_BYTES, checked_root, is_installed, is_root
from reshard.identity.slice_proof import aligned_slice, check_aligned, check_slice, proof_hashes
from reshard.planning.rules import kept_names
from reshard.streaming.tensor_stream import slice_box

__all__ = [
    "HASH_BYTES",
    "PACKED",
    "FileSlice",
    "NoSignatureError",
    "aligned_slice",
    "check_aligned",
    "check_slice",
    "checked_root",
    "hashed_dtype",
    "how_to_record",
    "is_installed",
    "is_root",
    "kept_names",
    "numpy_dtype",
    "opaque_dtype",
    "parse_identity",
    "proof_hashes",
    "public_text",
    "render_identity",
    "slice_box",
    "slices_of",
    "storage_bytes",
    "tree_of_identity",
]
