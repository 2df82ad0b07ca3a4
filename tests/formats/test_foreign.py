"""What is not read is named, with the way from there. Real writers make the files where one is at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
from flax.serialization import msgpack_restore, msgpack_serialize
from safetensors.numpy import load_file, save_file

import reshard
from reshard.errors import MissingError, NotACheckpointError, ReshardError
from reshard.formats import foreign
from reshard.formats.foreign import Foreign
from tests.emulators.buckets import Bucket
from tests.orbax_trees import save_pytree

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
T5X_STATE = {"version": 3, "optimizer": {"target": {"encoder": {}}}}


def put(*names: str, data: bytes = b"x") -> Callable[[Path], None]:
    """Writes files with these names below a folder."""

    def write(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return write


def zarr(*names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in names:
            spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder / name)}}
            ts.open(spec, create=True, dtype=ts.float32, shape=[2, 3]).result().write(
                ARRAYS["w"]
            ).result()

    return write


def database(folder: Path) -> None:
    ts.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result().write(
        "a/.zarray", b"{}"
    ).result()


def npz(folder: Path) -> None:
    np.savez(folder / "checkpoint.npz", **ARRAYS)


def npy(folder: Path) -> None:
    np.save(folder / "w.npy", ARRAYS["w"])


def both(*writers: Callable[[Path], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for writer in writers:
            writer(folder)

    return write


MSGPACK = msgpack_serialize(ARRAYS)
ZIP = b"PK\x03\x04" + bytes(30)

FILES: dict[str, tuple[Callable[[Path], None], Foreign]] = {
    "checkpoint_100": (put("checkpoint_100", data=MSGPACK), foreign.MSGPACK),
    "flax_model.msgpack": (put("flax_model.msgpack", data=MSGPACK), foreign.MSGPACK),
    "checkpoint.npz": (npz, foreign.NPZ),
    "w.npy": (npy, foreign.NPY),
    "model.keras": (put("model.keras", data=ZIP), foreign.KERAS),
    "model.weights.json": (
        put("model.weights.json", data=b'{"metadata": {}}'),
        foreign.KERAS_SHARDS,
    ),
    "m.gguf": (put("m.gguf", data=b"GGUF\3\0\0\0"), foreign.GGUF),
    "old.pth": (put("old.pth", data=b"\x80\x02}q\0."), foreign.PICKLE),
    "checkpoint_best": (
        put("checkpoint_best", data=ZIP[:4] + bytes(26) + b"archive/data.pkl"),
        foreign.TORCH_ELSEWHERE,
    ),
    "saved_model.pb": (put("saved_model.pb"), foreign.SAVED_MODEL),
}
"""A file, or a prefix of files, by its name."""

FOLDERS: dict[str, tuple[Callable[[Path], None], Foreign]] = {
    "SavedModel": (put("saved_model.pb", "variables/variables.index"), foreign.SAVED_MODEL),
    "old Megatron": (put("mp_rank_00/model_optim_rng.pt"), foreign.MEGATRON),
    "a run of Megatron": (put("latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00_001/model_optim_rng.pt"), foreign.MEGATRON),
    "a step of DeepSpeed": (put("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"), foreign.DEEPSPEED),
    "DeepSpeed": (put("zero_to_fp32.py", "latest", "global_step1/mp_rank_00_model_states.pt"), foreign.DEEPSPEED),
    "torch_checkpointing": (put("metadata.pkl", "state_0.pt"), foreign.TORCH_CHECKPOINTING),
    "Levanter": (both(zarr("model/wte/weight"), put("metadata.json", data=b'{"step": 10}')), foreign.LEVANTER),
    "zarr": (zarr("params/dense/kernel"), foreign.ZARR),
    "a deep tree of zarr": (both(put("a/x"), zarr("b/c/d/e/f/g/kernel")), foreign.ZARR),
    "OCDBT": (database, foreign.OCDBT),
    "diffusers": (put("model_index.json", "unet/diffusion_pytorch_model.safetensors"), foreign.DIFFUSERS),
}  # fmt: skip

HELD: dict[str, Foreign] = {
    "model-Q4_K_M.gguf": foreign.GGUF,
    "model.weights.json": foreign.KERAS_SHARDS,
    "model.keras": foreign.KERAS,
    "flax_model.msgpack": foreign.MSGPACK,
    "ViT-B_16.npz": foreign.NPZ,
}
"""Files that a folder holds, by their names."""


def refusal(path: Path | str) -> str:
    with pytest.raises(NotACheckpointError) as error:
        reshard.inspect(path)
    return str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_named_with_the_way_from_there(tmp_path: Path, name: str) -> None:
    write, found = FILES[name]
    write(tmp_path)
    said = refusal(tmp_path / name)
    assert said.startswith(f"{tmp_path / name} is not a checkpoint of a known format: ")
    assert said.endswith(f"it is {found.name}, which reshard does not read; {found.way}")


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_named_with_the_way_from_there(tmp_path: Path, kind: str) -> None:
    write, found = FOLDERS[kind]
    write(tmp_path)
    said = refusal(tmp_path)
    assert said.endswith(f"; it is {found.name}, which reshard does not read; {found.way}")


@pytest.mark.parametrize("name", HELD)
def test_a_file_in_a_folder_is_named(tmp_path: Path, name: str) -> None:
    put("config.json", name)(tmp_path)
    found = HELD[name]
    said = refusal(tmp_path)
    assert said.endswith(
        f"; it holds {name!r}, which is {found.name}, which reshard does not read; {found.way}"
    )


def test_a_run_of_torch_dist_that_has_no_whole_step_is_not_told_to_become_one(
    tmp_path: Path,
) -> None:
    put("latest_checkpointed_iteration.txt", "iter_0000100/__0_0.distcp")(tmp_path)
    assert foreign.MEGATRON.way not in refusal(tmp_path)


def test_the_same_in_a_bucket(gcs_bucket: Bucket, tmp_path: Path) -> None:
    cases = {**FILES, **FOLDERS}
    del cases[
        "diffusers"
    ]  # no header is read in a bucket, so that its folders are named as checkpoints
    for kind, (write, _) in cases.items():
        folder = tmp_path / kind
        folder.mkdir()
        write(folder)
        for path in folder.rglob("*"):
            if path.is_file():
                gcs_bucket.store().put(str(path.relative_to(tmp_path)), path.read_bytes())
    for kind, (_, found) in cases.items():
        name = f"{kind}/{kind}" if kind in FILES else kind
        assert refusal(f"{gcs_bucket.url}/{name}").endswith(
            f"{found.name}, which reshard does not read; {found.way}"
        )


@pytest.mark.parametrize(
    "write",
    [
        put("notes.txt"),
        put("faiss.index"),
        put("checkpoint", data=b"text"),
        lambda _: None,
        put("a/b/c/d"),
    ],
)
def test_what_is_not_recognised_is_not_guessed(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    assert "which reshard does not read" not in refusal(tmp_path)
    if (tmp_path / "faiss.index").exists():
        assert "it is a file, expected" in refusal(tmp_path / "faiss.index")
        with pytest.raises(MissingError):
            reshard.inspect(tmp_path / "faiss")


def test_a_folder_that_is_read_is_not_looked_at(tmp_path: Path) -> None:
    """Checkpoints beside other files are checkpoints."""
    everything = both(put("pytorch_model.bin", "m.gguf", ".metadata", "x.distcp"))
    save_pytree(tmp_path / "orbax", ARRAYS)
    (tmp_path / "hf").mkdir()
    save_file(ARRAYS, tmp_path / "hf" / "model.safetensors")
    for name in ("orbax", "hf"):
        everything(tmp_path / name)
        assert list(reshard.inspect(tmp_path / name).tensors) == ["w"]


def test_steps_are_named_before_other_things(tmp_path: Path) -> None:
    save_pytree(tmp_path / "run" / "1", ARRAYS)
    put("events.pt", "metadata.pkl")(tmp_path / "run")
    assert refusal(tmp_path / "run").endswith(f"name one of them: {tmp_path}/run/1")


def test_the_ways_of_numpy_and_flax_lead_to_checkpoints(tmp_path: Path) -> None:
    npz(tmp_path)
    save_file(dict(np.load(tmp_path / "checkpoint.npz")), tmp_path / "npz.safetensors")
    tree = msgpack_restore(msgpack_serialize({"a": ARRAYS}))
    reshard.save(tmp_path / "flax", tree)
    assert load_file(tmp_path / "npz.safetensors")["w"].tobytes() == ARRAYS["w"].tobytes()
    assert list(reshard.inspect(tmp_path / "npz.safetensors").tensors) == ["w"]
    assert list(reshard.inspect(tmp_path / "flax").tensors) == ["a/w"]


@pytest.mark.parametrize(
    "data", [msgpack_serialize(T5X_STATE), msgpack_serialize(T5X_STATE, in_place=True)]
)
def test_t5x_is_told_from_old_orbax(tmp_path: Path, data: bytes) -> None:
    """Both write a msgpack file ``checkpoint`` beside arrays."""
    both(zarr("target.encoder.kernel"), put("checkpoint", data=data))(tmp_path)
    with pytest.raises(ReshardError, match="a checkpoint of T5X, which"):
        reshard.inspect(tmp_path)
