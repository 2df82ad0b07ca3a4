"""Peak memory of saving, in a fresh process: the arrays and the allowed memory, no more."""

from __future__ import annotations

import shutil

import pytest

from tests.fresh_process import run_fresh

MIB = 1 << 20
SAVE = """
    import json, os, sys
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    import reshard
    import reshard.saving.run, awscrt.checksums, zstandard
    path, what, budget = sys.argv[1:]
    rows = np.random.default_rng(0).integers(0, 255, (512, 65536), np.uint8)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    if what == "shards":      # 256 MiB where they lie
        tree = {str(n): jax.device_put(rows, sharding) for n in range(8)}
    elif what == "columns":   # chunks that are no views of the one array
        layout = reshard.LayoutMap(reshard.DeviceMesh((64,), ("x",)))
        layout["."] = (None, "x")
        tree = {str(n): rows.copy() for n in range(8)}
    else:                     # rows dealt out
        tree = {str(n): reshard.ShardedVariable.split(rows, 8, partition_strategy="mod")
                for n in range(8)}
    jax.block_until_ready(jax.tree.leaves(tree))
    import resource
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layout = layout if what == "columns" else None
    compression = "zstd" if what == "shards" else "none"
    reshard.save(path, tree, layout, max_memory=budget, compression=compression, workers=4)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.xdist_group("memory")
@pytest.mark.parametrize(
    ("what", "budget"), [("shards", "32MiB"), ("columns", "8MiB"), ("mod", "16MiB")]
)
def test_a_save_takes_what_it_is_allowed(tmp_path, what, budget):
    try:
        grown = run_fresh(SAVE, str(tmp_path / "c"), what, budget).printed << 10
        assert grown < int(budget[:-3]) * MIB + 24 * MIB
    finally:
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
