"""Checkpoints of Megatron Core are read: what three versions of it saved, and by hand what they cannot save here."""

from __future__ import annotations

import json
import shutil
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError, FormatError, IncompleteCheckpointError, PlanError
from reshard.formats.dcp.metadata import MetadataFile, parse_metadata
from reshard.formats.torch.pickle_interpreter import UnknownNameError
from tests.dcp_files import RECORDS, cut, entry, metadata_of, size, write_dcp
from tests.megatron.saved import PADDED, unpack, weight
from tests.pickled import Call, Global, New, pickled

W = np.arange(12, dtype=np.int32).reshape(4, 3)
CONFIG = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
DROP = [r"^common\.pt$", "_extra_state", "^rng_state"]
BUFFERS = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_0."
READABLE = "which --dist-ckpt-optim-fully-reshardable saves as tensors"
PLANNER = "torch.distributed.checkpoint.planner"
MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"
MODELS = (
    "0.13.1/llama", "0.16.1/llama", "0.16.1/llama-layers", "0.16.1/qwen3", "0.16.1/mixtral", "0.16.1/mixtral-layers",
    "0.16.1/fully_reshardable",
)  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("megatron"))


def write(folder: Path, tree: dict[str, Any], config: Any = CONFIG, **options: Any) -> Path:
    write_dcp(folder, tree, **options)
    (folder / "metadata.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_the_bytes_that_were_saved(saved: Path, tmp_path: Path, name: str) -> None:
    found = reshard.inspect(saved / name)
    assert found.format == "torch_dist"
    reshard.convert(saved / name, tmp_path / "orbax", to="orbax", drop=DROP)
    restored = reshard.restore(tmp_path / "orbax")
    assert set(restored) == set(found.tensors)
    for tensor, array in restored.items():
        np.testing.assert_array_equal(array, weight(tensor, array.shape), err_msg=tensor)
    assert reshard.verify(saved / name, tmp_path / "orbax", drop=DROP).differences == 0


def test_layers_are_one_tensor_or_one_each(saved: Path) -> None:
    stacked = reshard.inspect(saved / "0.16.1/mixtral").tensors
    single = reshard.inspect(saved / "0.16.1/mixtral-layers").tensors
    experts = "mlp.experts.experts.linear_fc1.weight"
    assert stacked[f"decoder.layers.{experts}"].spec.shape == (3, 4, 40, 16)
    assert single[f"decoder.layers.2.{experts}"].spec.shape == (4, 40, 16)
    assert stacked["output_layer.weight"].spec.shape == (PADDED, 16)


def test_the_optimizer_has_the_shapes_of_the_model(saved: Path) -> None:
    tensors = reshard.inspect(saved / "0.16.1/fully_reshardable").tensors
    model = [name for name in tensors if not name.startswith("optimizer.")]
    for name in model:
        for kind in ("fp32_param", "exp_avg"):
            assert tensors[f"optimizer.state.{kind}.{name}"].spec.shape == tensors[name].spec.shape
    assert len(tensors) == 3 * len(model)


def test_what_only_megatron_reads_is_told_and_refused_until_it_is_dropped(
    saved: Path, tmp_path: Path
) -> None:
    source = saved / "0.16.1/llama"
    warning = reshard.inspect(source).warnings[0]
    assert warning == (
        "'common.pt' is an object of argparse.Namespace, 'decoder.fp8._extra_state/shard_0_2' is an object of _io.BytesIO, "
        "'rng_state/shard_0.0_1.2' is an object of numpy._core.multiarray._reconstruct, and 2 more: such values are not read; torch DCP "
        "targets get 5 of 5 as they are; leave them out (drop) of others, or save them as tensors, numbers and text"
    )
    with pytest.raises(FormatError) as error:
        reshard.convert(source, tmp_path / "hf", to="safetensors", drop=["_extra_state"])
    assert str(error.value) == (
        "safetensors cannot hold 'common.pt' (an object of argparse.Namespace), 'rng_state/shard_0.0_1.2' (an object of "
        "numpy._core.multiarray._reconstruct), 'rng_state/shard_0.1_1.2' (an object of numpy._core.multiarray._reconstruct): such values are "
        "not read; leave them out (drop)"
    )
    with pytest.raises(FormatError):
        reshard.restore(source)
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("name", "unread", "said"),
    [
        ("0.16.1/dp_reshardable", [f"{BUFFERS}{n}" for n in ("param", "exp_avg", "exp_avg_sq")], "a buffer of Megatron's optimizer"),
        ("0.13.1/flattened", ["optimizer.state.exp_avg.rows"], "a flattened tensor of Megatron's optimizer"),
        ("0.8.0/flattened", ["optimizer.state.exp_avg.rows"], "a flattened tensor of Megatron's optimizer"),
    ],
)  # fmt: skip
def test_tensors_that_only_megatron_can_put_together_are_dropped_by_a_rule(
    saved: Path, tmp_path: Path, name: str, unread: list[str], said: str
) -> None:
    source = saved / name
    found = reshard.inspect(source)
    assert not set(unread) & set(found.tensors)
    drop = DROP[:1] if "0.8.0" in name else DROP
    with pytest.raises(FormatError) as error:
        reshard.convert(source, tmp_path / "dcp", drop=drop)
    some = ", ".join(f"{each!r} ({said}, {READABLE})" for each in unread)
    assert str(error.value) == (
        f"torch DCP cannot hold {some}: such values are not read; leave them out (drop)"
    )
    reshard.convert(source, tmp_path / "dcp", drop=[*drop, r"^optimizer\."])
    assert reshard.inspect(tmp_path / "dcp").format == "dcp"
    assert set(reshard.inspect(tmp_path / "dcp").tensors) == set(found.tensors)


@pytest.mark.parametrize("text", ['{"sharded_backend": "torch_di', "{}", None])
def test_what_only_megatron_can_put_together_is_refused_without_its_metadata_too(
    saved: Path, tmp_path: Path, text: str | None
) -> None:
    """Then nothing but ``.metadata`` tells that the tensor is flattened."""
    source = Path(shutil.copytree(saved / "0.13.1/flattened", tmp_path / "source"))
    (source / "common.pt").unlink()
    (source / "metadata.json").unlink()
    if text is not None:
        (source / "metadata.json").write_text(text)
    name = "optimizer.state.exp_avg.rows"
    assert reshard.inspect(source).format == "dcp"
    assert name not in reshard.inspect(source).tensors
    with pytest.raises(FormatError, match=f"{name}' .a flattened tensor of Megatron's optimizer"):
        reshard.convert(source, tmp_path / "made", drop=[r"_extra_state", r"^rng_state"])


def test_a_file_that_is_named_as_megatrons_makes_no_torch_dist(tmp_path: Path) -> None:
    reshard.save(tmp_path / "orbax", {"w": np.ones(4, "float32")})
    reshard.convert(tmp_path / "orbax", tmp_path / "dcp", to="dcp")
    (tmp_path / "dcp" / "common.pt").write_text("notes")
    assert reshard.inspect(tmp_path / "dcp").format == "dcp"
    assert reshard.restore(tmp_path / "dcp")["w"].tolist() == [1, 1, 1, 1]


def test_diff_tells_whether_what_is_not_read_is_the_same(saved: Path, tmp_path: Path) -> None:
    source = saved / "0.16.1/dp_reshardable"
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    assert reshard.diff(source, copy).differences == 0
    # The element bytes and their CRC in the archive's directory.
    held = weight(f"{BUFFERS}exp_avg", (40,))[:20].tobytes()
    for file in copy.glob("*.distcp"):
        data = file.read_bytes()
        if held in data:
            other = bytes(len(held))
            crcs = [zlib.crc32(part).to_bytes(4, "little") for part in (held, other)]
            file.write_bytes(data.replace(held, other).replace(*crcs))
    assert reshard.diff(source, copy).differences == 1


def test_without_to_the_target_is_torchs_form(saved: Path, tmp_path: Path) -> None:
    source = saved / "0.16.1/llama"
    reshard.convert(source, tmp_path / "dcp", drop=DROP)
    assert reshard.inspect(tmp_path / "dcp").format == "dcp"
    with pytest.raises(PlanError) as error:
        reshard.convert(source, tmp_path / "x", to="torch_dist")
    assert "'torch_dist'" in str(error.value) and "'dcp'" in str(error.value)
    with pytest.raises(reshard.StorageError, match="contains something other than a checkpoint"):
        reshard.convert(tmp_path / "dcp", source, overwrite=True)


def test_common_values_are_an_item_in_newer_versions(tmp_path: Path) -> None:
    args = [New(Global("argparse", "Namespace"), {"iteration": 5})]
    write(tmp_path / "x", {"w": cut(W, 2), "common_state/shard_0_1": args})
    found = reshard.inspect(tmp_path / "x")
    assert (found.format, list(found.tensors)) == ("torch_dist", ["w"])
    assert found.warnings[0].startswith("'common_state/shard_0_1' is an object of argparse.Name")


def test_another_metadata_json_changes_nothing(tmp_path: Path) -> None:
    for name, text in (("a", "{}"), ("b", "["), ("c", "[1]"), ("d", " " * 70_000)):
        folder = write_dcp(tmp_path / name, {"w": W})
        (folder / "metadata.json").write_text(text)
        assert reshard.inspect(folder).format == "dcp"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sharded_backend": "zarr", "sharded_backend_version": 1}, "'zarr', version 1"),
        ({"sharded_backend": "torch_dist", "sharded_backend_version": 2}, "'torch_dist', version 2"),
    ],
)  # fmt: skip
def test_another_way_to_store_tensors_is_refused(tmp_path: Path, config: Any, said: str) -> None:
    folder = write(tmp_path / "x", {"w": W}, config)
    with pytest.raises(FormatError) as error:
        reshard.inspect(folder)
    assert str(error.value) == (
        f"{folder}/metadata.json: sharded_backend is {said}; expected 'torch_dist', version 1: load the checkpoint with Megatron, and save it "
        "with --ckpt-format torch_dist"
    )


def test_without_its_metadata_the_save_did_not_finish(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "0.16.1/llama", tmp_path / "iter_0000005"))
    (folder / ".metadata").unlink()
    with pytest.raises(IncompleteCheckpointError, match="which torch writes last"):
        reshard.inspect(folder)


def test_damage_is_found(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "0.16.1/llama", tmp_path / "x"))
    (folder / "common.pt").write_bytes((folder / "common.pt").read_bytes()[:-9])
    with pytest.raises(CorruptError) as error:
        reshard.inspect(folder)
    assert str(error.value) == (
        f"{folder}/common.pt: the value 'common.pt' should be an archive of torch.save, but it does not end as an archive does; restore the "
        "file from a copy"
    )


def test_a_poisoned_plan_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", {"w": W})
    canary = tmp_path / "canary"
    metadata = metadata_of({}, [], None)
    poison = Call(Global("posix", "system"), (f"touch {canary}",))
    state = metadata.state | {"all_local_plans": [poison]}
    (folder / ".metadata").write_bytes(pickled(metadata._replace(state=state)))
    with pytest.raises(UnknownNameError, match=r"names 'posix\.system', which is not on the list"):
        reshard.inspect(folder)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (5, "mcore_data should be a dict, but is 5"),
        ({"w": 5}, "mcore_data of 'w' should be a dict, but is 5"),
        (
            {5: {"nd_reformulated_orig_global_shape": ()}},
            "the name of an entry should be a str, but is 5",
        ),
    ],
)
def test_what_megatron_adds_is_checked(tmp_path: Path, more: Any, said: str) -> None:
    folder = write(tmp_path / "x", {"w": W})
    metadata = metadata_of({}, [], None)
    of = Global(MEGATRON, "MCoreMetadata")
    (folder / ".metadata").write_bytes(pickled(New(of, metadata.state | {"mcore_data": more})))
    with pytest.raises(CorruptError) as error:
        reshard.inspect(folder)
    assert str(error.value) == f"{folder}/.metadata: {said}"


def test_the_finished_steps_of_a_run(saved: Path, tmp_path: Path) -> None:
    for step, name in ((5, "llama"), (10, "llama"), (15, "llama"), (20, "llama")):
        shutil.copytree(saved / "0.16.1" / name, tmp_path / f"iter_{step:07}")
    (tmp_path / "iter_0000015" / ".metadata").unlink()
    (tmp_path / "iter_0000020" / ".metadata").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    assert reshard.steps(tmp_path) == {5: "iter_0000005", 10: "iter_0000010"}
    latest = reshard.inspect(tmp_path, step="latest")
    assert latest.uri == str(tmp_path / "iter_0000010")
    with pytest.raises(IncompleteCheckpointError, match=r"step 15 .* was never committed"):
        reshard.inspect(tmp_path, step=15)
    with pytest.raises(reshard.NotACheckpointError, match="steps 5, 10"):
        reshard.inspect(tmp_path)


def test_plans_of_ranks_are_not_kept() -> None:
    """They repeat every chunk, so that keeping them would take as much again."""
    listed = {f"w{number}": entry(cut(W, 4)) for number in range(120)}
    places = [
        (New(Global(RECORDS, "MetadataIndex"), {"fqn": name, "offset": size((row, 0))}),
         New(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), {"relative_path": "x", "offset": 0, "length": 1}))
        for name in listed for row in range(4)
    ]  # fmt: skip
    item = New(Global(PLANNER, "WriteItem"), {"index": places[0][0], "type": Call(Global(PLANNER, "WriteItemType"), (2,))})  # fmt: skip
    plan = New(Global(MEGATRON, "MCoreSavePlan"), {"items": [item] * 2000})
    metadata = metadata_of(listed, places, None)
    kept = []
    for plans in ([], [plan]):
        data = pickled(metadata._replace(state=metadata.state | {"all_local_plans": plans}))
        tracemalloc.start()
        entries = parse_metadata([MetadataFile(data, "x")])
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(entries.entries) == 120
    assert kept[1] < 1.1 * kept[0]
