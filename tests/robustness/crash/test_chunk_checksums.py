"""``finish_files`` gets the size and the CRC32C of each chunk, as it is in its file; also after a resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from awscrt.checksums import crc32c
from msgspec.structs import replace

import reshard
from reshard.conversion import prove
from reshard.conversion.prove import ChunkChecksums
from reshard.errors import StorageError
from reshard.formats.file_map import ChunkChecksum, FileMap, finish_files
from reshard.formats.orbax import format as orbax_form
from reshard.storage.local.transaction import LocalTransaction
from reshard.storage.location import Location
from tests.campaigns import pairwise, singly
from tests.robustness.crash.cases import CASES, Case, case
from tests.robustness.crash.interrupted import other_boot, stop

OWN_FILES = {
    **{name: CASES[name] for name in ("scatter", "weave", "zstd", "copy", "cast")},
    "blosc": case("raw", ("rows", "block"), compression="blosc", chunk_bytes=16384),
}
SHARED_FILES = {name: CASES[name] for name in ("one", "shards", "ranks", "dcp")}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[ChunkChecksum]:
    """Compares the checksums that a format gets with the files."""
    heard: list[ChunkChecksum] = []
    monkeypatch.setattr(prove, "finish_files", checking(heard))
    return heard


def checking(heard: list[ChunkChecksum]) -> Any:
    def checked(
        files: FileMap, root: Location, digests: Mapping[str, str], checksums: ChunkChecksums
    ) -> Mapping[str, bytes]:
        heard.extend(checksums)
        assert list(checksums) == heard
        tensors = checksums.target.planned.checkpoint.tensors
        chunks = {
            (name, index) for name, t in tensors.items() for index in t.spec.storage.indices()
        }
        assert {(each.name, each.index) for each in heard} == chunks
        assert len(heard) == len(chunks)
        for each in heard:
            for data in stored(files, root, each):
                assert (len(data), crc32c(data)) == (each.nbytes, each.crc32c), each
        return finish_files(files, root, digests, checksums)

    return checked


def stored(files: FileMap, root: Location, chunk: ChunkChecksum) -> Iterator[bytes]:
    """The bytes at each place of a chunk, or in the database."""
    places = files.places(chunk.name, chunk.index)
    for place in places:
        data = Path(root.path, place.file).read_bytes()
        yield data if place.offset is None else data[place.start : place.start + chunk.nbytes]
    if not places:
        folder, key = files.database._key(chunk.name, chunk.index)
        yield files.database._open[folder].read(key).result().value


def without_trailers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = orbax_form._encoding
    monkeypatch.setattr(
        orbax_form, "_encoding", lambda *given: replace(encoding(*given), checksum=False)
    )


def converted_in_parts(
    made: Case, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, interruption: str
) -> int:
    """Bytes that were taken over from the interrupted run."""
    if interruption != "none":
        stop(source, target, KeyboardInterrupt(), **made.options)
    if interruption == "reboot":
        other_boot(monkeypatch)
    report = reshard.convert(source, target, **made.options)
    assert reshard.verify(source, target).differences == 0
    return report.resumed_bytes


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("name", "trailers", "interruption"),
    pairwise([*OWN_FILES], [True, False], ["none", "stopped", "reboot"]),
)
def test_chunks_in_files_of_their_own(
    name, trailers, interruption, sources, tmp_path, monkeypatch, told
):
    if not trailers:
        without_trailers(monkeypatch)
    made = OWN_FILES[name]
    source = sources[made.source]
    resumed = converted_in_parts(made, source, tmp_path / "t", monkeypatch, interruption)
    assert bool(resumed) == (interruption != "none")
    assert (len({each.crc32c for each in told}) == 1) == trailers


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("name", "interruption"), singly([*SHARED_FILES], ["none", "stopped", "reboot"])
)
def test_chunks_in_shared_files(name, interruption, sources, tmp_path, monkeypatch, told):
    made = SHARED_FILES[name]
    target = tmp_path / ("t.safetensors" if name == "one" else "t")
    resumed = converted_in_parts(made, sources[made.source], target, monkeypatch, interruption)
    # After a reboot chunks that are not closed are not believed; here that may be all of them.
    assert bool(resumed) == (interruption == "stopped") or interruption == "reboot"
    assert len({each.crc32c for each in told}) > 1


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("interruption", ["none", "stopped"])
@pytest.mark.parametrize("trailers", [True, False], ids=["trailers", "bare"])
def test_chunks_in_a_database(trailers, interruption, sources, tmp_path, monkeypatch, told):
    if not trailers:
        without_trailers(monkeypatch)
    made = CASES["ocdbt"]
    resumed = converted_in_parts(
        made, sources[made.source], tmp_path / "t", monkeypatch, interruption
    )
    assert bool(resumed) == (interruption != "none")
    assert (len({each.crc32c for each in told}) == 1) == trailers


@pytest.mark.usefixtures("told")
def test_a_journal_that_is_not_whole_is_an_error(sources, tmp_path, monkeypatch):
    records = LocalTransaction.records
    monkeypatch.setattr(LocalTransaction, "records", lambda self: iter([*records(self)][:-1]))
    with pytest.raises(StorageError, match=r"names \d+ of \d+ finished chunks"):
        reshard.convert(sources["raw"], tmp_path / "t", **CASES["scatter"].options)
    assert not (tmp_path / "t").exists()
