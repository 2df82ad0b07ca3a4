"""Files below a prefix of a bucket, by obstore and by s3fs; the address and the keys are in the environment."""

from __future__ import annotations

import hashlib
from typing import Any

import s3fs
from hub_clients import sums
from obstore.store import S3Store

Ranges = list[list[int]]


def obstore_files(bucket: str, prefix: str) -> dict[str, str]:
    """The SHA-256 of each object below a prefix."""
    store = _store(bucket, prefix)
    names = [one["path"] for page in store.list() for one in page]
    sizes = {name: store.head(name)["size"] for name in names}
    data = {name: bytes(store.get(name).bytes()) for name in names}
    if sizes != {name: len(found) for name, found in data.items()}:
        raise ValueError(f"the sizes of {prefix} are not those of what is read: {sizes}")
    return {name: hashlib.sha256(found).hexdigest() for name, found in data.items()}


def obstore_ranges(bucket: str, key: str, bounds: Ranges) -> list[bytes]:
    starts, ends = zip(*bounds, strict=True)
    return [
        bytes(one)
        for one in _store(bucket, None).get_ranges(key, starts=starts, ends=ends, coalesce=0)
    ]


def s3fs_files(path: str, folder: str) -> dict[str, str]:
    """The SHA-256 of each file of a folder that is copied from a bucket."""
    s3fs.S3FileSystem().get(path, folder, recursive=True)
    return sums(folder)


def s3fs_ranges(path: str, bounds: Ranges) -> list[bytes]:
    """Ranges of a file, by an open file, and by a call for each."""
    files = s3fs.S3FileSystem()
    found = [files.cat_file(path, start=start, end=end) for start, end in bounds]
    with files.open(path, block_size=1 << 10) as file:
        for (start, end), same in zip(bounds, found, strict=True):
            file.seek(start)
            if file.read(end - start) != same:
                raise ValueError(f"{path}[{start}:{end}] differs by the way it is read")
    return found


def s3fs_folders(path: str) -> list[str]:
    return sorted(s3fs.S3FileSystem().ls(path))


def _store(bucket: str, prefix: str | None) -> Any:
    return S3Store(
        bucket,
        prefix=prefix,
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )


FUNCTIONS = (obstore_files, obstore_ranges, s3fs_files, s3fs_ranges, s3fs_folders)
