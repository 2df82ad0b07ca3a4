"""Versions of weights by the client: made, waited for, listed, applied, and what is refused before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from reshard_server.client import Client, DeltaHandle
from safetensors.numpy import load_file

import reshard
from reshard.errors import PlanError, ReshardError, TargetExistsError
from tests.delta_layout import apply_delta, bytes_of
from tests.server.live import live
from tests.server.tokens import TOKENS

RNG = np.random.default_rng(9)
WEIGHTS = RNG.normal(size=(32, 8)).astype(np.float32)
MAP = {"map": [{"from": "up", "to": "up.weight", "shape": "i o -> o i"}]}
FULL, DELTA, NEXT = (f"data/published/weight_v{number:06}" for number in (1, 2, 3))


def weights(step: int) -> np.ndarray:
    made = WEIGHTS.copy()
    made[step] += 1
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "data"


@pytest.fixture(scope="module")
def client(data: Path) -> Iterator[Client]:
    for step in (1, 2, 3):
        reshard.save(data / "run" / str(step), {"up": weights(step)})
    with live(data.parent, requests_per_minute=10**6) as server, Client(server.url, TOKENS["ann"][0]) as found:  # fmt: skip
        found.convert("data/run/1", FULL, to="safetensors", map=MAP).wait()
        found.delta(FULL, "data/run", DELTA, step=2, map=MAP).wait()
        found.delta("data/run/2", "data/run/3", NEXT, map=MAP).wait()  # from one step to the next
        yield found


@pytest.mark.usefixtures("client")
def test_a_receiver_follows_the_chain(data: Path) -> None:
    published = data / "published"
    found = bytes_of(load_file(published / "weight_v000001" / "model.safetensors"))
    for number in (2, 3):
        found = apply_delta(published / f"weight_v{number:06}", found)
    assert found == bytes_of({"up.weight": np.ascontiguousarray(weights(3).T)})


def test_a_delta_has_the_librarys_report(client: Client, tmp_path: Path) -> None:
    *_, found = client.deltas.each()  # the oldest
    handle = client.deltas.get(found.id)
    [report] = handle.wait(progress=True)
    assert isinstance(report, reshard.DeltaReport)
    assert (report.target, report.version, report.changed) == (DELTA, "000002", 16)
    assert list(report.tensors) == ["up.weight"]
    assert report.tensors["up.weight"].shape == (8, 32)
    assert str(report).startswith(f"DeltaReport({DELTA!r}: 1 of 1 tensor changed, ")
    assert client.deltas.list(state="failed").conversions == []
    assert tmp_path.exists()


def test_a_delta_is_no_conversion(client: Client) -> None:
    *_, found = client.deltas.each()  # the oldest
    with pytest.raises(ReshardError) as refused:
        _ = client.conversions.get(found.id).result
    assert str(refused.value) == (
        f"{found.id} is a delta, which has another report; get it as a delta (client.deltas.get)"
    )


def test_a_full_version_in_its_place(client: Client) -> None:
    handle: DeltaHandle = client.delta("data/none", "data/run/2", "data/other/weight_v000001", map=MAP, or_full=True)  # fmt: skip
    [report] = handle.wait()
    assert isinstance(report, reshard.ConversionReport)
    assert report.warnings == (
        "a full version was published, since no delta could be made: data/none does not exist: expected the directory of a checkpoint; check "
        "the path",
    )


def test_errors_are_the_librarys(client: Client) -> None:
    with pytest.raises(TargetExistsError) as there:
        client.delta(FULL, "data/run/2", DELTA, map=MAP).wait()
    assert str(there.value) == (
        f"the version '{DELTA}' exists already and was left untouched, since receivers may have read it; publish the next version"
    )
    with pytest.raises(ReshardError, match="000002"):
        client.convert(FULL, "data/never", deltas=[NEXT]).wait()
    with pytest.raises(PlanError, match="should have the name of a version"):
        client.delta(FULL, "data/run/2", "data/published/v2", map=MAP)
    with pytest.raises(ReshardError) as refused:
        client.delta(FULL, "data/run/2", DELTA, encodings="xor")
    assert str(refused.value) == (
        "encodings: there is no member of this name; correct the name, or leave it out; the options are those of POST /v1/deltas"
    )


def test_the_chain_is_seen_verified_and_applied(client: Client) -> None:
    assert [(v.version, v.kind) for v in client.checkpoints.versions("data/published")] == [
        ("000001", "full"), ("000002", "delta"), ("000003", "delta"),
    ]  # fmt: skip
    [one] = client.checkpoints.versions(DELTA)
    assert [(t.name, t.changed, t.elements) for t in one.tensors] == [("up.weight", 16, 256)]
    chain = [NEXT, DELTA]
    assert client.checkpoints.verify(FULL, deltas=chain).differences == 0
    [report] = client.convert(FULL, "data/full", deltas=chain, to="orbax").wait()
    assert isinstance(report, reshard.ConversionReport)
    np.testing.assert_array_equal(client.tensors.read("data/full", "up.weight"), weights(3).T)
    assert client.checkpoints.verify(FULL, "data/full", deltas=chain).differences == 0
