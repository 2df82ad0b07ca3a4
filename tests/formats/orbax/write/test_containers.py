"""Containers: step folders with several items, v1 with named trees, items that are no trees."""

import json
import os
from types import SimpleNamespace

import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

from reshard.errors import FormatError, StorageError
from reshard.formats.contents import Container, Item
from reshard.formats.slices.parse import read_slices
from reshard.storage.location import locate

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

HANDLERS = "orbax.checkpoint._src.handlers."
STANDARD = HANDLERS + "standard_checkpoint_handler.StandardCheckpointHandler"
JSON = HANDLERS + "json_checkpoint_handler.JsonCheckpointHandler"
V1_TREE = "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler"


def two_trees(making):
    return [
        making.Entry(("w",), np.arange(8, dtype="f4"), ("data",), item="state", prefix="state/"),
        making.Entry(("w",), np.arange(8, 16, dtype="f4"), ("model",), item="ema", prefix="ema/"),
    ]


@pytest.mark.parametrize("ocdbt", [False, True])
@pytest.mark.parametrize("handler", [STANDARD, ""])
def test_checkpoint_manager_restores_a_step_folder(making, tmp_path, handler, ocdbt):
    source = tmp_path / "source"
    with ocp.CheckpointManager(source, item_names=("state", "meta")) as manager:
        items = {
            "state": ocp.args.StandardSave({"a": np.zeros(1)}),
            "meta": ocp.args.JsonSave({"step": 7}),
        }
        manager.save(7, args=ocp.args.Composite(**items))
    container = Container(
        "v0",
        (Item("state", "state", True, handler), Item("ema", "ema", True), Item("meta", "meta", False, JSON)),
        {"metrics": {"loss": 0.5}, "custom_metadata": {"who": "me"}, "init_timestamp_nsecs": 5},
    )  # fmt: skip
    copied = {"meta": source / "7" / "meta"}
    making.write(tmp_path / "out" / "7", two_trees(making), container, copied, ocdbt=ocdbt)
    with ocp.CheckpointManager(tmp_path / "out", item_names=("state", "ema", "meta")) as manager:
        assert manager.latest_step() == 7
        found = manager.restore(7, args=ocp.args.Composite(
            state=ocp.args.StandardRestore(), ema=ocp.args.StandardRestore(), meta=ocp.args.JsonRestore(),
        ))  # fmt: skip
        bare = manager.restore(7)
        assert manager.metadata(7).custom_metadata == {"who": "me"}
    assert found["meta"] == {"step": 7}
    for items in (found, bare):
        assert items["state"]["w"].tolist() == list(range(8))
        assert items["ema"]["w"].tolist() == list(range(8, 16))
        assert tuple(items["ema"]["w"].sharding.spec) == ("model",)
    metadata = json.loads((tmp_path / "out" / "7" / "_CHECKPOINT_METADATA").read_bytes())
    assert metadata["metrics"] == {"loss": 0.5}
    assert metadata["init_timestamp_nsecs"] == 5
    assert metadata["commit_timestamp_nsecs"] > 1e18
    assert (tmp_path / "out" / "7" / "state" / "commit_success.txt").exists()
    assert set(read_slices(locate(tmp_path / "out" / "7" / "ema")).tensors) == {"w"}


@pytest.mark.parametrize("ocdbt", [False, True])
def test_v1_restores_a_v1_container(making, tmp_path, ocdbt):
    container = Container("v1", (Item("state", "state", True, V1_TREE), Item("ema", "ema", True)))
    path = making.write(tmp_path / "ckpt", two_trees(making), container, ocdbt=ocdbt)
    assert (path / "orbax.checkpoint").read_bytes() == b""
    assert v1.load(path)["w"].tolist() == list(range(8))
    assert v1.load(path, checkpointable_name="ema")["w"].tolist() == list(range(8, 16))
    assert tuple(v1.load_checkpointables(path)["ema"]["w"].sharding.spec) == ("model",)


def test_v1s_other_items_are_copied(making, tmp_path):
    (tmp_path / "iterator").mkdir()
    (tmp_path / "iterator" / "state").write_bytes(b"at 7")
    items = (
        Item("state", "state", True, V1_TREE),
        Item("iterator", "iterator", False, "my.Handler"),
    )
    copied = {"iterator": tmp_path / "iterator"}
    entries = two_trees(making)[:1]
    path = making.write(tmp_path / "ckpt", entries, Container("v1", items), copied)
    assert (path / "iterator" / "state").read_bytes() == b"at 7"
    handlers = json.loads((path / "_CHECKPOINT_METADATA").read_bytes())["item_handlers"]
    assert handlers == {"state": V1_TREE, "iterator": "my.Handler"}
    assert v1.load(path)["w"].tolist() == list(range(8))


def test_a_tree_without_a_name_becomes_v1s_state(making, tmp_path):
    container = Container("v1", (Item("", "", True, STANDARD),))
    entry = making.Entry(("w",), np.arange(8, dtype="f4"), ("data",))
    path = making.write(tmp_path / "ckpt", [entry], container)
    assert v1.load(path)["w"].tolist() == list(range(8))
    handlers = json.loads((path / "_CHECKPOINT_METADATA").read_bytes())["item_handlers"]
    assert handlers == {"state": V1_TREE}


def test_v1s_only_tree_becomes_v0s_single_item(making, tmp_path):
    container = Container("v0", (Item("state", "state", True, V1_TREE),))
    path = making.write(tmp_path / "ckpt", two_trees(making)[:1], container)
    assert not (path / "state").exists()
    assert ocp.StandardCheckpointer().restore(path)["w"].tolist() == list(range(8))
    assert v1.load(path)["w"].tolist() == list(range(8))


def test_a_step_folder_becomes_v1(making, tmp_path):
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "metadata").write_text('{"step": 7}')
    items = (Item("state", "state", True, STANDARD), Item("meta", "meta", False, JSON))
    copied = {"meta": tmp_path / "meta"}
    entries = two_trees(making)[:1]
    path = making.write(tmp_path / "ckpt", entries, Container("v1", items), copied)
    assert v1.load(path)["w"].tolist() == list(range(8))
    assert v1.load_checkpointables(path, {"meta": None})["meta"] == {"step": 7}


def test_a_v1_handler_is_not_written_into_a_v0_container(making, tmp_path):
    container = Container("v0", (Item("", "", True, V1_TREE),))
    path = making.write(tmp_path / "ckpt", [making.Entry(("w",), np.zeros(8))], container)
    handler = json.loads((path / "_CHECKPOINT_METADATA").read_bytes())["item_handlers"]
    assert handler == HANDLERS + "pytree_checkpoint_handler.PyTreeCheckpointHandler"


def test_an_item_whose_leaves_were_all_dropped_is_left_out(making, tmp_path):
    container = Container("v0", (Item("state", "state", True), Item("ema", "ema", True)))
    path = making.write(tmp_path / "ckpt", two_trees(making)[:1], container)
    assert not (path / "ema").exists()
    assert list(json.loads((path / "_CHECKPOINT_METADATA").read_bytes())["item_handlers"]) == [
        "state"
    ]


def test_custom_metadata_of_a_tree_is_kept(making, tmp_path):
    container = Container("v0", (Item("", "", True, meta={"custom_metadata": {"a": [1]}}),))
    path = making.write(tmp_path / "ckpt", [making.Entry(("w",), np.zeros(8))], container)
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert checkpointer.metadata(path).item_metadata.custom_metadata == {"a": [1]}


@pytest.fixture
def item(making, tmp_path):
    """A folder to be copied, and a way to write it."""
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_bytes(b"data")
    container = Container("v0", (Item("state", "state", True), Item("data", "data", False)))

    def write():
        return making.write(tmp_path / "out", two_trees(making)[:1], container, {"data": source})

    return SimpleNamespace(source=source, write=write)


def test_copied_items_are_copied_whole(item):
    (item.source / "link").symlink_to("deep/file")
    path = item.write() / "data"
    assert (path / "deep" / "file").read_bytes() == b"data"
    assert (path / "link").read_bytes() == b"data"
    assert not (path / "link").is_symlink()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("/etc/hostname", r"item 'data': .*link is a symbolic link to a place outside of"),
        ("../elsewhere", r"item 'data': .*link is a symbolic link to a place outside of"),
        ("deep", r"item 'data' contains the symbolic link .*link, which leads to no file inside"),
        ("gone", r"item 'data' contains the symbolic link .*link, which leads to no file inside"),
    ],
)
def test_links_that_lead_elsewhere_are_refused(item, place, text):
    (item.source.parent / "elsewhere").write_text("secret")
    (item.source / "link").symlink_to(place)
    with pytest.raises(FormatError, match=text):
        item.write()


def test_links_to_themselves_are_refused(item):
    (item.source / "link").symlink_to("link")
    with pytest.raises(
        StorageError, match=r"item 'data': cannot look at '.*link': Too many levels"
    ):
        item.write()


def test_what_is_no_file_is_refused(item):
    os.mkfifo(item.source / "pipe")
    with pytest.raises(FormatError, match=r"contains .*pipe, which is neither a file nor a folder"):
        item.write()


def test_a_missing_source_is_a_storage_error(item):
    item.source.rename(item.source.with_name("moved"))
    with pytest.raises(
        StorageError, match=r"item 'data' was at .* when the checkpoint was opened and is gone"
    ):
        item.write()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("..", "item '..' would be written to the path '..'"),
        ("a/b", "must be a single name"),
        ("commit_success.txt", "must be a single name that no other item or metadata file has"),
        ("x" * 256, "needs a file name of 256 bytes"),
        ("state", "must be a single name that no other item"),
        ("", "item '' would be written to the path ''"),
    ],
)
def test_unsafe_items_are_refused(making, tmp_path, name, words):
    container = Container("v0", (Item("state", "state", True), Item(name, name, False)))
    with pytest.raises(FormatError) as refusal:
        making.write(tmp_path / "out", two_trees(making)[:1], container)
    assert words in str(refusal.value)
    assert not (tmp_path / "out").exists()
