"""The files of a view are, byte for byte, those that a conversion with the same options writes."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from reshard.errors import CorruptError, MissingError, PlanError, SourceChangedError
from reshard.views import blocks, view_file
from reshard.views.blocks import Blocks
from reshard.views.view_file import block_at
from tests.checkpoint_files import files_without_times
from tests.views.sources import MAP, SIZES, save_source

RECORD = "slices.json"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source(tmp_path_factory.mktemp("views") / "source")


@pytest.fixture(scope="module")
def recorded(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint as this project writes it, with the digest of each tensor, and an identity."""
    path = tmp_path_factory.mktemp("views") / "recorded"
    reshard.convert(source, path, identity="compute")
    return path


def read(view: reshard.CheckpointView) -> dict[str, bytes]:
    return {path: b"".join(file.read()) for path, file in view.files.items()}


def converted(source: Path, target: Path, **options: object) -> dict[str, bytes]:
    reshard.convert(source, target, **{"to": "safetensors", **options})
    found = files_without_times(target)
    if "" in found:
        found = {
            "model.weights.h5" if options.get("to") == "keras" else "model.safetensors": found[""]
        }
    return {path: data for path, data in found.items() if data != b"folder"}


def without_times(files: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return {path: data for path, data in files_without_times(folder).items() if data != b"folder"}


FORMS = {
    "shards": {},
    "several shards": {"file_bytes": 40_000},
    "a map": {"map": MAP, "sizes": SIZES},
    "a map and a cast": {
        "map": MAP,
        "sizes": SIZES,
        "cast": {"float": "bfloat16"},
        "file_bytes": 60_000,
    },
    "ranks": {"files": "ranks", "mesh": "data=2,model=2"},
    "dcp": {"files": "dcp", "mesh": "data=2,model=2"},
    "rules": {"select": ["embed", "bias"], "rename": {"params/": ""}},
    "orbax": {"to": "orbax", "mesh": "data=2,model=2"},
    "orbax by a map": {"to": "orbax", "map": MAP, "sizes": SIZES},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_files_are_those_of_a_conversion(source: Path, tmp_path: Path, options: dict) -> None:
    expected = converted(source, tmp_path / "out", **options)
    with reshard.open_view(source, **options) as view:
        found = read(view)
        assert {path: file.nbytes for path, file in view.files.items()} == {
            path: len(data) for path, data in found.items()
        }
        assert view.nbytes == sum(map(len, found.values()))
    # The source records no digests, so that there is no record of them.
    expected = {path: data for path, data in expected.items() if not path.endswith(RECORD)}
    found = without_times(found, tmp_path / "found") if options.get("to") == "orbax" else found
    assert found == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"files": "one"},
        {"to": "keras"},
        {"rename": {"params/": ""}},
        {"files": "ranks", "mesh": "data=2,model=2"},
    ],
    ids=str,
)
def test_known_digests_and_an_identity_are_in_the_files(
    recorded: Path, tmp_path: Path, options: dict
) -> None:
    name = {"keras": "out.weights.h5"}.get(options.get("to", ""), "out")
    name = "out.safetensors" if options.get("files") == "one" else name
    expected = converted(recorded, tmp_path / name, **options)
    with reshard.open_view(recorded, **options) as view:
        found = read(view)
        assert found == expected
        if len(expected) > 1:  # a single file has no place for one
            assert view.identity == reshard.identify(tmp_path / name).root
            assert RECORD in found
        for path, file in view.files.items():
            known = file.crc64nvme
            assert known == reshard_crc(found[path]) or (known is None and "rank" in path)


def reshard_crc(data: bytes) -> int:
    import awscrt.checksums

    return awscrt.checksums.crc64nvme(data)


@pytest.fixture(scope="module")
def viewed(source: Path) -> tuple[reshard.ViewFile, bytes]:
    view = reshard.open_view(source, map=MAP, sizes=SIZES, cast={"float": "bfloat16"})
    file = view.files["model.safetensors"]
    return file, b"".join(file.read())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_range_has_the_bytes_of_the_whole(viewed: tuple, data: st.DataObject) -> None:
    file, whole = viewed
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole) + 5))
    assert b"".join(file.read(start, stop)) == whole[start:stop]


def test_a_chunk_with_a_checksum_is_read_in_ranges(source: Path) -> None:
    with reshard.open_view(source, to="orbax", map=MAP, sizes=SIZES) as view:
        path = next(path for path in view.files if "embed" in path and "/c" in path)
        file = view.files[path]
        whole = b"".join(file.read())
        for start, stop in [
            (0, 9),
            (1, file.nbytes),
            (file.nbytes - 3, file.nbytes),
            (file.nbytes - 9, file.nbytes - 2),
        ]:
            assert b"".join(file.read(start, stop)) == whole[start:stop]


def test_a_revision_names_source_state_and_options(source: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(source, copied)
    first = reshard.open_view(copied).revision
    assert reshard.open_view(copied).revision == first
    assert reshard.open_view(copied, cast={"float": "bfloat16"}).revision != first
    (copied / "new").write_bytes(b"")
    assert reshard.open_view(copied).revision != first


def test_a_source_that_changes_is_never_mixed(source: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(source, copied)
    view = reshard.open_view(copied, to="safetensors")
    file = view.files["model.safetensors"]
    reading = file.read()
    next(reading), next(reading)
    for path in (path for path in copied.rglob("*") if path.is_file()):
        path.write_bytes(path.read_bytes())
    with pytest.raises(
        SourceChangedError,
        match="was changed since the view of it was planned; ask for its newest revision",
    ):
        list(reading)
    with pytest.raises(SourceChangedError):
        list(file.read(file.nbytes - 8))
    shutil.rmtree(copied)
    with pytest.raises(MissingError, match="copied is not there any more"):
        list(file.read())
    assert list(file.read(0, 8))  # the header was made when the view was planned


def test_wrong_bytes_are_found_before_the_last_is_handed_over(
    recorded: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    reshard.convert(recorded, copied, to="safetensors")
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with reshard.open_view(copied) as view:
        reading = view.files["model.safetensors"].read()
        got = 0
        with pytest.raises(CorruptError, match="digest"):
            for piece in reading:
                got += len(piece)
        assert got < len(data)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "tensorflow"}, "hold checksums of all of their tensors"),
        ({"to": "dcp"}, "hold checksums of all of their tensors"),
        ({"to": "orbax", "compression": "zstd"}, "would be stored with zstd.*, so that the size of its files is known only once they are made"),
        ({"to": "orbax", "ocdbt": True}, "an OCDBT database is written as a whole"),
        ({"overwrite": True}, "overwrite says how a target is written, and a view writes none; leave it out"),
        ({"identity": "compute"}, "identity is 'compute', but of a view nothing is read before it is asked for"),
        ({"select": ["nothing"]}, "nothing"),
        ({"max_memory": "1KiB"}, "max_memory"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_viewed_is_refused(source: Path, options: dict, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        reshard.open_view(source, **options)


BLOCK = 512
"""So that the tensors of the source have many blocks, and rows of chunks."""


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_blocks_of_a_view_tile_its_files(source: Path, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    for module in (blocks, view_file):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)
    random = Random(1)
    with reshard.open_view(source, **options) as view:
        cache = Blocks(64 * BLOCK)
        for file in view.files.values():
            whole, at = b"".join(file.read()), 0
            while at < file.nbytes:
                block = block_at(file, at)
                assert {block_at(file, place) for place in range(block.start, block.stop)} == {
                    block
                }
                assert block.start == at < block.stop <= min(at + BLOCK, block.last)
                assert block.first <= at and (at - block.first) % BLOCK == 0
                at = block.stop
            for _ in range(20):
                start, stop = sorted(random.choices(range(file.nbytes + 1), k=2))
                assert b"".join(cache.read(file, start, stop)) == whole[start:stop]
        cache.close()


def test_a_row_of_chunks_is_read_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a turned kernel are columns of the source, whose chunks are half as wide as the kernel."""
    monkeypatch.setattr(view_file, "BLOCK_BYTES", BLOCK)
    with reshard.open_view(source, map=MAP, sizes=SIZES) as view:
        (file,) = (file for path, file in view.files.items() if path.endswith(".safetensors"))
        kernel = next(each for each in file.segments if each.name == "model.layers.0.weight")
        rows = {(b.first, b.last) for at in range(kernel.start, kernel.start + kernel.nbytes) if (b := block_at(file, at))}  # fmt: skip
    half = kernel.start + kernel.nbytes // 2
    assert rows == {(kernel.start, half), (half, kernel.start + kernel.nbytes)}
