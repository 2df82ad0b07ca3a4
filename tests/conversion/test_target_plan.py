"""What will be written: chunks, encodings, names and the container, from metadata alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from reshard.conversion import target_content
from reshard.conversion.check_target import CheckedTarget, parsed_options
from reshard.conversion.options import Target
from reshard.conversion.target_content import form_of
from reshard.errors import FormatError, LayoutError, PlanError
from reshard.formats.chunking import MAX_CHUNKS
from reshard.formats.contents import (
    Container,
    Encoding,
    Extent,
    Item,
    Leaf,
    PathKey,
    StoredTensor,
    codec_name,
)
from reshard.formats.slices.kept_metadata import NO_METADATA, KeptMetadata
from reshard.geometry.grid import Grid, Index
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import layout_of

MESH = DeviceMesh((4, 2), ("data", "model"))
ZSTD = Encoding("zstd", 3)
ONE_TREE = Container("v0", (Item("", "", is_tree=True),))


@dataclass
class Source:
    """A reader of nothing but metadata."""

    tensors: Mapping[str, StoredTensor]
    leaves: Sequence[Leaf]
    container: Container = ONE_TREE
    uri: str = "/some/where"
    format: str = "orbax"
    metadata_bytes: int = 0
    warnings: tuple[str, ...] = ()
    metadata: KeptMetadata = NO_METADATA
    computed: dict[str, str] = field(default_factory=dict)
    located: list[str] = field(default_factory=list)

    def locate(self, name: str, index: Index) -> Extent | None:
        self.located.append(f"{name}{index}")
        return None

    def copies(self, _: str) -> tuple[()]:
        return ()

    def recorded_ranges(self, _: str) -> tuple[()]:
        return ()


def stored(name, shape, chunk, dtype="float32", encoding=ZSTD, layout=None, is_key=False):
    storage = Grid.regular(shape, chunk)
    spec = TensorSpec(name, shape, dtype, storage, chunk, layout)
    return StoredTensor(spec, encoding, bytes(spec.itemsize), True, None, is_key)


def leaf(name, item="", tensor=True, prefix=""):
    return Leaf(prefix + name, tuple(map(PathKey, name.split("/"))), item, tensor)


def source(*tensors, others=(), **members):
    leaves = [leaf(t.spec.name) for t in tensors] + [leaf(n, tensor=False) for n in others]
    return Source({t.spec.name: t for t in tensors}, leaves, **members)


def options(compression="none", layout=None, mesh=None, changes=None, **of_format):
    given = parsed_options(Target("", compression=compression, **of_format))
    return CheckedTarget(
        1 << 30, 2, layout_of(layout, mesh), changes or Changes(), format_options=given
    )


def make_target(reader, options):
    return target_content.make_target(reader, options, form_of(reader, options))


KERNEL = stored("a/kernel", (4096, 4096), (1024, 2048), layout=TensorLayout(("data", "model"), MESH))  # fmt: skip
RULES = {
    "mesh": {"axes": ["x"], "shape": [8]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}],
}


def only(target):
    (tensor,) = target.checkpoint.tensors.values()
    return tensor


def test_a_chunk_is_a_shard_of_the_target():
    reader = source(KERNEL)
    tensor = only(make_target(reader, options(layout=RULES)))
    assert tensor.spec.chunk_shape == (4096, 512)
    assert tensor.spec.storage == Grid.regular((4096, 4096), (4096, 512))
    assert tensor.spec.layout == TensorLayout((None, "x"), DeviceMesh((8,), ("x",)))
    assert tensor.encoding == Encoding("none", checksum=True)
    assert reader.located == []


def test_without_a_layout_the_sources_shards_stay():
    tensor = only(make_target(source(KERNEL), options()))
    assert tensor.spec.chunk_shape == (1024, 2048)
    assert tensor.spec.layout == KERNEL.spec.layout


def test_small_shards_are_merged_and_large_ones_subdivided():
    small = stored("kernel", (64, 64), (8, 8))
    assert only(make_target(source(small), options(layout=RULES))).spec.chunk_shape == (64, 64)
    tensor = only(make_target(source(KERNEL), options(layout=RULES, chunk_bytes=1 << 20)))
    assert tensor.spec.chunk_shape == (512, 512)


def checked(encoding):
    return replace(encoding, checksum=True)


def test_keeping_encodings_keeps_chunks_that_serve_the_slices():
    reader = source(KERNEL)
    same = only(make_target(reader, options("keep")))
    assert (same.spec.chunk_shape, same.encoding) == ((1024, 2048), checked(ZSTD))
    across = only(make_target(reader, options("keep", layout=RULES)))
    assert (across.spec.chunk_shape, across.encoding) == ((4096, 512), checked(ZSTD))
    finer = {**RULES, "mesh": {"axes": ["x"], "shape": [2]}}
    halves = only(make_target(reader, options("keep", layout=finer)))
    assert halves.spec.chunk_shape == (1024, 2048)


def test_kept_chunks_stay_within_the_largest_and_only_for_the_same_dtype():
    limited = only(make_target(source(KERNEL), options("keep", chunk_bytes=1 << 20)))
    assert limited.spec.chunk_shape != (1024, 2048)
    assert limited.spec.nbytes // limited.spec.storage.count <= 1 << 20
    small = stored("kernel", (64, 64), (8, 8))
    cast = options("keep", changes=Changes(cast=(("kernel", "bfloat16"),)))
    assert only(make_target(source(small), options("keep"))).spec.chunk_shape == (8, 8)
    assert only(make_target(source(small), cast)).spec.chunk_shape == (64, 64)


def test_what_only_tensorstore_decodes_is_written_raw():
    odd = stored("kernel", (8,), (8,), encoding=Encoding("tensorstore", spec="{}"))
    assert only(make_target(source(odd), options("keep"))).encoding == Encoding(checksum=True)


def test_each_tensor_keeps_its_own_encoding_and_gets_a_checksum():
    blosc = Encoding("blosc", 5, spec='{"cname": "lz4", "shuffle": 1, "blocksize": 0}')
    tensors = stored("a", (8,), (8,)), stored("b", (8,), (8,), encoding=blosc)
    found = make_target(source(*tensors), options("keep")).checkpoint.tensors
    assert [t.encoding for t in found.values()] == [checked(ZSTD), checked(blosc)]


def test_names_dtypes_and_what_is_left_out():
    reader = source(KERNEL, stored("a/bias", (8,), (8,)), stored("opt", (), ()), others=("note",))
    changes = Changes(drop=("opt",), rename=(("^a/", "model/"),), cast=(("kernel", "bfloat16"),))
    target = make_target(reader, options(changes=changes))
    assert list(target.checkpoint.tensors) == ["model/kernel", "model/bias"]
    assert [t.spec.dtype for t in target.checkpoint.tensors.values()] == ["bfloat16", "float32"]
    assert [leaf.name for leaf in target.checkpoint.leaves] == [
        "model/kernel",
        "model/bias",
        "note",
    ]
    assert target.dropped == ("opt",)
    assert [(r.piece.source, r.piece.target) for r in target.wanted_pieces] == [
        ("a/kernel", "model/kernel"), ("a/bias", "model/bias"),
    ]  # fmt: skip


def test_tensors_of_a_kind_are_arranged_as_each_would_be_alone():
    """Layout, dtype, encoding, chunks, fill and partition make a kind; of each there are two tensors."""
    shape, layout = (4096, 4096), TensorLayout(("data", "model"), MESH)
    kinds = {
        "plain": stored("", shape, (1024, 2048), layout=layout),
        "kernel": stored("", shape, (1024, 2048), layout=layout),
        "narrow": stored("", shape, (1024, 2048), "bfloat16", layout=layout),
        "raw": stored("", shape, (1024, 2048), encoding=Encoding(), layout=layout),
        "rows": stored("", shape, (512, 4096), layout=layout),
        "whole": stored("", shape, (1024, 2048)),
    }
    every = [
        replace(one, spec=replace(one.spec, name=f"{kind}.{number}"))
        for number in range(2)
        for kind, one in kinds.items()
    ]
    given = options("keep", {"partitions": [{"match": "kernel", "fixed_shards": 4, "axis": 1}]})
    together = make_target(source(*every), given)
    for one, wanted in zip(every, together.wanted_pieces, strict=True):
        alone = make_target(source(one), given)
        assert together.checkpoint.tensors[one.spec.name] == only(alone)
        (expected,) = alone.wanted_pieces
        sides = (wanted.source, wanted.target, wanted.sides)
        assert sides == (expected.source, expected.target, expected.sides)


def test_layout_rules_see_the_new_names():
    changes = Changes(rename=(("kernel", "weight"),))
    tensor = only(make_target(source(KERNEL), options(layout=RULES, changes=changes)))
    assert tensor.spec.layout.axes == (None, None)


def test_a_partition_is_handed_on():
    layout = {"partitions": [{"match": "kernel", "fixed_shards": 4, "axis": 1}]}
    tensor = only(make_target(source(KERNEL), options(layout=layout)))
    assert tensor.partition["shards"] == 4
    assert tensor.spec.chunk_shape == (4096, 1024)


def test_scalars_and_empty_tensors():
    reader = source(stored("s", (), ()), stored("e", (0, 4), (1, 4)))
    target = make_target(reader, options(mesh="x=8"))
    assert target.checkpoint.tensors["s"].spec.chunk_shape == ()
    assert target.checkpoint.tensors["e"].spec.storage.count == 0


@pytest.mark.parametrize(("style", "expected"), [(None, "v0"), ("v0", "v0"), ("v1", "v1")])
def test_the_container_keeps_its_style_by_default(style, expected):
    assert make_target(source(KERNEL), options(style=style)).checkpoint.container.style == expected


def test_items_that_are_no_trees_are_copied():
    items = (Item("state", "state", is_tree=True), Item("meta", "meta", is_tree=False))
    reader = source(KERNEL, container=Container("v0", items))
    assert make_target(reader, options()).checkpoint.copied == {"meta": "/some/where/meta"}


def test_a_rename_out_of_its_tree():
    items = tuple(Item(n, n, is_tree=True) for n in ("state", "ema"))
    kernel = stored("state/w", (8,), (8,))
    reader = Source({"state/w": kernel}, [leaf("w", "state", prefix="state/")], Container("v0", items))  # fmt: skip
    with pytest.raises(FormatError, match="must be one of: state, ema"):
        make_target(reader, options(changes=Changes(rename=(("^state/", ""),))))
    moved = make_target(reader, options(changes=Changes(rename=(("^state/", "ema/"),))))
    assert [leaf.item for leaf in moved.checkpoint.leaves] == ["ema"]


def test_a_dimension_that_does_not_divide():
    odd = stored("kernel", (4, 9), (4, 9))
    with pytest.raises(LayoutError) as caught:
        make_target(source(odd), options(layout=RULES))
    for text in ("'kernel'", "9", "'x'", "8", "rules[0] 'kernel'"):
        assert text in str(caught.value)


def test_too_many_chunks():
    huge = stored("table", (1 << 24, 1 << 10), (1 << 24, 1 << 10), dtype="int8")
    with pytest.raises(PlanError) as caught:
        make_target(source(huge), options(chunk_bytes=4 << 10))
    assert str(caught.value) == (
        "'table' of shape [16777216, 1024] would be written in 4194304 chunks, but no file system copes "
        f"with more than {MAX_CHUNKS} files per tensor; allow larger chunks (chunk_bytes)"
    )


def test_the_planner_gets_the_codecs_of_both_sides():
    (wanted,) = make_target(source(KERNEL), options("zstd")).wanted_pieces
    assert (wanted.source.codec, wanted.target.codec) == ("zstd:3", "zstd:1+crc32c")
    assert not wanted.target.raw
    (raw,) = make_target(source(KERNEL), options()).wanted_pieces
    assert raw.target.raw


def test_a_database_takes_whole_chunks_and_copies_of_them():
    chunk = 1024 * 2048 * 4
    (plain,) = make_target(source(KERNEL), options()).wanted_pieces
    (packed,) = make_target(source(KERNEL), options(ocdbt=True)).wanted_pieces
    assert not packed.target.raw
    assert packed.target.stream_bytes - plain.target.stream_bytes == 2 * chunk


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        (Encoding(), "raw"),
        (Encoding(checksum=True), "raw+crc32c"),
        (Encoding("none", 3), "raw"),
        (Encoding("zstd", 1), "zstd:1"),
        (Encoding("gzip", 0, checksum=True), "gzip:0+crc32c"),
        (Encoding("tensorstore"), "tensorstore"),
    ],
)
def test_codec_names(encoding, word):
    assert codec_name(encoding) == word
