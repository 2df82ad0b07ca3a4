"""The file of settings: which entry counts, where values come from, what is said of mistakes."""

from __future__ import annotations

import pickle
from pathlib import Path

import obstore
import pytest

from reshard.errors import StorageError
from reshard.storage.buckets.clients import BucketSettings, settings_for
from reshard.storage.location import locate
from tests.emulators.buckets import Bucket


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESHARD_BUCKETS", str(tmp_path / "buckets.toml"))
    return tmp_path / "buckets.toml"


def test_without_a_file_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESHARD_BUCKETS", raising=False)
    assert settings_for("s3://models/run") == BucketSettings()


def test_the_longest_entry_counts(settings: Path) -> None:
    settings.write_text(
        '["s3://models"]\nregion = "a"\n["s3://models/team/"]\nregion = "b"\nrequest_timeout_s = 5\n'
    )
    assert settings_for("s3://models/team/run").options == (("region", "b"),)
    assert settings_for("s3://models/team/run").request_timeout_s == 5
    assert settings_for("s3://models/team-b").options == (("region", "a"),)
    assert settings_for("s3://models2") == BucketSettings()
    settings.write_text('["s3://models"]\nregion = "changed"\nskip_signature = true\n')
    assert settings_for("s3://models/team/run").options[0] == ("region", "changed")
    assert settings_for("s3://models").options[1] == ("skip_signature", "true")


def test_secrets_come_from_files_and_variables_and_are_not_shown(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "s3cret-1")
    (settings.parent / "key").write_text("s3cret-2\n")
    settings.write_text(
        '["s3://models"]\naccess_key_id = { env = "A_KEY" }\n'
        f'secret_access_key = {{ file = "{settings.parent}/key" }}\n'
    )
    found = settings_for("s3://models")
    assert found.options == (("access_key_id", "s3cret-1"), ("secret_access_key", "s3cret-2"))
    assert repr(found) == "BucketSettings('s3://models', access_key_id, secret_access_key)"
    assert b"s3cret" not in pickle.dumps(locate("s3://models/run"))
    with pytest.raises(TypeError, match="stay in their process"):
        pickle.dumps(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a =", "buckets.toml (named by RESHARD_BUCKETS): cannot be read"),
        ("a = 1", """has 'a' outside of a table; begin a table with the URL, as in ["s3://bucket"]"""),
        ('["s3://b"]\nkey = { file = "/none/x" }', "key: cannot read '/none/x': No such file"),
        ('["s3://b"]\nkey = { env = "NONE_X" }', "key: the variable NONE_X is not set"),
        ('["s3://b"]\nkey = [1]', 'key should be a text, { file = "path" } or { env = "VARIABLE" }'),
        ('["s3://b"]\nrequest_timeout_s = "soon"', "request_timeout_s should be a number of seconds"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file(settings: Path, text: str, problem: str) -> None:
    settings.write_text(text)
    with pytest.raises(StorageError) as error:
        settings_for("s3://b/x")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "url", ["minio", "http://", "127.0.0.1:9000", "ftp://minio", "http://minio:a", "http://[::1"]
)
def test_an_endpoint_that_is_no_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The client would panic, with a trace of its own on the standard error."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    text = "the endpoint in AWS_ENDPOINT_URL is no URL of a server; give one such as http://127.0.0.1:9000 or https://minio.example.com"
    with pytest.raises(StorageError) as error:
        locate("s3://models/run").entries()
    assert str(error.value) == text


def test_a_file_that_is_not_there(settings: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be read: No such file .* unset the variable"):
        settings_for("s3://b")
    assert not settings.exists()


def test_an_endpoint_and_credentials_from_the_file(
    s3_bucket: Bucket, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(s3_bucket.store(), "a", b"hello")
    for name in s3_bucket.environment:
        monkeypatch.delenv(name)
    settings.write_text(
        f'["{s3_bucket.url}"]\nendpoint = "{s3_bucket.environment["AWS_ENDPOINT_URL"]}"\n'
        'region = "eu-west-3"\naccess_key_id = "other"\nsecret_access_key = "other"\n'
    )
    assert locate(f"{s3_bucket.url}/a").open().read(0, 9) == b"hello"
    signed = s3_bucket.emulator.log.of("get")[-1].headers["authorization"]
    assert "Credential=other/" in signed
    assert "/eu-west-3/s3/" in signed


def test_an_option_that_obstore_does_not_know(settings: Path) -> None:
    settings.write_text('["s3://models"]\nno_such_option = "x"\n')
    with pytest.raises(StorageError, match=r"cannot open s3://models: .*no_such_option"):
        locate("s3://models/run").status()
