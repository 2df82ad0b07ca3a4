"""Safetensors targets: hostile names, patterns of file names, and records that lie with the right digests."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError, PlanError, ReshardError, VerificationError
from reshard.formats.safetensors.header import HEADER_DIGEST, NO_DIGEST, RECORD, with_digest
from tests.formats.safetensors.build import entry, file_of, packed
from tests.robustness.hostile.damage_json import damage_json, sealed

LAYOUT = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "w", "axes": ["x"]}]}
FILES = ("one", "shards", "ranks", "dcp")
VALUES = np.arange(68, dtype=np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of each form, by its name."""
    root = tmp_path_factory.mktemp("made")
    header = {"w": entry("F32", [8, 8], 0, 256), "b": entry("F32", [4], 256, 272)}
    source = file_of(root, packed(header, VALUES.tobytes()))
    for files in FILES:
        reshard.convert(source, root / files, to="safetensors", files=files, layout=LAYOUT)
    return root


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize(
    "name", ["x" * 100_000, "a\0b", "", "..", "/etc/passwd", "\x1b[2J", "__metadata__ ", "w/w"]
)
def test_a_name_is_no_path_and_is_kept_whole(name, files, tmp_path):
    source = file_of(tmp_path, packed({name: entry("F32", [2], 0, 8)}, bytes(range(8))))
    target = tmp_path / "out" / "t"
    reshard.convert(source, target, to="safetensors", files=files, layout=LAYOUT)
    assert list(reshard.inspect(target).tensors) == [name]
    assert reshard.verify(source, target).differences == reshard.verify(target).differences == 0
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("one.safetensors", "out")] == []
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["t"]


@pytest.mark.parametrize("files", FILES)
def test_the_name_of_the_metadata_is_refused(files, made, tmp_path):
    rename = [("^b$", "__metadata__")]
    with pytest.raises(PlanError, match="the name '__metadata__' cannot be used in a safetensors"):
        reshard.convert(
            made / "one",
            tmp_path / "t",
            to="safetensors",
            files=files,
            layout=LAYOUT,
            rename=rename,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "pattern",
    [
        "../x.safetensors", "a/{rank}.safetensors", "a\\b.safetensors", "x\0.safetensors", "a\n.safetensors",
        "\ud800.safetensors", "\u202e.safetensors", "{rank:99999d}.safetensors", "{rank.__class__}.safetensors",
        "{{rank}}.safetensors", "{rank", "", "..", "slices.json", "y" * 200 + ".safetensors", "same.safetensors",
    ],
)  # fmt: skip
def test_patterns_of_file_names_stay_names(pattern, made, tmp_path):
    with pytest.raises(PlanError, match="file_names is "):
        reshard.convert(
            made / "one", tmp_path / "t", to="safetensors", files="ranks", layout=LAYOUT, file_names=pattern
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def read(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and the rest of it."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def write(path: Path, header: Any, rest: bytes) -> None:
    """With the digest that the header should have."""
    header["__metadata__"][HEADER_DIGEST] = NO_DIGEST
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(with_digest(len(text).to_bytes(8, "little") + text) + rest)


def resealed(document: Any) -> str:
    return sealed(json.dumps(document).encode()).decode()


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Any:
    """Copies a target, to be changed; its files."""

    def copied(files: str) -> list[Path]:
        path = tmp_path / "copy"
        if (made / files).is_file():
            shutil.copy(made / files, path)
            return [path]
        shutil.copytree(made / files, path)
        return sorted(path.iterdir())

    return copied


@pytest.mark.parametrize("files", FILES)
def test_a_false_digest_in_the_record_is_found(files, copy, tmp_path):
    (path,) = [p for p in copy(files) if files == "one" or p.name == "slices.json"]
    if files == "one":
        header, rest = read(path)
        record = json.loads(header["__metadata__"][RECORD])
    else:
        record = json.loads(path.read_bytes())
    record["tensors"]["w"]["crc64nvme"] = "0123456789abcdef"
    if files == "one":
        header["__metadata__"][RECORD] = resealed(record)
        write(path, header, rest)
    else:
        path.write_text(resealed(record))
    assert reshard.verify(tmp_path / "copy").differences == 1
    with pytest.raises((VerificationError, CorruptError), match="'w'"):
        reshard.convert(tmp_path / "copy", tmp_path / "out", to="orbax")
    assert not (tmp_path / "out").exists()


LIES: list[tuple[str, Any, str]] = [
    ("shards", 10**12, "are of 2 and 1000000000000 shards"),
    ("shard", 1, "shard 0 is missing"),
    ("full_shape", [10**9, 8], "full shapes"),
    ("full_shape", [8, 8, 8], "full shapes"),
    ("offset", [4, 0], r"no piece holds \[0:4, 0:8\]"),
    ("offset", [10**18, 0], "is out of bounds"),
    ("offset", [-1, 0], "offset of the slice"),
    ("version", 2, "reads version 1"),
]


@pytest.mark.parametrize(("member", "value", "text"), LIES)
def test_lies_about_slices_are_refused(member, value, text, copy, tmp_path):
    first = copy("ranks")[0]
    header, rest = read(first)
    slices = json.loads(header["__metadata__"]["reshard.slices"])
    (slices["tensors"]["w"] if member in ("full_shape", "offset") else slices)[member] = value
    header["__metadata__"]["reshard.slices"] = json.dumps(slices)
    write(first, header, rest)
    for call in (reshard.inspect, reshard.restore):
        with pytest.raises(ReshardError, match=text):
            call(tmp_path / "copy")
    assert reshard.verify(tmp_path / "copy").differences > 0


@pytest.mark.parametrize("seed", range(40))
def test_random_lies_are_refused_or_harmless(seed, copy, tmp_path):
    rng = random.Random(seed)
    path = rng.choice(copy(rng.choice(FILES)))
    if path.suffix == ".json":
        path.write_bytes(
            sealed(json.dumps(damage_json(rng, json.loads(path.read_bytes()))).encode())
        )
    else:
        header, rest = read(path)
        texts = [k for k, v in header["__metadata__"].items() if v.startswith("{")]
        key = rng.choice([*texts, "the header"])
        if key == "the header":
            tensors = {k: v for k, v in header.items() if k != "__metadata__"}
            damaged = damage_json(rng, tensors)
            header = {"__metadata__": header["__metadata__"], **damaged}
        else:
            header["__metadata__"][key] = resealed(
                damage_json(rng, json.loads(header["__metadata__"][key]))
            )
        write(path, header, rest)
    try:
        reshard.convert(tmp_path / "copy", tmp_path / "out", to="safetensors", max_memory="64MiB")
    except ReshardError as error:
        assert len(str(error)) < 20_000
        assert not (tmp_path / "out").exists()
    else:
        assert reshard.verify(tmp_path / "copy", tmp_path / "out").differences == 0
