"""One wrong bit anywhere is found by verify, and never gives a wrong result without a word.

``python -m benchmarks.flips.run`` is the same with 10,000 flips.
"""

from __future__ import annotations

import pytest

import reshard
from benchmarks.flips.places import Range, places
from benchmarks.flips.run import described, summary, table, trials
from benchmarks.flips.specimens import Specimen
from benchmarks.flips.trials import Flip, flipped, is_found, run_trial
from reshard.cli.app import run
from reshard.errors import CorruptError, ReshardError
from reshard.formats.slices.file_digests import file_verdicts, folder_records
from reshard.storage.location import locate
from tests.campaigns import every, examples

METADATA = {
    "slices.json", "_METADATA", "_sharding", "_strings.json", "_CHECKPOINT_METADATA",
    "array_metadatas", "commit marker", "item that is no tree", "zarr metadata", "OCDBT manifest",
}  # fmt: skip

RECORDED = {"safetensors header", "safetensors index", "slices.json"}
SAFETENSORS = ["one.safetensors", "shards-safetensors", "ranks-safetensors", "dcp-safetensors"]


def test_random_flips_are_never_silent(specimens, tmp_path):
    done = list(trials(list(specimens.values()), examples(950), 17, tmp_path))
    assert [described(t) for t in done if t.is_silent or t.is_missed] == []
    assert {t.specimen.name for t in done} == set(specimens)
    assert f"| all | | {len(done):,} |" in table(summary(done))


@pytest.mark.parametrize("name", ["saved", "items-ocdbt"])
def test_a_flip_in_any_byte_of_the_metadata_is_found(specimens, name):
    """Bytes of every metadata file, every ninth, each with another of its bits."""
    path = specimens[name].path
    found = {kind: ranges for kind, ranges in places(path).items() if kind in METADATA}
    assert len(found) > 6
    missed = [flip for flip in every_byte(found) if not found_in_files(path, flip)]
    assert missed == []


def every_byte(found: dict[str, list[Range]]) -> list[Flip]:
    spots = [
        (r.file, b) for rs in found.values() for r in rs for b in range(r.start, r.stop, every(9))
    ]
    return [Flip(file, byte, byte % 8) for file, byte in spots]


def found_in_files(path, flip: Flip) -> bool:
    """By the part of verify that is about files; the rest reads tensors, which are sound here."""
    with flipped(path, flip):
        return any(
            f.is_difference for f in file_verdicts(locate(path), folder_records(locate(path)), None)
        )


def found_by_verify(path, flip: Flip) -> bool:
    with flipped(path, flip):
        return is_found(path)


@pytest.mark.parametrize("file", ["slices.json", "_METADATA", "_sharding", "_CHECKPOINT_METADATA"])
def test_opening_refuses_metadata_with_any_byte_wrong(specimens, file):
    """So do inspect, plan, convert and restore, which begin with it."""
    path = specimens["raw"].path
    for byte in range(0, (path / file).stat().st_size, every(22)):
        with flipped(path, Flip(file, byte, byte % 8)), pytest.raises(ReshardError) as caught:
            reshard.inspect(path)
        assert file in str(caught.value)


@pytest.mark.parametrize("name", SAFETENSORS)
def test_opening_refuses_headers_index_and_record_with_any_byte_wrong(specimens, name):
    path = specimens[name].path
    found = {kind: ranges for kind, ranges in places(path).items() if kind in RECORDED}
    assert found.keys() >= {"safetensors header"}
    for ranges in found.values():
        for place in ranges:
            for byte in range(place.start, place.stop, every(14)):
                with flipped(path, Flip(place.file, byte, byte % 8)):
                    with pytest.raises(ReshardError) as caught:
                        reshard.inspect(path)
                    assert str(path) in str(caught.value)


def test_every_bit_of_small_chunks_with_their_trailers_is_found(specimens):
    for name in ("zstd", "gzip", "blosc"):
        path = specimens[name].path
        (chunk,) = (p for p in (path / "scale").rglob("*") if p.name == "c")
        for byte in range(0, chunk.stat().st_size, every(3)):
            flip = Flip(str(chunk.relative_to(path)), byte, byte % 8)
            assert found_by_verify(path, flip), (name, flip)


@pytest.mark.parametrize("name", SAFETENSORS)
def test_a_flip_in_the_name_of_a_headers_digest_is_found(specimens, name, capsys):
    """Without that name a header looks as if others had written it, and nothing else in it has a digest."""
    path = specimens[name].path
    file = path if path.is_file() else max(path.glob("*.safetensors"))
    byte = file.read_bytes().index(b"reshard.crc64nvme")
    with flipped(path, Flip(str(file.relative_to(path)), byte, 1)):
        with pytest.raises(CorruptError, match="records no digest of itself"):
            reshard.inspect(path)
        assert run(["verify", str(path)]) == 3
    assert file.name in capsys.readouterr().out


def test_the_command_ends_with_three(specimens, capsys):
    path = specimens["raw"].path
    assert run(["verify", str(path)]) == 0
    chunk = places(path)["chunk data, raw"][0]
    spots = (("_METADATA", 0), ("_METADATA", 40), ("slices.json", 12), (chunk.file, chunk.start))
    for file, byte in spots:
        with flipped(path, Flip(file, byte, 0)):
            assert run(["verify", str(path)]) == 3, file
    assert "_METADATA" in capsys.readouterr().out


def test_a_silent_result_would_be_noticed(specimens, tmp_path):
    """Without the record a flip in raw chunk data goes through: the trial says so."""
    raw = specimens["orbax-plain-raw"]
    copy = Specimen("copy", tmp_path / "copy", is_output=True)
    raw.path.rename(copy.path)
    try:
        record = (copy.path / "slices.json").read_bytes()
        (copy.path / "slices.json").unlink()
        (place, *_) = places(copy.path)["chunk data, raw"]
        trial = run_trial(copy, "data", Flip(place.file, place.start, 0), tmp_path)
        assert (trial.convert, trial.restore, trial.is_found) == ("silent", "silent", False)
        assert trial.is_silent
        assert trial.is_missed
        (copy.path / "slices.json").write_bytes(record)
    finally:
        copy.path.rename(raw.path)
