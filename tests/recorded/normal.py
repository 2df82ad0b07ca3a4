"""Replaces by a word each text that differs between two runs of the same code; each rule says why it differs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
import tensorstore as ts

from tests.emulators.buckets import Bucket

_TEXT_RULES = (
    # Wall seconds of this run, and the rate that follows from them.
    (r"in \d+(\.\d+)? s(?: \([\d.]+ [KMGT]?i?B/s)?", "in SECONDS"),
    (r'"(seconds|actual_s)": [\d.e+-]+', r'"\1": "SECONDS"'),
    # Bytes of the requests that were made: a lease has times of more or fewer digits in it. What was planned is kept.
    (r'("actual": \{[^{}]*"received_bytes": )\d+(,\s*"sent_bytes": )\d+', r'\1"BYTES"\2"BYTES"'),
    (r"(?m)^(made(?: +\d+)+) +[\d.]+ [KMGT]?i?B .*$", r"\1 BYTES"),
    # The space that other programs leave free on the disk.
    (r"[\d.]+ [KMGT]iB free", "SPACE free"),
    (r'"free_bytes": \d+', '"free_bytes": "SPACE"'),
    # How many files a database has depends on the threads' turns.
    (r"(tensors?,? and) \d+ files", r"\1 FILES"),
    (r"\d+ other files", "FILES"),
    (r'(?m)^ "files": \d+', ' "files": "FILES"'),
    # Digests of a file that has the time at which Orbax's form of checkpoint was begun.
    (
        r'("name": "_CHECKPOINT_METADATA",\s+"recorded": )"\w+"(,\s+"side": "\w",\s+"status": "\w+",\s+"stored": )"\w+"',
        r'\1"X"\2"Y"',
    ),
    # When a step was written.
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
    # Digests of slice metadata, which names its conversion.
    (
        r"(slice metadata \S+ is damaged: its digest is) \w+, but it records \w+",
        r"\1 X, but it records Y",
    ),
    # The number of this process.
    (r"\(process \d+\)", "(process PID)"),
    # The port of the server of objects.
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
)
_TEXT = tuple((re.compile(pattern), new) for pattern, new in _TEXT_RULES)

_FILE_RULES = (
    # Times at which Orbax's form of checkpoint was begun and finished.
    (rb'"((?:init|commit)_timestamp_nsecs)": \d+', rb'"\1": 0'),
    # The name of a conversion: it depends on the source's path and on the times of its files.
    (rb'(conversion\\?": ?\\?")[0-9a-f]{32}', rb"\1"),
    # The temporary folder, which Orbax writes into the markers of items.
    (rb"reshard-recorded-\w+", b"FOLDER"),
    # Digests of files that have such times or paths, and of records that have such a name.
    (rb'((?:_CHECKPOINT_METADATA|commit_success\.txt|slices\.json)\\?": \\?")[0-9a-f]{16}', rb"\1"),
    # A database's files have random names, which its manifest lists; how many there are depends on the threads' turns.
    (rb'(?:"[^"]*d/[0-9a-f]{32}": "[0-9a-f]{16}",?\n)+', b"DATA"),
    (rb'(manifest\.ocdbt": ")[0-9a-f]{16}', rb"\1"),
    # The digest of the slice metadata itself, and of a safetensors header, whose bytes have what is replaced above.
    (rb'(\n"crc64nvme": ")[0-9a-f]{16}', rb"\1"),
    (rb'(\\n\\"crc64nvme\\": \\")[0-9a-f]{16}', rb"\1"),
    (rb'("reshard\.crc64nvme":")[0-9a-f]{16}', rb"\1"),
)
_FILE = tuple((re.compile(pattern), new) for pattern, new in _FILE_RULES)

_DATA_FILE = re.compile(r"(.*/)?d/[0-9a-f]{32}")
MANIFEST = "manifest.ocdbt"


def lines(text: str, folder: Path) -> list[str]:
    """The lines of a text without the path of the temporary folder, times and rates."""
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    for pattern, new in _TEXT:
        text = pattern.sub(new, text)
    return [line.rstrip() for line in text.splitlines()]


def document(value: Any, folder: Path) -> list[str]:
    """The lines of a JSON document, a key each."""
    return lines(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False), folder)


def files_at(place: Path | str, bucket: Bucket | None) -> dict[str, str]:
    """SHA-256 of every file below a place by its name; of a database those of its values by key.

    A folder without files is listed with an empty digest.
    """
    if bucket is not None:
        return _digests(_objects(bucket, str(place).removeprefix(f"{bucket.url}/")), None)
    path = Path(place)
    if path.is_file():
        return _digests({path.name: path.read_bytes()}, None)
    found = {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    empty = (p for p in path.rglob("*") if p.is_dir() and not any(p.iterdir()))
    return _digests(found, path) | {f"{p.relative_to(path).as_posix()}/": "" for p in empty}


def _objects(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    store = bucket.store()
    names = [one["path"] for page in obstore.list(store, prefix) for one in page]
    return {
        name.removeprefix(f"{prefix}/"): bytes(obstore.get(store, name).bytes()) for name in names
    }


def _digests(files: Mapping[str, bytes], folder: Path | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, data in sorted(files.items()):
        if _DATA_FILE.fullmatch(name):
            continue  # recorded by the keys of the database
        if name.rpartition("/")[2] == MANIFEST:
            found |= _database(files, name, folder)
        else:
            found[name] = _digest(data)
    return found


def _database(files: Mapping[str, bytes], manifest: str, folder: Path | None) -> dict[str, str]:
    """The values of a database, read by TensorStore: its files have random names, which its nodes repeat."""
    base = manifest.removesuffix(MANIFEST)
    where: dict[str, Any]
    if folder is not None:
        where = {"driver": "ocdbt", "base": f"{(folder / base).absolute().as_uri()}/"}
        store = ts.KvStore.open(where).result()
    else:
        context = ts.Context()
        memory = ts.KvStore.open({"driver": "memory"}, context=context).result()
        for name, data in files.items():
            memory.write(name, data).result()
        where = {"driver": "ocdbt", "base": {"driver": "memory", "path": base}}
        store = ts.KvStore.open(where, context=context).result()
    keys = sorted(store.list().result())
    return {f"{manifest}: {key.decode()}": _digest(store.read(key).result().value) for key in keys}


def _digest(data: bytes) -> str:
    for pattern, new in _FILE:
        data = pattern.sub(new, data)
    return hashlib.sha256(data).hexdigest()
