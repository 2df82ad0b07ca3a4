"""The typed client against a real server: conversions watched, cut off, refused; slices; everything else."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from reshard_server.client import Client, ServiceError, UnreachableError
from reshard_server.client.resources import layout_of
from reshard_server.client.transport import Transport, error_of
from reshard_server.schemas.base import Problem

import reshard
from reshard.engine.progress import Progress
from reshard.errors import LayoutError, MemoryBudgetError, PlanError, ReshardError, StorageError
from tests.formats.safetensors.build import entry, file_of, packed
from tests.ports import kept_port
from tests.server.client.cutting import cutting
from tests.server.client.weights import WEIGHTS
from tests.server.live import Live, live
from tests.server.tokens import TOKENS

ANN = TOKENS["ann"][0]
LAYOUT = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": "kernel", "axes": [None, "x"]}],
}


def test_a_conversion_watched_to_its_end(client: Client, data: Path) -> None:
    seen: list[Progress] = []
    handle = client.convert(
        "data/run", "data/one", layout=LAYOUT, cast={"bias": ml_dtypes.bfloat16}
    )
    assert handle.conversion.state == "queued"
    (report,) = handle.wait(progress=seen.append, timeout=120)
    assert (report.source, report.target) == ("data/run", "data/one")
    assert handle.result == [report]
    assert seen and seen[-1].moved_bytes == seen[-1].total_bytes == report.moved_bytes
    found = reshard.restore(data / "one")["params"]
    np.testing.assert_array_equal(found["kernel"], WEIGHTS)
    assert found["bias"].dtype == ml_dtypes.bfloat16
    again = client.conversions.get(handle.id)
    assert again.wait() == [report]
    assert handle.id in [c.id for c in client.conversions.list(state="succeeded").conversions]
    client.conversions.delete(handle.id)
    with pytest.raises(ServiceError, match="there is no conversion"):
        client.conversions.get(handle.id)


def test_the_bar_is_the_command_lines(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert client.convert("data/run", "data/bar").wait(progress=True)
    assert capsys.readouterr().out == ""


def test_events_that_break_off_are_gone_on_with(served: Live) -> None:
    with cutting(served.url) as proxy, Client(proxy.url, ANN) as client:
        handle = client.convert("data/run", "data/cut", priority=1)
        proxy.cuts = [700, None, 900]
        assert handle.wait(timeout=120)
        asked = [r for r in proxy.requests if b"/events" in r]
        assert len(asked) >= 2 or handle.conversion.done
        assert not any(b"Last-Event-ID" in r for r in asked[:1])
    assert handle.conversion.state == "succeeded"


def test_a_request_that_broke_off_is_sent_again_and_makes_one_conversion(served: Live) -> None:
    with cutting(served.url) as proxy, Client(proxy.url, ANN) as client:
        proxy.cuts = [30, 200]
        handle = client.convert("data/run", "data/again", labels={"test": "again"})
        posts = [r for r in proxy.requests if r.startswith(b"POST")]
        keys = {re.search(rb"(?i)idempotency-key: (\S+)", r)[1] for r in posts}
        assert (len(posts), len(keys)) == (3, 1)
        found = client.conversions.list(label="test=again").conversions
        assert [c.id for c in found] == [handle.id]
        handle.wait(timeout=120)


def test_a_conversion_that_fails_raises_what_the_library_would(client: Client) -> None:
    handle = client.convert("data/run", "data/failed", select=["nothing"])
    with pytest.raises(PlanError, match="select 'nothing' matches none of the 2 names"):
        handle.wait(timeout=120)
    assert handle.conversion.state == "failed"
    with pytest.raises(PlanError):
        _ = handle.result


def test_a_layout_map_is_sent_as_the_content_of_a_layout_file(client: Client) -> None:
    layouts = reshard.LayoutMap(reshard.DeviceMesh((4,), ("x",)))
    layouts["kernel"] = (None, "x")
    stored = client.layouts.put("of-a-map", layouts)
    assert stored.layout["rules"] == [{"match": "kernel", "axes": [None, "x"]}]
    client.layouts.delete("of-a-map")
    (report,) = client.convert("data/run", "data/by-map", layout=layouts).wait(timeout=120)
    assert report.target == "data/by-map"
    previewed = client.layouts.preview("data/run", layouts)
    assert {t.target: t.target_axes for t in previewed.tensors}["params/kernel"] == (None, "x")
    assert "TensorPreview('params/kernel': float32 [" in repr(previewed)
    plan = client.plans.create("data/run", "data/planned", layout=layouts)
    assert plan.totals.tensors == 2
    layouts = reshard.LayoutMap(reshard.DeviceMesh((4,), ("x",)))
    layouts["kernel(?!_scale)"] = (None, "x")
    with pytest.raises(LayoutError, match="look-ahead and look-behind"):
        client.convert("data/run", "data/none", layout=layouts)


def test_a_layout_map_of_keras_is_sent_in_the_same_way() -> None:
    layouts = reshard.LayoutMap(reshard.DeviceMesh((8,), ("x",)))
    layouts["kernel"] = (None, "x")
    assert layout_of(layouts.to_keras()) == layout_of(layouts)


def test_refusals_are_the_librarys_errors(client: Client, served: Live) -> None:
    with pytest.raises(LayoutError, match="mesh"):
        client.convert("data/run", "data/x", mesh="nonsense")
    with pytest.raises(ReshardError, match=r"colour: there is no member of this name"):
        client.convert("data/run", "data/x", colour="red")
    with pytest.raises(ServiceError, match="there is nothing at 'secret/run'") as refused:
        client.convert("secret/run", "data/x")
    assert (refused.value.status, refused.value.problem and refused.value.problem.field) == (
        404,
        "/source",
    )
    with Client(served.url, "wrong") as stranger, pytest.raises(ServiceError) as unknown:
        stranger.conversions.list()
    assert unknown.value.status == 401
    with (
        Client(served.url, TOKENS["eve"][0]) as reader,
        pytest.raises(ServiceError, match="lacks the scope"),
    ):
        reader.convert("data/run", "data/x")


def test_an_error_keeps_what_it_carries() -> None:
    common = {
        "type": "urn:reshard:problem:memory-budget",
        "title": "t",
        "status": 422,
        "detail": "d",
    }
    found = error_of(Problem(**common, error="MemoryBudgetError", smallest_bytes=7))
    assert isinstance(found, MemoryBudgetError)
    assert (str(found), found.smallest_bytes) == ("d", 7)
    for odd in ("ReshardError", "nothing", "__doc__", None):
        assert isinstance(error_of(Problem(**common, error=odd)), ReshardError)


def test_who_is_not_there() -> None:
    waits: list[float] = []
    with kept_port() as port:
        transport = Transport(httpx.Client(base_url=f"http://127.0.0.1:{port}"), waits.append)
        with pytest.raises(
            UnreachableError,
            match=rf"the server at http://127.0.0.1:{port}\S* did not answer, or its answer was cut off",
        ):
            transport.ask("GET", "/v1/conversions")
        assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]
        with pytest.raises(UnreachableError):
            transport.ask("POST", "/v1/conversions")
        assert len(waits) == 5
    for url in ("ftp://x", "localhost:80", "http://user:pw@host", "http://"):
        with pytest.raises(
            ReshardError, match="is not the URL of a server; expected http"
        ) as error:
            Client(url)
        assert "pw" not in str(error.value)


def test_a_server_that_is_started_again_is_waited_for(tmp_path: Path) -> None:
    reshard.save(tmp_path / "data" / "run", {"w": WEIGHTS})
    with kept_port() as port, ThreadPoolExecutor(1) as pool:
        there = "--port", str(port)  # the last --port counts
        with live(tmp_path, *there, module="tests.server.idle") as server:
            client = Client(server.url, ANN)
            handle = client.convert("data/run", "data/after")
            waiting = pool.submit(handle.wait, timeout=300)
            assert server.end() == 0
        with client, live(tmp_path, *there):
            (report,) = waiting.result(300)
    assert report.target == "data/after"


def test_cancel_and_retry(tmp_path: Path) -> None:
    with live(tmp_path, module="tests.server.idle") as server, Client(server.url, ANN) as client:
        handle = client.convert("data/a", "data/b")
        assert handle.cancel().state == "cancelled"
        with pytest.raises(ServiceError, match="is cancelled, and has no result; see http"):
            handle.wait()
        assert handle.retry().state == "queued"
        with pytest.raises(TimeoutError, match="is still queued; it continues, see"):
            handle.wait(timeout=0.1)
        assert handle.refresh().state == "queued"


def test_slices_as_arrays(client: Client) -> None:
    found = client.tensors.read("data/run", "params/kernel", "10:20,:7", ml_dtypes.bfloat16)
    assert found.dtype == ml_dtypes.bfloat16
    assert found.tobytes() == WEIGHTS[10:20, :7].astype(ml_dtypes.bfloat16).tobytes()
    np.testing.assert_array_equal(client.tensors.read("data/run", "params/kernel"), WEIGHTS)
    with pytest.raises(LayoutError, match="reaches outside"):
        client.tensors.read("data/run", "params/kernel", "0:9999")


@pytest.mark.parametrize(("dtype", "columns", "nbytes"), [("F4", 8, 4), ("F6_E3M2", 8, 6)])
def test_packed_floats_are_given_as_bytes(
    client: Client, data: Path, dtype: str, columns: int, nbytes: int
) -> None:
    stored = bytes(range(3 * nbytes))
    file_of(
        data,
        packed({"w": entry(dtype, [3, columns], 0, len(stored))}, stored),
        f"{dtype}.safetensors",
    )
    found = client.tensors.read(f"data/{dtype}.safetensors", "w", "1:3,:")
    assert (found.dtype, found.shape) == (np.uint8, (2, nbytes))
    assert found.tobytes() == stored[nbytes:]


def test_a_download_that_breaks_off_goes_on_where_it_was(served: Live, tmp_path: Path) -> None:
    with cutting(served.url) as proxy, Client(proxy.url, ANN) as client:
        proxy.cuts = [60_000, 30_000, 700]
        file = client.tensors.download_shard(
            "data/run", 1, tmp_path / "one.safetensors", layout=LAYOUT, cast={"bias": "fp16"}
        )
    ranges = [re.search(rb"(?i)\r\nrange: (\S+)", r) for r in proxy.requests]
    assert [bool(r) for r in ranges] == [False, True, True, True][: len(ranges)]
    assert len(ranges) > 1
    found = safetensors.numpy.load_file(file)
    np.testing.assert_array_equal(found["params/kernel"], WEIGHTS[:, 64:128])
    assert found["params/bias"].dtype == np.float16
    assert [p.name for p in tmp_path.iterdir()] == ["one.safetensors"]


def test_a_checkpoint_that_changes_between_is_not_joined(
    served: Live, data: Path, tmp_path: Path
) -> None:
    with cutting(served.url) as proxy, Client(proxy.url, ANN) as client:
        reshard.save(data / "moving", {"w": WEIGHTS})
        proxy.cuts = [100_000]
        chunks = [
            p for p in (data / "moving").rglob("*") if p.is_file() and p.stat().st_size > 100_000
        ]

        original = Transport.stream

        def touching(self: Transport, path: str, **more: Any) -> Any:
            if more["headers"]:
                for chunk in chunks:
                    chunk.write_bytes(chunk.read_bytes())
            return original(self, path, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Transport, "stream", touching)
            with pytest.raises(StorageError, match="data/moving changed during the download"):
                client.tensors.download_shard("data/moving", 0, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_everything_else(client: Client) -> None:
    stored = client.layouts.put("serving", LAYOUT)
    assert (stored.name, stored.version) == ("serving", 1)
    assert client.layouts.get("serving@1").layout == stored.layout
    assert [s.name for s in client.layouts.list().layouts] == ["serving"]
    assert [s.version for s in client.layouts.versions("serving").versions] == [1]
    assert client.layouts.preview("data/run", "serving").tensors
    plan = client.plans.create("data/run", "data/planned", layout="serving")
    assert plan.totals.tensors == 2
    assert client.checkpoints.inspect("data/run").nbytes == WEIGHTS.nbytes + 1024
    assert client.checkpoints.verify("data/run").equal
    assert "data/run" in [c.path for c in client.checkpoints.list("data").checkpoints]
    shard = client.tensors.transport.ask(
        "HEAD", "/v1/tensors", params={"checkpoint": "data/run", "shard": 3, "layout": "serving"}
    )
    assert int(shard.headers["Content-Length"]) > WEIGHTS.nbytes // 4
    client.layouts.delete("serving")
    with pytest.raises(ServiceError, match="there is no layout 'serving'"):
        client.layouts.get("serving")
