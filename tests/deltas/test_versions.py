"""The versions in a folder: the chain to the newest, what it does not need, and what leads nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import reshard
from reshard.cli.app import run
from reshard.errors import ReshardError
from tests.delta_layout import bytes_of, changed, write_delta, write_full

LIKE = {"a": np.arange(600, dtype="f4"), "b": np.arange(9, dtype="i4")}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Deltas 1 to 3 on a version elsewhere, a full version 4, a delta 5 on it, and an unfinished 6."""
    folder, state = tmp_path / "published", bytes_of(LIKE)
    for number in (1, 2, 3, 5):
        after = changed(state, 0.01, number)
        write_delta(folder, number, state, after)
        state = after
    write_full(folder / "weight_v000004", state, LIKE)
    (folder / "weight_v000006").mkdir()
    (folder / "notes").mkdir()
    return folder


def summary(folder: Path) -> list[tuple[str, str, str, bool]]:
    return [(v.version, v.kind, v.base_version, v.is_needed) for v in reshard.inspect_versions(folder)]  # fmt: skip


def test_the_newest_needs_the_chain_from_the_last_full_version(published: Path) -> None:
    assert summary(published) == [
        ("000001", "delta", "000000", False),
        ("000002", "delta", "000001", False),
        ("000003", "delta", "000002", False),
        ("000004", "full", "", True),
        ("000005", "delta", "000004", True),
        ("000006", "unfinished", "", False),
    ]
    *_, last = reshard.inspect_versions(published)
    assert last.problem == "it is not finished"


def test_a_delta_whose_base_is_missing_leads_nowhere(published: Path) -> None:
    (published / "weight_v000002").rename(published / "gone")
    found = {one.version: one for one in reshard.inspect_versions(published)}
    assert found["000001"].problem == ""
    assert found["000003"].problem == "the version 000002 is missing"
    assert str(found["000003"]).endswith("the version 000002 is missing")


def test_one_delta_by_itself(published: Path) -> None:
    (one,) = reshard.inspect_versions(published / "weight_v000002")
    assert (one.changed, one.encoding, one.checksum) == (2, "xor", "xxh3-128")
    assert one.is_needed and not one.problem
    assert one.nbytes == sum(f.stat().st_size for f in (published / "weight_v000002").iterdir())


def test_links_out_of_a_delta_are_not_followed(published: Path) -> None:
    index = published / "weight_v000002" / "model.safetensors.index.json"
    index.rename(published / "elsewhere.json")
    index.symlink_to(published / "elsewhere.json")
    (one,) = [v for v in reshard.inspect_versions(published) if v.version == "000002"]
    assert (one.kind, one.changed) == ("unusable", 0)
    assert "link" in one.problem
    with pytest.raises(ReshardError, match="link"):
        reshard.apply(published / "weight_v000004", [index.parent], published / "full")


def test_what_changed_of_each_tensor(tmp_path: Path) -> None:
    for name, a in (("old", LIKE["a"]), ("new", np.where(LIKE["a"] < 3, -1, LIKE["a"]))):
        (tmp_path / name).mkdir()
        save_file({"a": a, "b": LIKE["b"]}, tmp_path / name / "model.safetensors")
    made = reshard.delta(tmp_path / "old", tmp_path / "new", tmp_path / "weight_v000001")
    (one,) = reshard.inspect_versions(tmp_path / "weight_v000001")
    assert (one.changed, one.changed_elements) == (1, 3)
    assert one.tensors == tuple(made.tensors.values())
    assert str(one.tensors[0]).startswith("a: 3 of 600 elements (0.50%), ")
    (listed,) = [v for v in reshard.inspect_versions(tmp_path) if v.kind == "delta"]
    assert (listed.changed_elements, listed.tensors) == (3, ())


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ({}, "metadata.changed should count the elements of what weight_map names, and of nothing else"),
        ({"a": -1}, "metadata.changed should contain numbers from 0 to 2^62, but is [-1]"),
        (3, "metadata.changed should be of type dict, but is 3"),
    ],
)  # fmt: skip
def test_counts_that_cannot_be(counts: object, problem: str, tmp_path: Path) -> None:
    for name, a in (("old", LIKE["a"]), ("new", LIKE["a"] + 1)):
        (tmp_path / name).mkdir()
        save_file({"a": a}, tmp_path / name / "model.safetensors")
    reshard.delta(tmp_path / "old", tmp_path / "new", tmp_path / "weight_v000001")
    file = tmp_path / "weight_v000001" / "model.safetensors.index.json"
    index = json.loads(file.read_bytes())
    index["metadata"]["changed"] = counts
    file.write_text(json.dumps(index))
    (one,) = reshard.inspect_versions(tmp_path / "weight_v000001")
    assert one.kind == "damaged"
    assert problem in one.problem


def test_a_folder_without_versions(tmp_path: Path) -> None:
    with pytest.raises(reshard.NotACheckpointError) as error:
        reshard.inspect_versions(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds no versions of weights: expected folders such as weight_v000007, or the folder of a delta"
    )


def test_the_command_shows_them(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(published)]) == 0
    said = capsys.readouterr().out
    assert "weight_v000005  delta       000004" in said
    assert "weight_v000006: it is not finished" in said
    assert run(["inspect", str(published / "weight_v000001"), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["versions"]
    assert one["base_version"] == "000000"
    assert run(["inspect", str(published / "notes")]) == 1


def test_two_folders_of_one_version_are_not_used_and_nothing_is_removed(published: Path) -> None:
    (published / "delta-00000004").mkdir()
    found = {one.name: one for one in reshard.inspect_versions(published)}
    for name in ("delta-00000004", "weight_v000004"):
        assert found[name].kind == "unusable"
        assert found[name].problem == "delta-00000004 and weight_v000004 are of one version"
    assert not found["weight_v000004"].is_needed
    with pytest.raises(
        reshard.FormatError, match="nothing was removed: delta-00000004 and weight_v000004 are of one version; restore"
    ):  # fmt: skip
        reshard.clean_versions(published, 1)


def test_a_number_with_more_zeros_is_no_version(published: Path) -> None:
    (published / "weight_v000004").rename(published / "weight_v0000004")
    assert "000004" not in {one.version for one in reshard.inspect_versions(published)}
    with pytest.raises(
        reshard.PlanError, match="weight_v and a number of six digits, or more where it needs them"
    ):
        reshard.delta(published / "weight_v0000004", published, published / "weight_v0000005")


def test_a_version_that_was_made_anew_breaks_the_chain(tmp_path: Path) -> None:
    """The numbers fit, but the digests that both deltas record do not."""
    arrays = {"a": LIKE["a"], "b": LIKE["b"]}
    for step in range(4):
        (tmp_path / str(step)).mkdir()
        save_file({**arrays, "b": arrays["b"] + step}, tmp_path / str(step) / "model.safetensors")
    published = tmp_path / "published"
    for number in (1, 2, 3):
        reshard.delta(tmp_path / str(number - 1), tmp_path / str(number), published / f"weight_v{number:06}")  # fmt: skip
    assert [one.is_needed for one in reshard.inspect_versions(published)] == [True] * 3
    (published / "weight_v000001").rename(tmp_path / "before")
    reshard.delta(tmp_path / "0", tmp_path / "3", published / "weight_v000001")
    said = "the version 000002 was made of other weights than 000001 makes"
    found = reshard.inspect_versions(published)
    assert [one.problem for one in found] == ["", said, said]
    assert [one.is_needed for one in found] == [True, False, False]
    with pytest.raises(ReshardError, match="of two runs"):
        reshard.verify(tmp_path / "0", deltas=sorted(published.iterdir()))


def test_a_version_of_another_format_is_no_base(published: Path) -> None:
    reshard.save(published / "weight_v000007", LIKE)
    write_delta(published, 8, bytes_of(LIKE), changed(bytes_of(LIKE), 0.1, 8))
    *_, other, on = reshard.inspect_versions(published)
    assert (other.kind, other.problem) == ("full", "no delta stands on the format orbax")
    assert on.problem == "the version 000007 cannot be used"
    assert not other.is_needed and not on.is_needed


def test_what_is_no_delta_is_told_from_one_in_the_making(published: Path, tmp_path: Path) -> None:
    full = published / "weight_v000004"
    with pytest.raises(ReshardError) as refused:
        reshard.apply(full, [published], tmp_path / "full")
    assert str(refused.value) == (
        f"{published} is no delta: expected a folder such as weight_v000007, with model.safetensors.index.json and the files that it names; name "
        "the folder of each delta in it, such as weight_v000001"
    )
    with pytest.raises(ReshardError, match="which is written last: its writer is at work"):
        reshard.apply(full, [published / "weight_v000006"], tmp_path / "full")
    reshard.save(published / "step", LIKE)
    with pytest.raises(ReshardError, match=r"step is no delta: .* name the folder of each delta$"):
        reshard.apply(full, [published / "step"], tmp_path / "full")
