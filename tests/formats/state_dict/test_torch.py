"""What torch saves in one file is what is read, bit by bit; what is not read is refused by name, and nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

import reshard
from reshard.errors import FormatError, PlanError
from tests.emulators.buckets import Bucket
from tests.formats.safetensors.described import by_torch, described
from tests.oracles.oracle import Oracle, RefusedError

pytestmark = [
    pytest.mark.xdist_group("torch"),
    pytest.mark.filterwarnings("ignore:tensors share their elements"),
]

STATES = (
    "plain", "dtypes", "strides", "views", "module", "training", "parameters", "empty_module", "large",
)  # fmt: skip


def leaves(node: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every leaf as ``torch_states.load_state`` tells of it."""
    if isinstance(node, dict | list | tuple) and node:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(child, (*keys, str(key)))
        return
    is_array = isinstance(node, np.ndarray | np.generic)
    yield "/".join(keys), described(node) if is_array else repr(node)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def saved(torch: Oracle, folder: Path) -> dict[str, dict[str, Any]]:
    """The leaves of each file below ``folder``, as torch loads them with its restricted loader."""
    found = {}
    for state in STATES:
        torch.ask("save_state", file=f"{folder}/{state}.pt", state=state)
        loaded = torch.ask("load_state", file=f"{folder}/{state}.pt")
        found[state] = {name: "{}" if leaf == "OrderedDict()" else leaf for name, leaf in loaded.items()}  # fmt: skip
    return found


@pytest.mark.parametrize("state", STATES)
def test_a_state_dict_is_restored(
    saved: dict[str, dict[str, Any]], folder: Path, state: str
) -> None:
    assert dict(leaves(reshard.restore(folder / f"{state}.pt"))) == saved[state]


@pytest.mark.parametrize("state", STATES)
def test_a_state_dict_becomes_orbax(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path, state: str
) -> None:
    source = folder / f"{state}.pt"
    options: Any = {"to": "orbax", "max_memory": "64MiB"}
    reshard.convert(source, tmp_path / "orbax", **options)
    assert dict(leaves(reshard.restore(tmp_path / "orbax"))) == saved[state]
    assert reshard.verify(source, tmp_path / "orbax").differences == 0
    assert reshard.diff(source, tmp_path / "orbax").differences == 0


@pytest.mark.parametrize("state", ["strides", "views", "module", "large"])
def test_a_state_dict_becomes_safetensors_without_asking_for_it(
    torch: Oracle, saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path, state: str
) -> None:
    reshard.convert(folder / f"{state}.pt", tmp_path / "hf" / "model.safetensors")
    assert by_torch(torch, tmp_path / "hf") == saved[state]


def test_the_state_of_a_training_becomes_a_distributed_checkpoint_of_torch(
    torch: Oracle, saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    reshard.convert(folder / "training.pt", tmp_path / "dcp", to="dcp")
    found = torch.ask("load_dcp", folder=str(tmp_path / "dcp"))
    assert found == saved["training"]


def test_packed_floats_are_carried_into_safetensors(
    torch: Oracle, folder: Path, tmp_path: Path
) -> None:
    torch.ask("save_state", file=f"{folder}/packed.pt", state="packed")
    reshard.convert(folder / "packed.pt", tmp_path / "hf", to="safetensors")
    assert by_torch(torch, tmp_path / "hf") == torch.ask("load_state", file=f"{folder}/packed.pt")


@pytest.mark.parametrize("ending", ["pth", "bin", "ckpt", "pt.tar"])
@pytest.mark.parametrize("options", [{}, {"pickle_protocol": 4}], ids=str)
def test_endings_and_protocols(
    torch: Oracle, tmp_path: Path, ending: str, options: dict[str, Any]
) -> None:
    file = tmp_path / f"model.{ending}"
    torch.ask("save_state", file=str(file), state="plain", **options)
    info = reshard.inspect(file)
    assert info.format == "torch"
    assert json.loads(json.dumps(info.to_dict()))["format"] == "torch"
    assert reshard.restore(file)["3"].tolist() == [0, 1, 2]


def test_tied_tensors_are_named_by_a_warning(
    saved: dict[str, dict[str, Any]], folder: Path
) -> None:
    assert saved
    (warning,) = reshard.inspect(folder / "module.pt").warnings
    assert warning == (
        "tensors share their elements: 'head.weight' with 'embed.weight'; each is read and written as one of its own, so leave one out (drop) "
        "where the program that loads them ties them again"
    )
    (warning,) = reshard.inspect(folder / "views.pt").warnings
    assert "'again' with 'all'; each" in warning  # parts of one storage are no copies


def test_a_model_in_shards_of_hugging_face(torch: Oracle, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    made = torch.ask("save_model_files", folder=str(source))
    (source / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": made["weight_map"]})
    )
    for place in (source, source / "pytorch_model.bin.index.json"):
        assert dict(leaves(reshard.restore(place))) == made["tensors"]
    reshard.convert(source, tmp_path / "hf", to="safetensors")
    assert by_torch(torch, tmp_path / "hf") == made["tensors"]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # the output layer of gpt2 is its embedding
def test_a_model_that_transformers_saved_loads_as_safetensors(
    torch: Oracle, tmp_path: Path, kind: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    logits = torch.ask("save_bin_model", kind=kind, folder=str(old))
    reshard.convert(old, new, to="safetensors", config=old)
    assert not (new / "pytorch_model.bin").exists()
    found = torch.ask("load_model", folder=str(new))
    assert found == {"logits": logits, "missing_keys": [], "unexpected_keys": []}


def test_a_flipped_bit_is_named_by_verify(
    saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    assert saved
    file = tmp_path / "views.pt"
    data = bytearray((folder / "views.pt").read_bytes())
    assert reshard.verify(folder / "views.pt").differences == 0
    data[data.index(np.arange(60, dtype=np.int32).tobytes()) + 100] ^= 1
    file.write_bytes(data)
    found = {one.name: one.detail for one in reshard.verify(file).tensors if one.is_difference}
    assert found.keys() == saved["views"].keys() - {"nothing"}
    assert all(f"its bytes in {file} do not have the CRC-32" in text for text in found.values())


UNREAD = {
    "conj": "'w' is a tensor that is stored with the mark 'conj', so that its bytes are not its values; save it after resolve_conj() and resolve_neg()",
    "neg": "'w' is a tensor that is stored with the mark 'neg', so that its bytes are not its values; save it after resolve_conj() and resolve_neg()",
    "half_complex": "'w' is a tensor that is torch.complex32, of a type that is not read; leave it out where it is saved, or save it as plain numbers (dequantize, to)",
    "quantised": "'w' is a quantised tensor; save it after dequantize()",
    "by_channel": "'w' is a quantised tensor; save it after dequantize()",
    "sparse": "'a/w' is a sparse tensor; save it after to_dense()",
    "csr": "'w' is a sparse tensor; save it after to_dense()",
    "nested": "'w' is a nested tensor; save it after to_padded_tensor()",
    "meta": "'w' is a tensor of the device 'meta', which has no elements",
    "storage": "'w' is a storage without a tensor",
    "wrapped": "'w' is a tensor of torch_states.Wrapped",
}  # fmt: skip


@pytest.mark.parametrize("state", UNREAD)
def test_a_tensor_that_is_not_read_is_refused_until_it_is_dropped(
    torch: Oracle, tmp_path: Path, state: str
) -> None:
    file = tmp_path / "x.pt"
    torch.ask("save_state", file=str(file), state=state, beside=True)
    warnings = [text for text in reshard.inspect(file).warnings if "such values are not read" in text]  # fmt: skip
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{UNREAD[state]}: such values are not read; leave them out (drop)")  # fmt: skip
    name, _, kind = UNREAD[state].partition(" is ")
    with pytest.raises(FormatError) as error:
        reshard.convert(file, tmp_path / "hf", to="safetensors")
    assert str(error.value) == (
        f"safetensors cannot hold {name} ({kind}): such values are not read; leave them out (drop)"
    )
    with pytest.raises(FormatError, match="is not restored: such values are not read"):
        reshard.restore(file)
    reshard.convert(file, tmp_path / "hf", to="safetensors", drop=[f"^{name[1:-1]}$"])
    assert by_torch(torch, tmp_path / "hf")["beside"] == described(np.ones(2, np.float32))


NAMED = {
    "list": (["0"], None),
    "bytes": ([], "'a/0' is bytes"),
    "size": ([], "'w' is an object of torch.Size"),
    "device": ([], "'w' is an object of torch.device"),
    "set": ([], "'w' is an object of __builtin__.set"),
    "keys": (["w/(1, 2)", "w/2", "w/None"], None),
    "wide": ([], "'w' is an integer of more than 64 bits"),
    "wrapped": (["w._inner"], None),
}


@pytest.mark.parametrize("state", NAMED)
def test_other_values_are_named_and_left_out(torch: Oracle, tmp_path: Path, state: str) -> None:
    file = tmp_path / "x.pt"
    names, said = NAMED[state]
    torch.ask("save_state", file=str(file), state=state, beside=state != "list")
    info = reshard.inspect(file)
    assert sorted(info.tensors) == sorted([*names, *["beside"] * (state != "list")])
    left_out = [text for text in info.warnings if "they are left out" in text]
    assert left_out == ([f"{said}: only the program that wrote such values can read them; they are left out, but for tensors in them"] if said else [])  # fmt: skip


@pytest.mark.filterwarnings("ignore::reshard.CheckpointWarning")
def test_a_poisoned_pickle_runs_nothing(torch: Oracle, tmp_path: Path) -> None:
    file, mark = tmp_path / "x.pt", tmp_path / "ran"
    torch.ask("save_state", file=str(file), poison=f"touch {mark}")
    assert reshard.restore(file)["w"].tolist() == [1, 1]
    assert reshard.verify(file).differences == 0
    report = reshard.convert(file, tmp_path / "made", to="dcp")
    assert report.warnings[0].startswith("'x' is an object of posix.system: only the program")
    assert not mark.exists()
    assert not any(b"posix" in path.read_bytes() for path in (tmp_path / "made").iterdir())
    with pytest.raises(
        RefusedError, match=r"posix\.system"
    ):  # torch's own restricted loader agrees
        torch.ask("load_state", file=str(file))


def test_the_form_before_torch_1_6_is_refused_with_the_way_from_there(
    torch: Oracle, tmp_path: Path
) -> None:
    file = tmp_path / "old.bin"
    torch.ask("save_state", file=str(file), state="module", _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError) as error:
        reshard.inspect(file)
    assert str(error.value) == (
        f"{file} is in the form that torch.save wrote before torch 1.6, which is not read; in torch, "
        "torch.save(torch.load(FILE, weights_only=True), 'NAME.pt') writes an archive, which is"
    )
    torch.ask("load_legacy", file=str(file))
    assert dict(leaves(reshard.restore(f"{file}.pt"))) == torch.ask("load_state", file=str(file))


def test_a_program_is_refused_with_the_way_from_there(torch: Oracle, tmp_path: Path) -> None:
    file, state = tmp_path / "net.pt", tmp_path / "state.pt"
    wanted = torch.ask("save_script", file=str(file), state=str(state))
    with pytest.raises(FormatError) as error:
        reshard.inspect(file)
    assert str(error.value) == (
        f"{file} is an archive of TorchScript (torch.jit.save), which holds a program; in torch, "
        "torch.save(torch.jit.load(FILE).state_dict(), 'NAME.pt') writes its tensors, which are read"
    )
    assert dict(leaves(reshard.restore(state))) == wanted


def test_a_compressed_archive_is_refused_with_the_way_from_there(
    torch: Oracle, saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "small.pt"
    with ZipFile(folder / "module.pt") as stored, ZipFile(file, "w", ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    with pytest.raises(FormatError) as error:
        reshard.inspect(file)
    assert str(error.value) == (
        f"{file}: the record 'module/data.pkl' is compressed or encrypted; expected it as torch.save stores it, as it is; load the file with "
        "torch and save it again"
    )
    torch.ask("load_legacy", file=str(file))
    assert dict(leaves(reshard.restore(f"{file}.pt"))) == saved["module"]


def test_a_target_of_this_format_is_refused(saved: dict[str, dict[str, Any]], folder: Path, tmp_path: Path) -> None:  # fmt: skip
    assert saved
    file = folder / "module.pt"
    with pytest.raises(PlanError) as error:
        reshard.convert(file, tmp_path / "made")
    assert str(error.value) == (
        f"{file}: torch state dicts are only read, and the target has the format of the source where none is named; name another (to)"
    )
    with pytest.raises(PlanError, match="to is 'torch'; expected one of None, 'orbax'"):
        reshard.convert(file, tmp_path / "made", to="torch")
    with pytest.raises(FormatError) as unrecorded:
        reshard.fingerprint(file)
    assert str(unrecorded.value) == (
        f"{file} has no room for a record of digests: its files are only read; convert it to a format that records them"
    )


@pytest.mark.parametrize("state", ["plain", "training", "large"])
def test_the_same_from_a_bucket(
    saved: dict[str, dict[str, Any]], folder: Path, gcs_bucket: Bucket, state: str
) -> None:
    gcs_bucket.store().put(f"{state}.pt", (folder / f"{state}.pt").read_bytes())
    assert dict(leaves(reshard.restore(f"{gcs_bucket.url}/{state}.pt"))) == saved[state]


def test_slices_are_streamed(saved: dict[str, dict[str, Any]], folder: Path) -> None:
    assert saved
    whole = reshard.restore(folder / "strides.pt")["permuted"]
    stream = reshard.open_checkpoint(folder / "strides.pt").stream("permuted", "1:4,:,1:2,0:3")
    assert b"".join(stream) == whole[1:4, :, 1:2, 0:3].tobytes()


def test_archives_without_crcs_are_told_of(torch: Oracle, tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    torch.ask("save_state", file=str(file), state="module", crcs=False)
    report = reshard.verify(file)
    assert {one.status for one in report.tensors} == {"not recorded"}
    assert any(w.endswith("carries no checksum; compare it with the published SHA-256") for w in report.warnings)  # fmt: skip
