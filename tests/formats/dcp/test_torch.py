"""What torch saves as a distributed checkpoint is what is read, and what torch loads of it, bit by bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import reshard
from reshard.errors import CorruptError, FormatError, IncompleteCheckpointError
from tests.emulators.buckets import Bucket
from tests.formats.safetensors.described import by_torch, described, stock_orbax
from tests.oracles.oracle import Oracle

pytestmark = pytest.mark.xdist_group("torch")

STATES = ("plain", "strides", "dtypes", "training", "named_training", "large")
OF_RANKS = ("together", "threads", "alone")
UNREAD = ("pair", "bytes", "large", "set", "dtype")


def leaves(node: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every leaf as ``torch_dcp.load_dcp`` tells of it."""
    if isinstance(node, dict | list | tuple) and node:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(child, (*keys, str(key)))
        return
    is_array = isinstance(node, np.ndarray | np.generic)
    yield "/".join(keys), described(node) if is_array else repr(node)


@pytest.fixture(scope="module")
def saved(torch: Oracle, folder: Path) -> dict[str, dict[str, Any]]:
    """The full state dict of each folder below ``folder``, as torch loads it."""
    found = {}
    for state in STATES:
        torch.ask("save_dcp", state=state, folder=str(folder / state))
        found[state] = torch.ask("load_dcp", folder=str(folder / state))
    return found


@pytest.mark.parametrize("state", STATES)
def test_a_state_dict_is_restored(
    saved: dict[str, dict[str, Any]], folder: Path, state: str
) -> None:
    assert dict(leaves(reshard.restore(folder / state))) == saved[state]


@pytest.mark.parametrize("state", STATES)
def test_a_state_dict_becomes_orbax(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path, state: str
) -> None:
    reshard.convert(folder / state, tmp_path / "orbax", to="orbax")
    assert dict(leaves(reshard.restore(tmp_path / "orbax"))) == saved[state]
    assert reshard.verify(folder / state, tmp_path / "orbax").differences == 0
    assert reshard.diff(folder / state, tmp_path / "orbax").differences == 0


@pytest.mark.parametrize("state", ["strides", "dtypes", "large"])
def test_stock_orbax_restores_it(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path, state: str
) -> None:
    reshard.convert(folder / state, tmp_path / "orbax", to="orbax")
    assert stock_orbax(tmp_path / "orbax", saved[state]) == saved[state]


@pytest.mark.parametrize("state", ["strides", "dtypes", "large"])
def test_a_state_dict_becomes_safetensors(
    torch: Oracle,
    saved: dict[str, dict[str, Any]],
    folder: Path,
    tmp_path: Path,
    state: str,
) -> None:
    # safetensors does not have it.
    wanted = {name: tensor for name, tensor in saved[state].items() if name != "complex128"}
    select = [f"^{name}$" for name in wanted]
    reshard.convert(folder / state, tmp_path / "hf", to="safetensors", select=select)
    assert by_torch(torch, tmp_path / "hf") == wanted


def test_packed_floats_are_carried_into_safetensors(
    torch: Oracle, folder: Path, tmp_path: Path
) -> None:
    torch.ask("save_dcp", state="packed", folder=str(folder / "packed"))
    reshard.convert(folder / "packed", tmp_path / "hf", to="safetensors")
    wanted = torch.ask("load_dcp", folder=str(folder / "packed"))
    assert wanted["w"]["dtype"] == "float4_e2m1fn_x2"
    assert by_torch(torch, tmp_path / "hf") == wanted


def test_numbers_become_tensors_of_safetensors_and_text_is_refused(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    options: Any = {"to": "safetensors", "files": "one"}
    with pytest.raises(FormatError) as error:
        reshard.convert(folder / "training", tmp_path / "m.safetensors", **options)
    assert str(error.value) == (
        "safetensors files hold tensors only, and cannot hold 'optim/param_groups/0/foreach' (None), 'optim/param_groups/0/fused' (None); "
        "leave them out (drop), or write Orbax (to)"
    )
    drop = ["foreach", "fused"]
    reshard.convert(folder / "training", tmp_path / "m.safetensors", drop=drop, **options)
    found = load_file(tmp_path / "m.safetensors")
    assert found["optim/param_groups/0/lr"] == 0.01
    assert found["optim/param_groups/0/params/3"] == 3
    assert saved["training"]["optim/param_groups/0/lr"] == "0.01"


@pytest.mark.parametrize("form", OF_RANKS)
def test_pieces_of_four_processes_become_full_tensors(
    of_ranks: dict[str, Any], folder: Path, form: str
) -> None:
    assert dict(leaves(reshard.restore(folder / form))) == of_ranks


@pytest.mark.parametrize("form", OF_RANKS)
def test_pieces_of_four_processes_become_orbax(
    of_ranks: dict[str, Any], folder: Path, tmp_path: Path, form: str
) -> None:
    options: Any = {"to": "orbax", "max_memory": "64MiB"}
    reshard.convert(folder / form, tmp_path / "orbax", **options)
    assert dict(leaves(reshard.restore(tmp_path / "orbax"))) == of_ranks


def test_pieces_are_cut_where_torch_cut_them(of_ranks: dict[str, Any], folder: Path) -> None:
    tensors = reshard.inspect(folder / "together").tensors
    assert tensors.keys() == of_ranks.keys()
    cuts = {name: tensor.spec.storage.cuts for name, tensor in tensors.items()}
    assert cuts["model/uneven.both"] == ((0, 3, 5), (0, 4, 7))
    assert cuts["model/uneven.twice"] == ((0, 3, 6, 9, 11), (0, 2))
    assert cuts["model/fewer.rows"] == ((0, 1, 2, 3), (0, 4))


def test_ranks_that_saved_alone_have_replicas_that_are_compared(
    of_ranks: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "alone", tmp_path / "alone")
    assert of_ranks
    assert reshard.verify(tmp_path / "alone").differences == 0
    wanted = reshard.restore(tmp_path / "alone", select=["model/no.dtensor"])
    bits = wanted["model"]["no.dtensor"].tobytes()
    file = tmp_path / "alone" / "__3_0.distcp"
    data = file.read_bytes()
    at = data.index(bits)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    report = reshard.verify(tmp_path / "alone")
    assert [t.name for t in report.tensors if t.is_difference] == ["model/no.dtensor"]


def test_a_rank_that_is_missing_is_named(
    of_ranks: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "alone", tmp_path / "alone")
    assert of_ranks
    (tmp_path / "alone" / "__3.metadata").unlink()
    with pytest.raises(CorruptError, match=r"no piece holds .*; expected each element in exactly"):
        reshard.inspect(tmp_path / "alone")
    (tmp_path / "alone" / "__1.metadata").unlink()
    with pytest.raises(IncompleteCheckpointError) as error:
        reshard.inspect(tmp_path / "alone")
    assert str(error.value) == (
        f"{tmp_path / 'alone'} has the metadata of 2 ranks, up to 2, but not __1.metadata: that rank did not finish its save, or the file "
        "was not copied"
    )


def test_values_that_are_not_read_are_named_and_dropped_by_rule_only(
    torch: Oracle, folder: Path, tmp_path: Path
) -> None:
    source = folder / "hidden"
    torch.ask("save_dcp", state="hidden", folder=str(source))
    others = (
        "'pair' (a value with tensors in it), 'bytes' (bytes), 'large' (an integer of more than 64 bits), 'set' (an object of "
        "__builtin__.set), 'dtype' (the object torch.float32)"
    )
    (warning,) = reshard.inspect(source).warnings[:1]
    assert warning == (
        "'pair' is a value with tensors in it, 'bytes' is bytes, 'large' is an integer of more than 64 bits, and 2 more: such values are "
        "not read; torch DCP targets get 5 of 5 as they are; leave them out (drop) of others, or save them as tensors, numbers and text"
    )
    for to, title in (("orbax", "Orbax"), ("safetensors", "safetensors")):
        with pytest.raises(FormatError) as error:
            reshard.convert(source, tmp_path / to, to=to)
        assert str(error.value) == (
            f"{title} cannot hold {others}: such values are not read; leave them out (drop)"
        )
        reshard.convert(source, tmp_path / to, to=to, drop=list(UNREAD))
        assert list(reshard.inspect(tmp_path / to).tensors) == ["w"]
    with pytest.raises(FormatError) as error:
        reshard.restore(source)
    assert str(error.value) == (
        "'pair' (a value with tensors in it) and 4 more is not restored: such values are not read; leave them out (drop)"
    )
    assert list(reshard.restore(source, select=["^w$"])) == ["w"]
    torch.ask("save_dcp", state="hidden", folder=str(tmp_path / "again"))
    assert reshard.diff(source, tmp_path / "again").differences == 0


@pytest.mark.parametrize("mark", ["conj", "neg"])
def test_bytes_that_are_not_the_values_are_refused(
    torch: Oracle, tmp_path: Path, mark: str
) -> None:
    torch.ask("save_dcp", state=mark, folder=str(tmp_path))
    with pytest.raises(FormatError) as error:
        reshard.inspect(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/__0_0.distcp: the piece [0:1] of 'w' is stored with the mark '{mark}', so that its bytes are not its values; save "
        "it after resolve_conj() and resolve_neg()"
    )


def test_a_dtype_that_is_not_known_is_refused(torch: Oracle, tmp_path: Path) -> None:
    torch.ask("save_dcp", state="half_complex", folder=str(tmp_path))
    with pytest.raises(FormatError) as error:
        reshard.inspect(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/.metadata: tensor 'w' is torch.complex32, of a type that is not read; leave it out where it is saved, or save it as "
        "plain numbers (dequantize, to)"
    )


def test_files_in_torchs_safetensors_serialization_are_refused(
    torch: Oracle, tmp_path: Path
) -> None:
    torch.ask("save_dcp", state="floats", folder=str(tmp_path), format="SAFETENSORS")
    with pytest.raises(FormatError) as error:
        reshard.inspect(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/__0_0.distcp is written in torch's SerializationFormat.SAFETENSORS, whose recorded places are wrong; save with "
        "HuggingFaceStorageWriter(save_distributed=True) instead, which is read"
    )


def test_digests_are_recorded_and_a_flipped_bit_is_found(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    assert saved
    shutil.copytree(folder / "dtypes", tmp_path / "dtypes")
    reshard.fingerprint(tmp_path / "dtypes")
    assert reshard.verify(tmp_path / "dtypes").differences == 0
    bits = reshard.restore(folder / "dtypes", select=["^float64$"])["float64"].tobytes()
    file = tmp_path / "dtypes" / "__0_0.distcp"
    data = file.read_bytes()
    at = data.index(bits)
    file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    report = reshard.verify(tmp_path / "dtypes")
    assert [t.name for t in report.tensors if t.is_difference] == ["float64"]


def test_slices_are_streamed(saved: dict[str, dict[str, Any]], folder: Path) -> None:
    assert saved
    whole = reshard.restore(folder / "strides")["permuted"]
    stream = reshard.open_checkpoint(folder / "strides").stream("permuted", "1:4,:,1:2,0:3")
    assert b"".join(stream) == whole[1:4, :, 1:2, 0:3].tobytes()


def test_steps_of_torchtitan_are_finished_where_their_metadata_is(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    assert saved
    for step in (10, 20, 30):
        shutil.copytree(folder / "training", tmp_path / f"step-{step}")
    (tmp_path / "step-30" / ".metadata").unlink()
    assert list(reshard.steps(tmp_path)) == [10, 20]
    assert reshard.inspect(tmp_path, step="latest").uri == f"{tmp_path}/step-20"
    with pytest.raises(IncompleteCheckpointError, match=r"step 30 of .* was never committed"):
        reshard.inspect(tmp_path, step=30)
    with pytest.raises(IncompleteCheckpointError) as error:
        reshard.inspect(tmp_path / "step-30")
    assert str(error.value) == (
        f"{tmp_path}/step-30 has .distcp files but no .metadata, which torch writes last: the save did not finish, or the file was not "
        "copied (its name begins with a dot); copy it, or take another step"
    )


def test_the_same_from_a_bucket(
    of_ranks: dict[str, Any], saved: dict[str, dict[str, Any]], folder: Path, gcs_bucket: Bucket
) -> None:
    for form in ("together", "plain"):
        for path in (folder / form).iterdir():
            gcs_bucket.store().put(f"{form}/{path.name}", path.read_bytes())
    assert dict(leaves(reshard.restore(f"{gcs_bucket.url}/together"))) == of_ranks
    assert dict(leaves(reshard.restore(f"{gcs_bucket.url}/plain"))) == saved["plain"]


def test_what_people_and_programs_are_told(saved: dict[str, dict[str, Any]], folder: Path) -> None:
    assert saved
    info = reshard.inspect(folder / "plain")
    assert info.format == "dcp"
    assert json.loads(json.dumps(info.to_dict()))["format"] == "dcp"
