"""Values that are not read travel to another distributed checkpoint byte for byte, never opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError
from reshard.formats.dcp import reader
from tests.dcp_files import whole, write_dcp
from tests.emulators.buckets import Bucket
from tests.megatron.saved import unpack
from tests.oracles.oracle import Oracle
from tests.pickled import Call, Global

pytestmark = pytest.mark.xdist_group("torch")

W = np.arange(12, dtype=np.float32).reshape(4, 3)
ROWS = {"mesh": {"x": 2}, "rules": [{"match": "groups/0/w", "axes": ["x"]}]}


def poisoned(folder: Path, canary: Path) -> Path:
    poison = Call(Global("posix", "system"), (f"touch {canary}",))
    return write_dcp(folder, {"w": whole(W), "v": poison, "rate": 0.5})


def test_torch_loads_them(torch: Oracle, tmp_path: Path) -> None:
    """Also those in lists of dicts, which stay lists."""
    torch.ask("save_dcp", state="opaque", folder=str(tmp_path / "saved"))
    reshard.convert(tmp_path / "saved", tmp_path / "made", layout=ROWS)
    wanted = torch.ask("load_dcp", folder=str(tmp_path / "saved"))
    assert torch.ask("load_dcp", folder=str(tmp_path / "made")) == wanted
    assert {"groups/0/state", "groups/1/lr", "bare", "large", "pair/1"} < wanted.keys()
    assert reshard.diff(tmp_path / "saved", tmp_path / "made").differences == 0
    assert len(list((tmp_path / "made").glob("*.distcp"))) == 2 + 1 + 6
    reshard.convert(tmp_path / "made", tmp_path / "again", drop=["^pair$"])
    wanted = {name: value for name, value in wanted.items() if not name.startswith("pair")}
    assert torch.ask("load_dcp", folder=str(tmp_path / "again")) == wanted


def test_a_poisoned_one_is_copied_and_runs_nothing(tmp_path: Path) -> None:
    source = poisoned(tmp_path / "x", tmp_path / "canary")
    reshard.convert(source, tmp_path / "made", check="readback")
    assert not (tmp_path / "canary").exists()
    (leaf,) = [one for one in reshard.inspect(tmp_path / "made").leaves if one.kind]
    assert (leaf.name, leaf.kind) == ("v", "an object of posix.system")


def test_into_a_bucket_and_out_of_it(s3_bucket: Bucket, tmp_path: Path) -> None:
    source = poisoned(tmp_path / "x", tmp_path / "canary")
    reshard.convert(source, f"{s3_bucket.url}/made")
    reshard.convert(f"{s3_bucket.url}/made", tmp_path / "again")
    assert reshard.diff(source, tmp_path / "again").differences == 0


def test_a_damaged_one_is_not_copied(tmp_path: Path) -> None:
    source = poisoned(tmp_path / "x", tmp_path / "canary")
    file = source / "__0_0.distcp"
    data = file.read_bytes()
    at = data.index(b"touch")
    file.write_bytes(data[:at] + b"?" + data[at + 1 :])
    with pytest.raises(CorruptError) as error:
        reshard.convert(source, tmp_path / "made")
    assert str(error.value) == (
        f"{file}: the value 'v': the record 'data.pkl' has another CRC-32 than its header says; restore the file from a copy"
    )
    assert not (tmp_path / "made").exists()


def test_a_copy_that_was_changed_is_found(tmp_path: Path) -> None:
    """The record of the folder has a digest of each file without tensors."""
    source = poisoned(tmp_path / "x", tmp_path / "canary")
    made = Path(reshard.convert(source, tmp_path / "made").target)
    (file,) = [one for one in made.glob("*.distcp") if b"touch" in one.read_bytes()]
    file.write_bytes(file.read_bytes().replace(b"touch", b"TOUCH"))
    report = reshard.verify(made)
    assert report.differences
    assert file.name in str(report)


def test_large_ones_are_left_to_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = poisoned(tmp_path / "x", tmp_path / "canary")
    monkeypatch.setattr(reader, "MOST_CARRIED_BYTES", 100)
    (warning, *_) = reshard.inspect(source).warnings
    assert "leave them out (drop) where the checkpoint is converted" in warning
    with pytest.raises(reshard.ReshardError, match="torch DCP cannot hold 'v'"):
        reshard.convert(source, tmp_path / "made")


def test_megatrons_objects_come_along(tmp_path: Path) -> None:
    source = unpack(tmp_path / "saved") / "0.16.1/llama"
    reshard.convert(source, tmp_path / "made")
    found = {leaf.name: leaf.kind for leaf in reshard.inspect(tmp_path / "made").leaves}
    assert found["common.pt"] == "an object of argparse.Namespace"
    assert reshard.diff(source, tmp_path / "made").differences == 0
