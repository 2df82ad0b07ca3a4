"""Settings: flags, then the environment, then the file; each is described in docs/reference/service/settings.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from reshard_server.settings import Settings, load_settings, unknown_variables

from reshard.errors import ReshardError
from reshard.storage.location import locate

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "service" / "settings.md"


def test_roots_in_buckets() -> None:
    given = {"a": "gs://bucket", "b": "s3://bucket/team/x/", "c": "file:///srv/c", "d": "relative"}
    found = load_settings({"roots": given}, None).roots
    assert {name: str(place) for name, place in found.items()} == {
        "a": "gs://bucket",
        "b": "s3://bucket/team/x",
        "c": "/srv/c",
        "d": str(Path("relative").absolute()),
    }


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("https://bucket/x", "reading from https:// is not supported; give a local path, or a URL that begins with"),
        ("gcs://bucket", "write it as gs://bucket/path"),
        ("s3://b/a/../c", "has the part '..'"),
        ("s3://key:S3CRET@bucket/x", "takes no user and no password; credentials come from the environment"),
        ("s3://bucket/x?X-Amz-Signature=S3CRET", "a signed URL cannot be taken"),
        (7, "expected a folder, or a URL that begins with gs://, s3://, az:// or hf://"),
        ("hf://org/model@main", "the root of a repository has every branch, below @; leave @main out, or add a folder"),
        ("hf://org", "'hf://org' names no repository of the hub"),
    ],
)  # fmt: skip
def test_roots_that_cannot_be(root: object, words: str) -> None:
    with pytest.raises(ReshardError) as refused:
        load_settings({"roots": {"data": root}}, None)
    assert str(refused.value).startswith("the settings cannot be used: roots.data: ")
    assert words in str(refused.value)
    assert "S3CRET" not in str(refused.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(
        'port = 1\nhost = "127.0.0.5"\nrunning = 7\n[roots]\nfiled = "/filed"\n'
        '[[tokens]]\nname = "ci"\nsha256 = "' + "0" * 64 + '"\nscopes = ["read"]\nread = ["*"]\n'
    )
    return path


def test_flags_come_first_and_roots_are_joined(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_PORT", "2")
    monkeypatch.setenv("RESHARD_HOST", "127.0.0.6")
    monkeypatch.setenv("RESHARD_ROOTS", '{"data": "/srv/ckpt"}')
    found = load_settings({"port": 3, "host": None, "roots": {"flag": Path("/flag")}}, file)
    assert (found.port, found.host, found.running) == (3, "127.0.0.6", 7)
    assert {name: str(path) for name, path in found.roots.items()} == {
        "flag": "/flag", "data": "/srv/ckpt", "filed": "/filed",
    }  # fmt: skip
    assert found.tokens[0].name == "ci"


SIZES = [
    name
    for name in Settings.model_fields
    if name.endswith(("_memory", "_bytes", "_bytes_per_token", "_cache"))
]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_as_people_write_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.toml"
    for text, expected in (
        ('"512MiB"', 512 << 20),
        ('"0.5 GB"', 500_000_000),
        ("536870912", 512 << 20),
    ):
        path.write_text(f"{name} = {text}\n")
        assert getattr(load_settings({}, path), name) == expected
        monkeypatch.setenv(f"RESHARD_{name.upper()}", text.strip('"'))
        assert getattr(load_settings({}, None), name) == expected
        monkeypatch.delenv(f"RESHARD_{name.upper()}")
    path.write_text(f'{name} = "much"\n')
    with pytest.raises(ReshardError) as refused:
        load_settings({}, path)
    assert (
        f"{name}: 'much' is not a size in bytes; expected a number with a unit such as 1GiB"
        in str(refused.value)
    )
    path.write_text(f"{name} = 1\n")
    with pytest.raises(ReshardError, match=f"{name}: expected at least "):
        load_settings({}, path)


def test_nested_names_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_ROOTS__DATA", "/srv/ckpt")
    assert load_settings({}, None).roots == {"data": locate("/srv/ckpt")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 70000", "the settings cannot be used: port: expected at most 65535"),
        ("prot = 1", "prot: there is no member of this name; correct the name, or leave it out; docs/reference/service/settings.md describes each"),
        ("port =", "cannot be used: Invalid value"),
        ('[[tokens]]\nname = "a"\nsha256 = "secret-in-the-clear"\nscopes = []', "tokens.0.sha256"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ReshardError) as raised:
        load_settings({}, path)
    assert words in str(raised.value)
    assert "secret-in-the-clear" not in str(raised.value)


def test_an_environment_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_ROOTS", "/srv/ckpt")
    with pytest.raises(ReshardError) as raised:
        load_settings({}, None)
    assert str(raised.value).endswith(
        'a setting of several values is JSON in the environment, such as RESHARD_ROOTS=\'{"data": "/srv/checkpoints"}\''
    )


def test_variables_that_are_no_settings() -> None:
    given = ["RESHARD_PORT", "RESHARD_ROOTS__DATA", "RESHARD_TOKEN", "RESHARD_PROT", "HOME"]
    assert unknown_variables([*given, "RESHARD_MAXMEMORY__X"]) == [
        "RESHARD_MAXMEMORY__X",
        "RESHARD_PROT",
    ]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_described(name: str) -> None:
    field = Settings.model_fields[name]
    row = f"| `{name}` |"
    assert field.description
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith(row)]
    assert len(lines) == 1
    default = SHORT.get(field.default, field.default) if name in SIZES else field.default
    assert lines[0] == f"| `{name}` | {shown(default)} | {field.description} |"


SHORT = {
    1 << 30: "1GiB", 512 << 20: "512MiB", 256 << 20: "256MiB", 128 << 20: "128MiB", 64 << 20: "64MiB", 32 << 20: "32MiB", 1 << 20: "1MiB",
    16 << 10: "16KiB",
}  # fmt: skip


def shown(default: object) -> str:
    """A default as the table has it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default in (None, ()) or default is PydanticUndefined else str(default)
