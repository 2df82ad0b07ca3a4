"""URLs of the hub: the places that they name, and the errors for texts that name none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.errors import StorageError
from reshard.storage.hub.address import HubAddress, RepoKind, bucket_url, parse_hub


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("hf://org/model", HubAddress("models", "org/model"), "hf://org/model"),
        ("hf://models/org/model/", HubAddress("models", "org/model"), "hf://org/model"),
        ("hf://org/model@main/a/b", HubAddress("models", "org/model", "main", "a/b"), "hf://org/model/a/b"),
        ("hf://datasets/o/d@v1.0", HubAddress("datasets", "o/d", "v1.0"), "hf://datasets/o/d@v1.0"),
        ("hf://spaces/o/s/x y", HubAddress("spaces", "o/s", "main", "x y"), "hf://spaces/o/s/x y"),
        ("hf://o/m@refs/pr/12", HubAddress("models", "o/m", "refs/pr/12"), "hf://o/m@refs/pr/12"),
        ("hf://o/m@refs/pr/1/f", HubAddress("models", "o/m", "refs/pr/1", "f"), "hf://o/m@refs/pr/1/f"),
        ("hf://o/m@run%2F7/f", HubAddress("models", "o/m", "run/7", "f"), "hf://o/m@run%2F7/f"),
        ("hf://o/m@step/7", HubAddress("models", "o/m", "step", "7"), "hf://o/m@step/7"),
        ("HF://o/m.v2-x_1", HubAddress("models", "o/m.v2-x_1"), "hf://o/m.v2-x_1"),
    ],
)  # fmt: skip
def test_an_address_is_read_and_written_back(text: str, address: HubAddress, shown: str) -> None:
    assert parse_hub(text) == address
    assert str(address) == shown
    assert parse_hub(shown) == address


_revisions = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+#,=]{0,9}(/[A-Za-z0-9]{1,9})?", fullmatch=True)


@given(
    st.sampled_from(["models", "datasets", "spaces"]),
    _revisions.filter(lambda name: ".." not in name),
    st.lists(st.sampled_from(["a", "b c", "é", "x@y", "%2F"]), max_size=3),
)
def test_every_address_is_read_back(kind: RepoKind, revision: str, parts: list[str]) -> None:
    address = HubAddress(kind, "org/name", revision, "/".join(parts))
    assert parse_hub(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://model", "hf://models/org", "hf://model/org/name", "hf://dataset/a", "hf://kernels/o/k", "hf:///a/b", "hf://a//b",
     "hf://a--b/c", "hf://a/b..c", "hf://-a/b", "hf://a/b?x=1", "hf://org/name@", "hf://org/a@b@c", f"hf://org/{'n' * 97}", "hf://org/ñ"],
)  # fmt: skip
def test_a_text_that_names_no_repository_is_refused(text: str) -> None:
    expected = f"{text!r} names no repository of the hub; expected hf://namespace/name for a model"
    with pytest.raises(StorageError) as caught:
        parse_hub(text)
    assert str(caught.value).startswith(expected)


def test_a_token_in_an_address_is_not_repeated() -> None:
    with pytest.raises(StorageError, match="'hf://…@org/name' names no repository") as caught:
        parse_hub("hf://hf_secret@org/name")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("revision", ["a%2F%2Fb", "a%2F", "a%0A", ".."])
def test_a_revision_that_git_would_refuse_is_refused(revision: str) -> None:
    with pytest.raises(
        StorageError, match=r"has an empty part|has the control character|has the part"
    ):
        parse_hub(f"hf://org/name@{revision}")


@pytest.mark.parametrize(
    ("path", "problem"),
    [("a//b", "has an empty part"), ("../b", r"has the part '\.\.'"), ("a/./b", r"has the part '\.'"), ("a\nb", "has the control")],
)  # fmt: skip
def test_a_path_that_is_not_clean_is_refused(path: str, problem: str) -> None:
    with pytest.raises(StorageError, match=problem):
        parse_hub(f"hf://org/name/{path}")


def test_a_bucket_of_the_hub_is_one_of_its_s3_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "buckets.toml"
    settings.write_text('["s3://run"]\nendpoint = "https://s3.hf.co/org"\n')
    monkeypatch.setenv("RESHARD_BUCKETS", str(settings))
    assert bucket_url("org", "run/step/7/") == "s3://run/step/7"
    assert bucket_url("org", "run") == "s3://run"
    with pytest.raises(
        StorageError, match="no endpoint of the namespace 'other' is set for s3://run/a"
    ):
        bucket_url("other", "run/a")


def test_a_bucket_without_an_endpoint_is_refused_with_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RESHARD_BUCKETS", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageError) as caught:
        bucket_url("org", "run/step")
    assert (
        'name a file in RESHARD_BUCKETS with the table ["s3://run"] and in it endpoint = "https://s3.hf.co/org"'
        in str(caught.value)
    )
