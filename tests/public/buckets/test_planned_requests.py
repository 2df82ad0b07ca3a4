"""A run makes at most the requests that its plan names, by the log of the servers, and not many fewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec import structs

import reshard
from reshard import ConversionReport, MultiReport, Requests, Target
from reshard.storage import calls
from reshard.storage.buckets import counts
from tests.arithmetic.quantised import save_model
from tests.emulators.buckets import Bucket
from tests.emulators.no_clock import no_clock
from tests.emulators.server import Server
from tests.orbax_trees import save_manager_items, save_pytree
from tests.public.buckets.trees import tree
from tests.public.buckets.uploads import upload

TIGHT = 3
"""Planned requests and bytes are at most so many times those that are made; measured: 1.0 to 2.5."""

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}

KINDS = {
    "start_upload": "put", "complete_upload": "put", "put_part": "part", "delete_many": "delete",
    "list": "list", "head": "head", "get": "get", "put": "put", "delete": "delete", "copy": "copy",
}  # fmt: skip

ROWS = {"mesh": {"axes": ["x"], "shape": [2]}, "rules": [{"match": "w", "axes": ["x", None]}]}
COLUMNS = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": [None, "x"]}]}

FORMS: dict[str, dict[str, Any]] = {
    "raw": {"layout": ROWS, "chunk_bytes": 65536},
    "zstd": {"layout": ROWS, "compression": "zstd"},
    "OCDBT": {"layout": ROWS, "ocdbt": True},
    "safetensors": {"to": "safetensors", "file_bytes": 500_000},
}
WAYS: dict[str, dict[str, Any]] = {
    "block": {"layout": COLUMNS},
    "compressed": {"layout": COLUMNS, "compression": "zstd"},
    "as it is": {"compression": "keep"},
    "many chunks": {"chunk_bytes": 16384},
    "safetensors": {"to": "safetensors", "file_bytes": 500_000},
    "rank files": {"to": "safetensors", "files": "ranks", "layout": COLUMNS},
    "cast": {"cast": {"float": "bfloat16"}},
    "read back": {"layout": COLUMNS, "check": "readback"},
    "identity": {"layout": COLUMNS, "identity": "compute"},
}


@pytest.fixture(autouse=True)
def _no_clock() -> Iterator[None]:
    """A plan takes a run for as fast as on a machine that does nothing else."""
    with no_clock():
        yield


def weights(layers: int = 12) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        f"layer_{i}": {
            "w": random.standard_normal((64, 512)).astype("float32"),
            "b": random.standard_normal(300).astype("float32"),
        }
        for i in range(layers)
    }


def logged(*servers: Server) -> Requests:
    """What servers were asked since their logs were cleared."""
    found = Counter[str]()
    for server in servers:
        for one in server.log.requests:
            found[KINDS[one.operation]] += 1
            found["received_bytes"] += one.bytes_out if one.operation == "get" else 0
            found["sent_bytes"] += one.bytes_in if one.operation in ("put", "put_part") else 0
    return Requests(**found)


def made(call: Callable[[], Any], *buckets: Bucket, times: int = TIGHT) -> Any:
    """The report of a conversion, of which the servers saw what it says, and at most what its plan says."""
    for bucket in buckets:
        bucket.emulator.log.clear()
    report: ConversionReport | MultiReport = call()
    found = report.requests
    assert found is not None
    assert found.actual == logged(*(bucket.emulator for bucket in buckets))
    assert_bound(found.planned, found.actual, times)
    return report


def assert_bound(planned: Requests, actual: Requests, times: int = TIGHT) -> None:
    """Of each kind and in bytes at most what was planned; in all at least a part of it."""
    assert all(n >= 0 for n in structs.astuple(planned - actual)), (planned, actual)
    assert planned.total <= times * actual.total, (planned, actual)
    assert planned.sent_bytes <= times * actual.sent_bytes + 50_000, (planned, actual)
    assert planned.received_bytes <= times * actual.received_bytes + 50_000, (planned, actual)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights in several forms."""
    folder = tmp_path_factory.mktemp("forms")
    saved = save_pytree(folder / "saved", weights())
    found = {}
    for name, options in FORMS.items():
        found[name] = folder / name
        reshard.convert(saved, found[name], workers=2, **options)
    return found


PAIRS = [
    ("raw", "block"), ("zstd", "compressed"), ("OCDBT", "as it is"), ("safetensors", "many chunks"),
    ("OCDBT", "safetensors"), ("zstd", "rank files"), ("raw", "cast"), ("safetensors", "read back"),
    ("zstd", "identity"), ("raw", "as it is"), ("OCDBT", "block"), ("safetensors", "safetensors"),
]  # fmt: skip
"""Each form and each way, with several others each."""


@pytest.mark.parametrize(("form", "way"), PAIRS)
def test_a_run_asks_at_most_what_it_planned(
    form: str, way: str, gcs_bucket: Bucket, local: dict[str, Path]
) -> None:
    url = upload(gcs_bucket, local[form], "source")
    options = {"to": "orbax", **WAYS[way]}
    made(
        lambda: reshard.convert(url, f"{gcs_bucket.url}/out", workers=2, **options),
        gcs_bucket,
    )


@pytest.mark.parametrize("form", FORMS)
def test_to_and_from_a_disk(
    form: str, s3_bucket: Bucket, local: dict[str, Path], tmp_path: Path
) -> None:
    url = f"{s3_bucket.url}/out"
    made(
        lambda: reshard.convert(local[form], url, workers=2, to="orbax", layout=COLUMNS), s3_bucket
    )
    made(lambda: reshard.convert(url, tmp_path / "back", workers=2, layout=ROWS), s3_bucket)


def test_between_two_clouds_and_to_several_targets(
    gcs_bucket: Bucket, s3_bucket: Bucket, local: dict[str, Path], tmp_path: Path
) -> None:
    source = upload(s3_bucket, local["zstd"], "source")
    targets = [
        Target(f"{gcs_bucket.url}/a", layout=COLUMNS),
        Target(f"{s3_bucket.url}/b", to="safetensors"),
        Target(tmp_path / "c", compression="zstd"),
    ]
    found = made(lambda: reshard.convert_all(source, targets, workers=2), gcs_bucket, s3_bucket)
    assert [report.requests for report in found.reports] == [None] * 3


@pytest.mark.parametrize("lent", ["gcs_bucket", "s3_bucket"])
def test_large_files_are_uploaded_in_parts(
    lent: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bucket: Bucket = request.getfixturevalue(lent)
    large = {"w": np.random.default_rng(1).standard_normal((2048, 2600)).astype("float32")}
    saved = save_pytree(tmp_path / "saved", large)
    source = f"{bucket.url}/source"
    made(lambda: reshard.convert(saved, source, workers=2, chunk_bytes="32MiB"), bucket)
    report = made(
        lambda: reshard.convert(source, f"{bucket.url}/st", workers=2, to="safetensors"), bucket
    )
    assert report.requests.actual.part == 3
    report = made(lambda: reshard.convert(source, tmp_path / "back", workers=2), bucket)
    assert report.requests.actual.get >= 3


@pytest.mark.parametrize("rows", [256, 5120])
def test_operands_of_computed_tensors_are_counted(
    gcs_bucket: Bucket, tmp_path: Path, rows: int
) -> None:
    """Codes of one chunk and of several, their scales, and checkpoints that are averaged."""
    random = np.random.default_rng(1)
    codes = random.normal(size=(rows, 4096)).astype(ml_dtypes.float8_e4m3fn)
    scale = random.random((rows // 128, 32), np.float32)
    save_model(tmp_path / "codes", [{"w.weight": codes}, {"w.weight_scale_inv": scale}], FP8)
    url = upload(gcs_bucket, tmp_path / "codes", "codes")
    how: dict[str, Any] = {"dequantize": "bfloat16", "to": "orbax", "workers": 2}
    out = f"{gcs_bucket.url}/out"
    made(lambda: reshard.convert(url, out, **how), gcs_bucket)
    made(lambda: reshard.convert(url, tmp_path / "columns", mesh="x=1", **how), gcs_bucket)
    made(lambda: reshard.merge([out, out], tmp_path / "average", workers=2), gcs_bucket)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_chunks_that_several_tasks_read(
    gcs_bucket: Bucket, tmp_path: Path, compression: str
) -> None:
    """Chunks of rows, of two requests each, are read again for each part of their columns, or band by band."""
    large = {"w": np.random.default_rng(1).standard_normal((2600, 2048)).astype("float32")}
    saved, url = save_pytree(tmp_path / "saved", large), f"{gcs_bucket.url}/source"
    rows = {"layout": ROWS, "compression": compression, "workers": 2}
    made(lambda: reshard.convert(saved, url, **rows), gcs_bucket)
    columns = {"layout": COLUMNS, "compression": "zstd", "max_memory": "40MiB", "workers": 2}
    made(lambda: reshard.convert(url, tmp_path / "columns", **columns), gcs_bucket)


@pytest.mark.parametrize("is_checked", [True, False])
def test_large_chunks_that_stay_the_same_are_copied(
    gcs_bucket: Bucket, s3_bucket: Bucket, tmp_path: Path, is_checked: bool
) -> None:
    """By the store itself where their checksums prove the copies; else they are read and uploaded in parts."""
    large = {"w": np.random.default_rng(1).standard_normal((2048, 2600)).astype("float32")}
    saved = save_pytree(tmp_path / "saved", large)
    source, copy = f"{gcs_bucket.url}/source", f"{gcs_bucket.url}/copy"
    compression = "none" if is_checked else "zstd"
    target = source if is_checked else tmp_path / "local"
    reshard.convert(saved, target, workers=2, compression=compression, chunk_bytes="32MiB")
    if not is_checked:
        source = upload(gcs_bucket, tmp_path / "local", "source")
    keep = {"compression": "keep", "chunk_bytes": "32MiB", "workers": 2}
    made(lambda: reshard.convert(source, copy, **keep), gcs_bucket)
    assert reshard.verify(source, copy).differences == 0
    other = f"{s3_bucket.url}/copy"
    report = made(lambda: reshard.convert(source, other, **keep), gcs_bucket, s3_bucket)
    assert report.tensors[0].proof in ("encoded", "written")
    assert reshard.verify(source, other).differences == 0


def test_a_store_copies_by_itself(gcs_bucket: Bucket, tmp_path: Path) -> None:
    large = {"w": np.random.default_rng(1).standard_normal((1024, 2600)).astype("float32")}
    saved = save_pytree(tmp_path / "saved", large)
    source = f"{gcs_bucket.url}/source"
    zstd = {"compression": "zstd", "workers": 2}
    reshard.convert(saved, tmp_path / "raw", workers=2)
    reshard.convert(tmp_path / "raw", tmp_path / "zstd", **zstd)
    reshard.convert(tmp_path / "zstd", source, compression="keep", workers=2)
    url = f"{gcs_bucket.url}/copy"
    report = made(lambda: reshard.convert(source, url, compression="keep", workers=2), gcs_bucket)
    assert report.requests.actual.copy == report.requests.planned.copy == 1


def test_overwriting_deletes(gcs_bucket: Bucket, local: dict[str, Path]) -> None:
    url = upload(gcs_bucket, local["raw"], "out")
    count = sum(p.is_file() for p in local["raw"].rglob("*"))
    report = made(
        lambda: reshard.convert(local["zstd"], url, workers=2, overwrite=True), gcs_bucket
    )
    assert report.requests.actual.delete >= count


def test_items_that_are_no_trees_are_counted(gcs_bucket: Bucket, tmp_path: Path) -> None:
    source = upload(gcs_bucket, save_manager_items(tmp_path / "run", tree(8)), "run/3")
    made(lambda: reshard.convert(source, f"{gcs_bucket.url}/out", workers=2), gcs_bucket)


def test_a_plan_says_what_its_run_will_ask(
    gcs_bucket: Bucket, local: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload(gcs_bucket, local["raw"], "source")
    out = f"{gcs_bucket.url}/out"
    planned = reshard.plan(url, out, workers=2, layout=COLUMNS).request_plan
    assert planned is not None
    monkeypatch.setattr(calls, "_READS", calls._RecentReads())  # as another process
    gcs_bucket.emulator.log.clear()
    reshard.convert(url, out, workers=2, layout=COLUMNS)
    assert_bound(planned.requests(), logged(gcs_bucket.emulator))
    unnamed = reshard.plan(url, workers=2, layout=COLUMNS).request_plan
    assert unnamed is not None
    assert unnamed.data.get == planned.data.get
    assert unnamed.requests().put == 0
    several = reshard.plan_all(url, [Target(out + "1"), Target(out + "2")]).request_plan
    assert several is not None
    assert several.targets == 2


def test_local_plans_have_no_requests(local: dict[str, Path], tmp_path: Path) -> None:
    before = counts.so_far()
    assert reshard.plan(local["raw"], tmp_path / "t", workers=1).requests is None
    report = reshard.convert(local["raw"], tmp_path / "t", workers=1)
    assert report.requests is None
    assert reshard.plan_all(local["raw"], [Target(tmp_path / "u")]).requests is None
    assert counts.so_far() == before


def test_what_is_done_already_asks_nothing_more(gcs_bucket: Bucket, local: dict[str, Path]) -> None:
    out = f"{gcs_bucket.url}/out"
    reshard.convert(local["raw"], out, workers=2)
    again = reshard.convert(local["raw"], out, workers=2)
    assert again.already_done
    assert again.requests is None
