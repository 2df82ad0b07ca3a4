"""Changed slice records (``slices.json``) whose digest is right, as a stranger would make them."""

from __future__ import annotations

import json

from reshard.formats.slices.slice_file import digest_of


def rewrite(path, change):
    """Another slices.json with a valid digest, as a stranger would make it."""
    document = json.loads(path.read_bytes())
    change(document)
    del document["crc64nvme"]
    body = (json.dumps(document)[:-1] + ', "crc64nvme": "').encode()
    path.write_bytes(body + digest_of(body).encode() + b'"}\n')
