"""Copies checkpoints into a bucket and out of it, as any other tool does."""

from __future__ import annotations

from pathlib import Path

import obstore

from tests.emulators.buckets import Bucket

MARKER = "commit_success.txt"


def upload(
    bucket: Bucket, source: Path, prefix: str, *, marker: bool = True, items: tuple[str, ...] = ()
) -> str:
    """Puts a folder below a prefix, or a file at it; the URL.

    The markers of Orbax come last, that at the top behind those of items, or not at all. They are made where the folder and
    its ``items`` have none.
    """
    store = bucket.store()
    if source.is_file():
        obstore.put(store, prefix, source.read_bytes(), use_multipart=False)
        return f"{bucket.url}/{prefix}"
    if not source.exists():  # several files, whose names begin with it
        for file in source.parent.glob(f"{source.name}.*"):
            key = f"{prefix}{file.name.removeprefix(source.name)}"
            obstore.put(store, key, file.read_bytes(), use_multipart=False)
        return f"{bucket.url}/{prefix}"
    files = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}
    markers = [f"{item}/{MARKER}" for item in items]
    if not (source / "model.safetensors").exists():
        markers.append(MARKER)
    files = dict.fromkeys(markers, b"committed") | files
    for name in sorted(files, key=_order):
        if marker or not _is_marker(name):
            obstore.put(store, f"{prefix}/{name}", files[name], use_multipart=False)
    return f"{bucket.url}/{prefix}"


def download(bucket: Bucket, prefix: str, folder: Path) -> Path:
    """Copies what is below a prefix into a folder that is not there yet."""
    store = bucket.store()
    for page in obstore.list(store, prefix):
        for one in page:
            path = folder / one["path"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(obstore.get(store, one["path"]).bytes())
    return folder


def _is_marker(name: str) -> bool:
    return name.rpartition("/")[2] == MARKER


def _order(name: str) -> tuple[bool, int, str]:
    return (_is_marker(name), -name.count("/"), name)
