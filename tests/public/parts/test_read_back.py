"""Parts that read back what they wrote: each its own chunks, and whole tensors in the commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.conversion.parts import commit as committing
from reshard.errors import VerificationError
from reshard.storage.local.transaction import LocalTransaction
from tests.public.parts.in_parts import LAYOUT, LIMITS, convert_part, names_in

FORMS: dict[str, dict[str, Any]] = {
    "raw": {},
    "zstd": {"compression": "zstd"},
    "kept": {"layout": None, "compression": "keep"},
    "safetensors": {"to": "safetensors"},
    "cast": {"cast": {"float": "bfloat16"}},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_the_digests_are_those_of_one_run(
    options: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        convert_part(trained, tmp_path / "t", f"{number}/3", check="readback", **options)
    made = reshard.commit(tmp_path / "t")
    given = {"layout": LAYOUT, **LIMITS, **options}
    whole = reshard.convert(trained, tmp_path / "whole", check="readback", **given)
    assert digests(made) == digests(whole)
    assert {tensor.proof for tensor in made.tensors} == {"proved"}


def digests(report: Any) -> dict[str, tuple[str, str]]:
    return {t.target: (t.source_digest, t.target_digest) for t in report.tensors}


@pytest.mark.parametrize("options", [FORMS["raw"], FORMS["kept"]], ids=["raw", "kept"])
def test_a_flipped_bit_is_found_by_its_part(
    options: dict[str, Any], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalTransaction.written

    def flipping(self: LocalTransaction) -> Any:
        written = real(self)
        files = [path for path in Path(self.root.path).rglob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[1000] ^= 4
        largest.write_bytes(data)
        return written

    monkeypatch.setattr(LocalTransaction, "written", flipping)
    with pytest.raises(VerificationError, match="what this part did was discarded"):
        convert_part(trained, tmp_path / "t", "1/2", check="readback", **options)
    monkeypatch.undo()
    for number in (1, 2):
        convert_part(trained, tmp_path / "t", f"{number}/2", check="readback", **options)
    reshard.commit(tmp_path / "t")
    assert names_in(tmp_path) == ["t"]


def test_a_part_that_read_back_something_else_stops_the_commit(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        convert_part(trained, tmp_path / "t", f"{number}/2", check="readback")
    real = committing._seal_of

    def other(*words: Any) -> Any:
        seal = dict(real(*words) or {})
        name = next(iter(seal["read_back"]))
        return {**seal, "read_back": {**seal["read_back"], name: 1}}

    monkeypatch.setattr(committing, "_seal_of", other)
    with pytest.raises(
        VerificationError, match=r"was read back with digest .*, but .* was written"
    ):
        reshard.commit(tmp_path / "t")
    assert not (tmp_path / "t").exists()
