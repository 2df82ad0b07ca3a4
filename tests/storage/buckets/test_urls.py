"""URLs of objects: what is taken as it is, what is refused, and what a refusal must not repeat."""

from __future__ import annotations

import pickle

import pytest

from reshard.errors import StorageError
from reshard.storage.location import locate


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket/run/1000",
        "s3://bucket",
        "az://container/a b/c",
        "s3://my.bucket-1/weights/ü/日本",
        "gs://bucket/a%20b/c?d/e#f/~/*/'\"",
        "gs://bucket/a\\b",
        "az://$root/x",
    ],
)
def test_a_url_names_the_same_place_again(url: str) -> None:
    there = locate(url)
    assert str(there) == url
    assert locate(str(there)) == there
    assert pickle.loads(pickle.dumps(there)) == there
    assert str(there / "c" / "0") == f"{url}/c/0"


def test_a_slash_at_the_end_is_dropped() -> None:
    assert str(locate("gs://bucket/run/")) == "gs://bucket/run"
    assert str(locate("gs://bucket/")) == "gs://bucket"
    assert str(locate("gs://bucket/") / "run") == "gs://bucket/run"
    assert str(locate("gs://bucket/run").parent) == "gs://bucket"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://b/a//c", "'s3://b/a//c' has an empty part ('//'), which programs read in different ways"),
        ("s3://b//", "has an empty part"),
        ("s3://b/a/../c", "has the part '..', which means another folder to some programs"),
        ("s3://b/./c", "has the part '.'"),
        ("s3://b/a\nb", "has the control character '\\n'"),
        ("s3://b/a\x00", "has the control character '\\x00'"),
        ("s3://b/a\ud800", "has the control character '\\ud800'"),
        ("s3://b/" + "é" * 600, "is longer than the 1,024 bytes that a key may have"),
        ("s3://", "'' cannot be the name of a bucket; expected s3://bucket/path"),
        ("az:///run", "'' cannot be the name of a container; expected az://container/path"),
        ("s3://_b/c", "'_b' cannot be the name of a bucket"),
        ("gcs://b/c", "gcs:// is not supported; write it as gs://bucket/path"),
        ("s3a://b/c", "s3a:// is not supported; write it as s3://bucket/path"),
        ("abfss://c@account/x", "abfss:// is not supported; write it as az://container/path"),
        ("https://host/x", "https:// is not supported; give a local path, or a URL that begins with gs://"),
    ],
)  # fmt: skip
def test_what_is_no_clean_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(StorageError) as error:
        locate(url)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:s3cret@bucket/x",
        "az://c/p?sv=2024&sig=s3cret",
        "gs://b/p?X-Goog-Signature=s3cret",
        "s3://b/p?X-Amz-Credential=s3cret",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StorageError, match="see how-to/buckets") as error:
        locate(url)
    assert "s3cret" not in str(error.value)
