"""Copies every object below one URL to another with obstore: 16 at once, each read and put whole.

python -m benchmarks.buckets.copy s3://a/run s3://b/run
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import obstore

from reshard.storage.buckets.clients import client_for
from reshard.storage.buckets.clouds import parse_url

AT_ONCE = 16


def main() -> None:
    """Copies."""
    (scheme, bucket, folder), (other_scheme, other_bucket, other) = map(parse_url, sys.argv[1:3])
    source, target = client_for(scheme, bucket), client_for(other_scheme, other_bucket)
    paths = [one["path"] for page in obstore.list(source, folder) for one in page]

    def copy(path: str) -> None:
        data = obstore.get(source, path).bytes()
        obstore.put(target, f"{other}{path[len(folder) :]}", data, use_multipart=False)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in threads.map(copy, paths):
            pass


if __name__ == "__main__":
    main()
