"""The same few things by each client of a bucket: gcsfs, google-cloud-storage, boto3 and TensorStore.

Each client compares the checksums of what it reads and writes, as far as it does so for its users. Versions
are what a client takes for conditions: generations, or ETags.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import boto3
import gcsfs
import tensorstore as ts
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from google.api_core.exceptions import NotFound
from google.cloud import storage

CHUNK = 5 << 20
"""So many bytes are in one part of an upload in parts."""


class Gcsfs:
    """gcsfs with its checks of CRC32C or MD5; it has no conditions but that nothing is there."""

    def __init__(self) -> None:
        self.fs = gcsfs.GCSFileSystem(
            consistency="md5", skip_instance_cache=True, use_listings_cache=False
        )

    def put(self, bucket: str, key: str, data: bytes) -> Any:
        self.fs.pipe_file(f"{bucket}/{key}", data)
        return self.stat(bucket, key)["version"]

    def put_in_parts(self, bucket: str, key: str, data: bytes) -> Any:
        with self.fs.open(f"{bucket}/{key}", "wb", block_size=CHUNK) as file:
            for at in range(0, len(data), CHUNK):
                file.write(data[at : at + CHUNK])
        return self.stat(bucket, key)["version"]

    def create(self, bucket: str, key: str, data: bytes) -> Any:
        """In chunks from 1 MiB on."""
        self.fs.pipe_file(f"{bucket}/{key}", data, mode="create", chunksize=1 << 20)

    def get(self, bucket: str, key: str) -> bytes:
        found: bytes = self.fs.cat_file(f"{bucket}/{key}")
        return found

    def get_range(self, bucket: str, key: str, start: int, end: int) -> bytes:
        found: bytes = self.fs.cat_file(f"{bucket}/{key}", start, end)
        return found

    def stat(self, bucket: str, key: str) -> dict[str, Any]:
        found = self.fs.info(f"{bucket}/{key}")
        told = {name: found[name] for name in ("size", "crc32c", "etag")}
        return {**told, "version": found["generation"]}

    def list(self, bucket: str, prefix: str) -> list[str]:
        return sorted(name.partition("/")[2] for name in self.fs.find(f"{bucket}/{prefix}"))

    def copy(self, bucket: str, key: str, to: str) -> Any:
        self.fs.cp_file(f"{bucket}/{key}", f"{bucket}/{to}")

    def move(self, bucket: str, key: str, to: str) -> Any:
        self.fs.mv(f"{bucket}/{key}", f"{bucket}/{to}")

    def join(self, bucket: str, keys: list[str], to: str) -> Any:
        self.fs.merge(f"{bucket}/{to}", [f"{bucket}/{key}" for key in keys])

    def delete(self, bucket: str, key: str) -> Any:
        self.fs.rm_file(f"{bucket}/{key}")


class GoogleCloudStorage:
    """Google's own client, which sends and compares CRC32C."""

    def __init__(self) -> None:
        self.client = storage.Client()

    def blob(self, bucket: str, key: str) -> Any:
        return self.client.bucket(bucket).blob(key)

    def put(self, bucket: str, key: str, data: bytes) -> Any:
        blob = self.blob(bucket, key)
        blob.upload_from_string(data, checksum="crc32c")
        return blob.generation

    def put_in_parts(self, bucket: str, key: str, data: bytes) -> Any:
        """Files above 8 MiB are sent in chunks."""
        blob = self.blob(bucket, key)
        blob.chunk_size = CHUNK
        blob.upload_from_string(data, checksum="crc32c")
        return blob.generation

    def create(self, bucket: str, key: str, data: bytes) -> Any:
        self.blob(bucket, key).upload_from_string(data, if_generation_match=0)

    def update(self, bucket: str, key: str, data: bytes, version: Any) -> Any:
        self.blob(bucket, key).upload_from_string(data, if_generation_match=version)

    def get(self, bucket: str, key: str) -> bytes:
        found: bytes = self.blob(bucket, key).download_as_bytes(checksum="crc32c")
        return found

    def get_range(self, bucket: str, key: str, start: int, end: int) -> bytes:
        found: bytes = self.blob(bucket, key).download_as_bytes(start=start, end=end - 1)
        return found

    def get_version(self, bucket: str, key: str, version: Any) -> bytes:
        found: bytes = self.blob(bucket, key).download_as_bytes(if_generation_match=version)
        return found

    def stat(self, bucket: str, key: str) -> dict[str, Any]:
        blob = self.client.bucket(bucket).get_blob(key)
        if blob is None:
            raise NotFound(key)
        told = {name: getattr(blob, name) for name in ("size", "crc32c", "etag")}
        return {**told, "version": blob.generation}

    def list(self, bucket: str, prefix: str) -> list[str]:
        return [blob.name for blob in self.client.list_blobs(bucket, prefix=prefix, page_size=7)]

    def copy(self, bucket: str, key: str, to: str) -> Any:
        self.blob(bucket, to).rewrite(self.blob(bucket, key))

    def move(self, bucket: str, key: str, to: str) -> Any:
        self.client.bucket(bucket).move_blob(self.blob(bucket, key), to)

    def join(self, bucket: str, keys: list[str], to: str) -> Any:
        self.blob(bucket, to).compose([self.blob(bucket, key) for key in keys])

    def delete(self, bucket: str, key: str) -> Any:
        self.blob(bucket, key).delete()


class Boto3:
    """The client of AWS: a checksum of its choice goes with each upload, and is compared in each download."""

    def __init__(self) -> None:
        self.client = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))

    def put(
        self, bucket: str, key: str, data: bytes, algorithm: str = "CRC32", **conditions: str
    ) -> Any:
        done = self.client.put_object(
            Bucket=bucket, Key=key, Body=data, ChecksumAlgorithm=algorithm, **conditions
        )
        return done["ETag"]

    def put_in_parts(self, bucket: str, key: str, data: bytes, algorithm: str = "CRC64NVME", **conditions: str) -> Any:  # fmt: skip
        place = {"Bucket": bucket, "Key": key}
        kind = "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"
        upload = self.client.create_multipart_upload(**place, ChecksumAlgorithm=algorithm, ChecksumType=kind)  # fmt: skip
        place["UploadId"] = upload["UploadId"]
        parts = []
        for number, at in enumerate(range(0, len(data), CHUNK), 1):
            piece = data[at : at + CHUNK]
            done = self.client.upload_part(**place, PartNumber=number, Body=piece, ChecksumAlgorithm=algorithm)  # fmt: skip
            told = f"Checksum{algorithm}"
            parts.append({"PartNumber": number, "ETag": done["ETag"], told: done[told]})
        done = self.client.complete_multipart_upload(
            **place, MultipartUpload={"Parts": parts}, **conditions
        )
        return done["ETag"]

    def put_by_transfer(self, bucket: str, key: str, path: str) -> Any:
        """As ``aws s3 cp`` does it: threads, and parts of large files."""
        config = TransferConfig(multipart_threshold=CHUNK, multipart_chunksize=CHUNK)
        self.client.upload_file(path, bucket, key, Config=config)

    def create(self, bucket: str, key: str, data: bytes) -> Any:
        self.put(bucket, key, data, IfNoneMatch="*")

    def update(self, bucket: str, key: str, data: bytes, version: Any) -> Any:
        self.put(bucket, key, data, IfMatch=version)

    def get(self, bucket: str, key: str) -> bytes:
        return self._get(bucket, key, ChecksumMode="ENABLED")

    def get_range(self, bucket: str, key: str, start: int, end: int) -> bytes:
        return self._get(bucket, key, Range=f"bytes={start}-{end - 1}")

    def get_version(self, bucket: str, key: str, version: Any) -> bytes:
        return self._get(bucket, key, IfMatch=version)

    def _get(self, bucket: str, key: str, **more: str) -> bytes:
        found: bytes = self.client.get_object(Bucket=bucket, Key=key, **more)["Body"].read()
        return found

    def stat(self, bucket: str, key: str) -> dict[str, Any]:
        found = self.client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        told = {"size": found["ContentLength"], "etag": found["ETag"].strip('"')}
        return {**told, "crc64nvme": found.get("ChecksumCRC64NVME"), "version": found["ETag"]}

    def list(self, bucket: str, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": 7}
        )
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def copy(self, bucket: str, key: str, to: str) -> Any:
        self.client.copy_object(Bucket=bucket, Key=to, CopySource={"Bucket": bucket, "Key": key})

    def delete(self, bucket: str, key: str) -> Any:
        self.client.delete_object(Bucket=bucket, Key=key)

    def delete_many(self, bucket: str, keys: list[str]) -> Any:
        done = self.client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})  # fmt: skip
        return sorted(one["Key"] for one in done["Deleted"])


NOTHING = b"\x02"
"""The generation of TensorStore for a key that is not there."""


class TensorStore:
    """A key-value store of TensorStore; the driver is ``gcs`` or ``s3``."""

    def __init__(self, driver: str) -> None:
        self.driver = driver

    @functools.lru_cache(maxsize=1)  # noqa: B019 - of this process
    def store(self, bucket: str) -> Any:
        return ts.KvStore.open(tensorstore_spec(self.driver, bucket)).result()

    def put(self, bucket: str, key: str, data: bytes) -> Any:
        return self.store(bucket).write(key, data).result().generation

    def create(self, bucket: str, key: str, data: bytes) -> Any:
        return self._write(bucket, key, data, NOTHING)

    def update(self, bucket: str, key: str, data: bytes, version: Any) -> Any:
        return self._write(bucket, key, data, version)

    def _write(self, bucket: str, key: str, data: bytes, version: Any) -> Any:
        done = self.store(bucket).write(key, data, if_equal=version).result()
        if not done.generation:
            raise ConditionNotMetError(key)
        return done.generation

    def get(self, bucket: str, key: str) -> bytes:
        return self._read(bucket, key)

    def get_range(self, bucket: str, key: str, start: int, end: int) -> bytes:
        return self._read(bucket, key, byte_range=slice(start, end))

    def is_still(self, bucket: str, key: str, version: Any) -> bool:
        """Whether a read of anything but this version finds nothing; there are no reads of one version."""
        found = self.store(bucket).read(key, if_not_equal=version).result()
        return bool(found.state == "unspecified")

    def _read(self, bucket: str, key: str, **more: Any) -> bytes:
        found = self.store(bucket).read(key, **more).result()
        if found.state == "missing":
            raise FileNotFoundError(key)
        value: bytes = found.value
        return value

    def stat(self, bucket: str, key: str) -> dict[str, Any]:
        return {"version": self.store(bucket).read(key).result().stamp.generation}

    def list(self, bucket: str, prefix: str) -> list[str]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.store(bucket).list(ts.KvStore.KeyRange(prefix, end)).result()
        return sorted(key.decode() for key in found)

    def delete(self, bucket: str, key: str) -> Any:
        self.store(bucket).delete_range(ts.KvStore.KeyRange(key, f"{key}\0")).result()


class ConditionNotMetError(Exception):
    """TensorStore answers a write of another version with no version, instead of an error."""


def tensorstore_spec(driver: str, bucket: str) -> dict[str, Any]:
    if driver == "gcs":
        return {"driver": "gcs", "bucket": bucket}
    return {"driver": "s3", "bucket": bucket, "endpoint": os.environ["AWS_ENDPOINT_URL"]}


@functools.cache
def client(name: str) -> Any:
    made: dict[str, Any] = {
        "gcsfs": Gcsfs, "google": GoogleCloudStorage, "boto3": Boto3,
        "tensorstore-gcs": lambda: TensorStore("gcs"), "tensorstore-s3": lambda: TensorStore("s3"),
    }  # fmt: skip
    return made[name]()


def do(library: str, verb: str, arguments: list[Any]) -> Any:
    """One of the methods above, of one of the clients."""
    return getattr(client(library), verb)(*arguments)


def error_code(library: str, verb: str, arguments: list[Any]) -> Any:
    """The HTTP status of the error that a client raises, or the name of its class where it has none."""
    try:
        do(library, verb, arguments)
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
    except Exception as error:  # noqa: BLE001 - each client has classes of its own
        return getattr(error, "code", None) or type(error).__name__
    return None


FUNCTIONS = {"do": do, "error_code": error_code}
