"""Real processes: 1 of 8 devices, 2 of 4 and 4 of 2 restore one checkpoint, each only its part."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.orbax_trees import mesh, put, save_pytree
from tests.process_groups import run_group

pytestmark = pytest.mark.xdist_group("restore-processes")

MIB = 1 << 20
SHAPE = (512, 1024)
"""2 MiB in float32."""

CODE = """
    import json, sys
    from pathlib import Path
    import jax, numpy as np, reshard

    rank, count, address, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    if count > 1:
        jax.distributed.initialize(address, num_processes=count, process_id=rank)
    shape = tuple(json.loads(sys.argv[5]))
    expected = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    layouts = reshard.LayoutMap(reshard.DeviceMesh((4, 2), ("data", "model")))
    layouts["rows"], layouts["columns"], layouts["both"] = ("data", "model")[:1], (None, ("data", "model")), ("model", "data")

    layouts["alone"] = reshard.TensorLayout((), reshard.DeviceMesh((1,), ("z",), jax.devices()[:1]))

    def read_bytes():
        return int(Path("/proc/self/io").read_text().split()[1])

    def restore(path, **options):
        return reshard.restore(path, layout=layouts, report=reports.append, **options)

    reports, found = [], {}
    for kind in ("raw", "zstd"):
        restore(root / kind, select=["key"])  # whatever is imported is imported now
        before = read_bytes()
        tree = restore(root / kind)
        jax.block_until_ready(tree)
        read = read_bytes() - before
        alone = tree["alone"]
        arrays = [tree[name] for name in ("rows", "columns", "both", "replicated")]
        found[kind] = {
            "read": read, "reported": reports[-1].read_bytes, "needed": reports[-1].needed_bytes,
            "alone": [alone.shape, [s.data.tolist() for s in alone.addressable_shards]],
            "right": [all(np.array_equal(s.data, expected[s.index]) for s in a.addressable_shards) for a in arrays],
            "shards": [len(a.addressable_shards) for a in arrays],
            "devices": [len(a.sharding.device_set) for a in arrays],
        }
        table = reshard.restore(root / kind, partition={"rows": 3}, select=["rows"])["rows"]
        found[kind]["table"] = bool(np.array_equal(table.numpy(), expected))
    rules = {"map": [{"from": "columns", "to": "rows", "shape": "a b -> b a"}]}
    turned = restore(root / "raw", select=["columns"], map=rules)["rows"]
    found["turned"] = {
        "read": reports[-1].read_bytes,
        "right": all(np.array_equal(s.data, expected.T[s.index]) for s in turned.addressable_shards),
    }
    print(json.dumps(found))
    if count > 1:
        jax.distributed.shutdown()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """What a job on mesh (2, 4) saved."""
    root = tmp_path_factory.mktemp("processes")
    values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    source = mesh((2, 4), ("a", "b"))
    tree = {
        name: put(values, "a", "b", on=source) for name in ("rows", "columns", "both", "replicated")
    }
    tree["key"], tree["alone"] = jax.random.key(5), np.float32([1, 2])
    save_pytree(root / "raw", tree, use_ocdbt=False, use_compression=False)
    save_pytree(root / "zstd", tree)
    yield root
    shutil.rmtree(root)


def run_all(count: int, root: Path) -> list[dict[str, Any]]:
    """What each process prints."""
    printed = run_group(count, ["-c", textwrap.dedent(CODE)], str(root), json.dumps(SHAPE))
    return [json.loads(lines.splitlines()[-1]) for lines in printed]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_process_reads_what_its_devices_need(count, root):
    found = run_all(count, root)
    for answer in (process[kind] for process in found for kind in ("raw", "zstd")):
        assert answer["right"] == [True] * 4
        assert answer["devices"] == [8] * 4
        assert answer["shards"] == [8 // count] * 4
        assert answer["reported"] == answer["needed"]
        assert answer["reported"] <= answer["read"] <= answer["reported"] + MIB // 4
        assert answer["table"]
    for rank, process in enumerate(
        found
    ):  # one device holds it, and other processes read nothing of it
        assert process["zstd"]["alone"] == [[2], [] if rank else [[1.0, 2.0]]]
    whole = 4 * int(np.prod(SHAPE))
    for process in found:
        # Rows are held twice by each pair of devices, the columns and both once, the replicated by all.
        needed = whole // count * 3 + whole
        assert abs(process["raw"]["needed"] - needed) <= 4096
        # What a map turns: the target's rows are columns of the source, in two of its chunks.
        assert process["turned"]["right"]
        assert process["turned"]["read"] <= whole // min(count, 4) + 4096
    if count == 4:
        assert all(p["zstd"]["needed"] < found[0]["raw"]["needed"] * 2 for p in found)
