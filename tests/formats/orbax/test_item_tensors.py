"""Counting leaves without reading them."""

from __future__ import annotations

from reshard.formats.orbax import item_tensors
from reshard.formats.orbax.item_tensors import leaf_count
from reshard.storage.location import locate
from tests.formats.orbax.by_hand import write_tree


def test_a_hole_that_opening_refuses_is_not_read(tmp_path):
    """The end of a file that is not read up to there tells nothing: it is one of terabytes."""
    with (tmp_path / "_METADATA").open("wb") as file:
        file.write(b'"key_metadata":')
        file.truncate(1 << 40)
    assert leaf_count(locate(tmp_path)) == 0


def test_leaves_of_all_trees_are_counted_in_any_read_size(tmp_path, monkeypatch):
    for name, count in (("a", 3), ("b", 40)):
        (tmp_path / name).mkdir()
        write_tree(tmp_path / name, [["key_metadata", f"w{i}"] for i in range(count)])
    for piece in (1 << 20, 50, 16):
        monkeypatch.setattr(item_tensors, "_PIECE_BYTES", piece)
        assert leaf_count(locate(tmp_path / "a")) == 3
        assert leaf_count(locate(tmp_path)) == 43


def test_no_checkpoint_has_no_leaves(tmp_path):
    assert leaf_count(locate(tmp_path)) == 0
    assert leaf_count(locate(tmp_path / "missing")) == 0
