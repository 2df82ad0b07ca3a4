"""Deltas that are made here, as a naive receiver applies them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import reshard
from reshard.api.deltas import apply, delta
from reshard.errors import PlanError
from reshard.formats.delta.index import tensors_digest
from reshard.formats.delta.read_delta import open_delta
from reshard.storage.location import locate
from tests.campaigns import examples, pairwise
from tests.delta_layout import (
    CHECKSUMS,
    PAYLOADS,
    apply_delta,
    bytes_of,
    stored,
    write_full,
)
from tests.deltas.weights import DTYPES, RNG, array, save, stepped


def test_a_receiver_makes_the_new_version_of_it(tmp_path: Path) -> None:
    old = {f"layer.{n}.{dtype}": array((64, 24), dtype) for n, dtype in enumerate(DTYPES)}
    new = stepped(old, 0.02, 1)
    report = delta(save(tmp_path / "old", old), save(tmp_path / "new", new), tmp_path / "weight_v000001")  # fmt: skip
    assert apply_delta(tmp_path / "weight_v000001", bytes_of(old)) == bytes_of(new)
    assert report.version == "000001"
    assert report.base_version == "000000"
    assert "layer.6.bool" not in report.tensors
    name = "layer.0.bfloat16"
    differ = int((old[name].view("u2") != new[name].view("u2")).sum())
    assert (report.tensors[name].changed, report.tensors[name].elements) == (differ, 64 * 24)
    assert str(report).startswith(f"DeltaReport({str(tmp_path / 'weight_v000001')!r}: 8 of 9 tensors changed, ")  # fmt: skip


STEPS = st.tuples(
    st.sampled_from([0.0, 0.0001, 0.01, 1.0]),
    st.sampled_from(sorted(PAYLOADS)),
    st.sampled_from(sorted(CHECKSUMS)),
    st.integers(1, 4),
)
"""How much of a tensor changes, how that is stored, and in how many of the tensors at most."""


@settings(max_examples=examples(20))
@given(
    tensors=st.lists(
        st.tuples(st.lists(st.integers(0, 40), max_size=3).map(tuple), st.sampled_from(DTYPES)),
        min_size=1,
        max_size=4,
    ),
    step=STEPS,
)
def test_any_tree_and_any_rate(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: list[tuple[tuple[int, ...], str]],
    step: tuple[float, str, str, int],
) -> None:
    tmp_path = tmp_path_factory.mktemp("delta")
    rate, encoding, checksum, touched = step
    old = {f"t{n}": array(shape, dtype) for n, (shape, dtype) in enumerate(tensors)}
    new = old | stepped({name: old[name] for name in list(old)[:touched]}, rate, 5)
    target = tmp_path / "weight_v000007"
    report = delta(
        save(tmp_path / "old", old), save(tmp_path / "new", new), target,
        encoding=encoding, checksum=checksum, file_bytes=1000,
    )  # fmt: skip
    assert apply_delta(target, bytes_of(old)) == bytes_of(new)
    assert set(report.tensors) == {n for n in old if bytes_of(old)[n] != bytes_of(new)[n]}
    apply(tmp_path / "old", [target], tmp_path / "served")
    assert stored(tmp_path / "served") == bytes_of(new)


def test_minus_zero_and_the_payload_of_a_nan_are_changes(tmp_path: Path) -> None:
    old = {"z": np.array([0.0, 1.0, np.nan, 1e-40], "f4"), "same": np.array([np.nan, -0.0], "f4")}
    new = {**old, "z": old["z"].copy()}
    new["z"].view("u4")[[0, 2]] ^= np.array([0x80000000, 1], "u4")
    report = delta(save(tmp_path / "old", old), save(tmp_path / "new", new), tmp_path / "weight_v000001")  # fmt: skip
    assert {name: one.changed for name, one in report.tensors.items()} == {"z": 2}
    assert apply_delta(tmp_path / "weight_v000001", bytes_of(old)) == bytes_of(new)


TURNED = {"map": [{"from": "large", "to": "large", "shape": "a b -> b a"}, {"from": "small", "to": "small"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("encoding", "is_turned", "compression"),
    pairwise([*PAYLOADS], [False, True], ["none", "zstd"]),
)
def test_tensors_that_are_larger_than_the_memory_come_in_windows(
    encoding: str, is_turned: bool, compression: str, tmp_path: Path
) -> None:
    given = TURNED if is_turned else None
    old = {"large": array((3001, 4004), "float32"), "small": array((5,), "bfloat16")}
    new = stepped(old, 0.001, 3)
    layout = {
        "mesh": {"axes": ["m"], "shape": [4]},
        "rules": [{"match": "large", "axes": [None, "m"]}],
        "unmatched": "replicate",
    }
    source = {**new, "large": np.ascontiguousarray(new["large"].T)} if given else new
    if given:
        layout["rules"] = [{"match": "large", "axes": ["m", None]}]
    reshard.convert(
        save(tmp_path / "new", source), tmp_path / "step", to="orbax", layout=layout,
        compression=compression,
    )  # fmt: skip
    target = tmp_path / "weight_v000003"
    delta(
        save(tmp_path / "old", old), tmp_path / "step", target,
        encoding=encoding, map=given, max_memory="100MiB", workers=2,
    )  # fmt: skip
    assert apply_delta(target, bytes_of(old)) == bytes_of(new)


def test_a_source_that_changes_meanwhile(tmp_path: Path) -> None:
    old = save(tmp_path / "old", {"a": array((8,), "float32")})
    new = save(tmp_path / "new", {"a": array((8,), "float32")})

    def change(_: reshard.Progress) -> None:
        save_file({"a": array((8,), "float32"), "b": array((1,), "uint8")}, new / "model.safetensors")  # fmt: skip

    with pytest.raises(reshard.SourceChangedError) as error:
        delta(old, new, tmp_path / "weight_v000001", progress=change)
    assert str(error.value) == (
        f"'{old}' or '{new}' changed while they were read; nothing was published; run again when nothing writes to them"
    )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new", "old"]


def test_rules_are_applied_to_new_and_to_an_old_step(tmp_path: Path) -> None:
    steps = [{"params": {"w": RNG.normal(size=(32, 16)).astype("f4"), "b": RNG.normal(size=16).astype("f4")}, "opt": np.ones(4, "f4")} for _ in range(2)]  # fmt: skip
    for number, step in enumerate(steps):
        reshard.save(tmp_path / f"step{number}", step)
    rules = {"select": ["^params/"], "rename": {"^params/": "model."}, "cast": {"float": "bfloat16"}}  # fmt: skip
    converted = [tmp_path / f"hf{number}" for number in range(2)]
    for number, place in enumerate(converted):
        reshard.convert(tmp_path / f"step{number}", place, to="safetensors", **rules)
    for number, old in enumerate([converted[0], tmp_path / "step0"]):
        target = tmp_path / str(number) / "weight_v000001"
        target.parent.mkdir()
        delta(old, tmp_path / "step1", target, **rules)
        assert apply_delta(target, stored(converted[0])) == stored(converted[1])


def test_what_a_delta_adds_to_the_layout(tmp_path: Path) -> None:
    old = {"a": array((8,), "float32"), "b": array((2, 3), "bfloat16")}
    mid, new = stepped(old, 0.1, 1), stepped(stepped(old, 0.1, 1), 0.1, 2)
    new["b"] = mid["b"]
    places = [save(tmp_path / name, one) for name, one in (("v0", old), ("v1", mid), ("v2", new))]
    delta(places[0], places[1], tmp_path / "weight_v000001")
    delta(places[1], places[2], tmp_path / "weight_v000002", file_bytes=1)
    first, second = (open_delta(locate(str(tmp_path / f"weight_v00000{n}"))).index for n in (1, 2))
    assert first.target_digest == second.base_digest
    assert second.total_size == sum(one.nbytes for one in new.values())
    assert {name: one.digest for name, one in (second.tensors or {}).items()} == {
        name: CHECKSUMS["xxh3-128"](data) for name, data in bytes_of(new).items()
    }
    assert second.target_digest == tensors_digest("xxh3-128", second.tensors or {})
    assert set(second.weight_map) == {"a"}
    report = apply(places[0], [tmp_path / "weight_v000001", tmp_path / "weight_v000002"], tmp_path / "served")  # fmt: skip
    assert not any("records no checksums" in text for text in report.warnings)
    assert stored(tmp_path / "served") == bytes_of(new)


def test_a_wrong_base_whose_touched_tensors_fit_is_found(tmp_path: Path) -> None:
    old = {"a": array((8,), "float32"), "b": array((2, 3), "bfloat16")}
    new = {**old, "a": stepped(old, 0.5, 1)["a"]}
    delta(save(tmp_path / "v0", old), save(tmp_path / "v1", new), tmp_path / "weight_v000001")
    other = save(tmp_path / "other", {**old, "b": array((2, 3), "bfloat16")})
    with pytest.raises(reshard.VerificationError) as error:
        apply(other, [tmp_path / "weight_v000001"], tmp_path / "served")
    found, recorded = (CHECKSUMS["xxh3-128"](stored(place)["b"]) for place in (other, tmp_path / "v0"))  # fmt: skip
    assert str(error.value) == (
        f"tensor 'b', chunk [0, 0], version 000001: its bytes have the xxh3-128 {found}, but {recorded} is recorded, which the delta does not "
        "change: the base is another one, or it is damaged; give the right base, restore it from a copy, or start from a full version"
    )
    assert not (tmp_path / "served").exists()


def test_deltas_of_two_runs_do_not_chain(tmp_path: Path) -> None:
    old = {"a": array((80,), "float32")}
    runs = [save(tmp_path / f"v{n}", stepped(old, 0.1, n)) for n in range(4)]
    places = tmp_path / "weight_v000001", tmp_path / "other" / "weight_v000002"
    delta(runs[0], runs[1], places[0])
    delta(runs[2], runs[3], places[1])
    first, second = (open_delta(locate(str(place))).index for place in places)
    with pytest.raises(reshard.VerificationError) as error:
        apply(runs[0], places, tmp_path / "out")
    assert str(error.value) == (
        f"{places[1]} was made of other weights than {places[0]} makes: its base_digest is {second.base_digest}, but the "
        f"target_digest of the version 000001 is {first.target_digest}; the versions are of two runs: publish a full version, and start from that"
    )


DUE = "; a delta changes bytes and nothing else: publish a full version (reshard convert)"


def test_tensors_that_are_added_removed_or_reshaped_demand_a_full_version(tmp_path: Path) -> None:
    old = {"a": array((8,), "float32"), "b": array((2, 3), "bfloat16")}
    start = save(tmp_path / "old", old)

    def refusal(name: str, new: dict[str, np.ndarray]) -> str:
        with pytest.raises(PlanError) as error:
            delta(start, save(tmp_path / name, new), tmp_path / "weight_v000001")
        assert not (tmp_path / "weight_v000001").exists()
        return str(error.value)

    assert refusal("added", {**old, "c": old["a"]}) == (
        f"{start} has no 'c', which {tmp_path / 'added'} gives{DUE}"
    )
    assert refusal("removed", {"a": old["a"]}) == (
        f"{start} has 'b', which {tmp_path / 'removed'} does not give{DUE}"
    )
    assert refusal("reshaped", {**old, "b": old["b"].reshape(3, 2)}) == (
        f"'b' is bfloat16 of shape [2, 3] in {start}, but {tmp_path / 'reshaped'} gives bfloat16 of shape [3, 2]{DUE}"
    )
    assert refusal("cast", {**old, "a": old["a"].view("i4")}) == (
        f"'a' is float32 of shape [8] in {start}, but {tmp_path / 'cast'} gives int32 of shape [8]{DUE}"
    )


def test_a_tensor_whose_positions_would_wrap_is_refused(tmp_path: Path) -> None:
    size = (1 << 32) + 8
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
        with (tmp_path / name / "model.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header.encode())
            file.truncate(8 + len(header) + size)
    with pytest.raises(PlanError) as error:
        delta(tmp_path / "old", tmp_path / "new", tmp_path / "weight_v000001", encoding="overwrite")
    assert str(error.value) == (
        "'w' has 4,294,967,304 bytes, but positions of overwrite end at 4,294,967,296: a receiver would change other bytes; choose the encoding xor"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"encoding": "sparse"}, "encoding is 'sparse'; expected one of 'xor', 'overwrite'"),
        ({"checksum": "md5"}, "checksum is 'md5'; expected one of 'xxh3-128', 'blake3', 'adler32'"),
        ({"base_version": 7}, "the base of the version 000007 should be an earlier one, from 0, but is 7; give another base version, or name the target by a later version"),
        ({"base_version": "v6"}, "the base of the version 000007 should be an earlier one, from 0, but is v6; give another base version, or name the target by a later version"),
        ({"base_version": 6.0}, "base_version is 6.0; expected the number of a version, from 0, or its id; leave it out for the default"),
        ({"receiver": "vllm"}, "receiver is 'vllm'; expected one of 'pull_weights', 'modelexpress'"),
        ({"receiver": "modelexpress", "encoding": "overwrite"}, "ModelExpress reads deltas of the encoding xor with checksums of adler32, but overwrite and adler32 were asked for; leave both out"),
        ({"receiver": "modelexpress", "checksum": "xxh3-128"}, "ModelExpress reads deltas of the encoding xor with checksums of adler32, but xor and xxh3-128 were asked for; leave both out"),
        ({"receiver": "modelexpress", "checksum": "blake3"}, "ModelExpress reads deltas of the encoding xor with checksums of adler32, but xor and blake3 were asked for; leave both out"),
        ({"file_bytes": 0}, "file_bytes is 0; expected a whole number of at least 1 (bytes, such as 1GiB), or leave it out for the default"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense(tmp_path: Path, options: dict, text: str) -> None:
    place = save(tmp_path / "old", {"a": array((8,), "float32")})
    with pytest.raises(PlanError) as error:
        delta(place, place, tmp_path / "weight_v000007", **options)
    assert str(error.value) == text


def test_what_is_no_tensor_is_refused_as_convert_refuses_it(tmp_path: Path) -> None:
    reshard.save(tmp_path / "step", {"a": np.ones(3, "f4"), "name": "model"})
    place = write_full(tmp_path / "old", {"a": bytes(12)}, {"a": np.zeros(3, "f4")})
    said = []
    for call in (
        lambda: reshard.convert(tmp_path / "step", tmp_path / "hf", to="safetensors"),
        lambda: delta(place, tmp_path / "step", tmp_path / "weight_v000001"),
    ):
        with pytest.raises(reshard.FormatError) as error:
            call()
        said.append(str(error.value))
    assert said[0] == said[1]
