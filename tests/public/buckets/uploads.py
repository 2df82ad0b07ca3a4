"""Puts a local checkpoint into a bucket, as a copy by any other tool does."""

from __future__ import annotations

from pathlib import Path

import obstore

from tests.emulators.buckets import Bucket

MARKER = "commit_success.txt"


def upload(bucket: Bucket, source: Path, prefix: str, *, marker: bool = True) -> str:
    """Puts a folder below a prefix, or a file at it; the URL. The marker of Orbax comes last, or not at all; it is made where the folder has
    none."""
    store = bucket.store()
    if source.is_file():
        obstore.put(store, prefix, source.read_bytes(), use_multipart=False)
        return f"{bucket.url}/{prefix}"
    names = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    for name in sorted(names, key=lambda name: (name == MARKER, name)):
        if name != MARKER or marker:
            obstore.put(
                store, f"{prefix}/{name}", (source / name).read_bytes(), use_multipart=False
            )
    if marker and MARKER not in names and not (source / "model.safetensors").exists():
        obstore.put(store, f"{prefix}/{MARKER}", b"committed", use_multipart=False)
    return f"{bucket.url}/{prefix}"
