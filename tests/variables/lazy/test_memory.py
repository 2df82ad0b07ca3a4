"""Peak memory of a lazily created model in a fresh process: its shards once, and no full tensor."""

from __future__ import annotations

import pytest

from tests.campaigns import campaign
from tests.fresh_process import run_fresh

pytestmark = pytest.mark.xdist_group("memory")

MIB = 1 << 20

MAKE = """
    import json, os, sys
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # what is read from it counts, too
    import jax, jax.numpy as jnp, numpy as np, reshard
    from jax.sharding import NamedSharding, PartitionSpec
    from reshard.variables import Variable, materialize, named_variables
    from reshard.variables import create

    how, count, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    mesh = reshard.DeviceMesh((8,), ("x",), jax.devices())
    layouts = reshard.LayoutMap(mesh)
    layouts["w"] = ("x",)
    sharding = layouts["w"].backend_layout

    def lazy(count, rows):
        with layouts.scope():
            root = {f"w{i}": Variable(jnp.ones, (rows, 4096)) for i in range(count)}
        return [v.value for v in named_variables(materialize(root)).values()]

    def traced(count, rows):
        with layouts.scope():
            made = create(lambda: {f"w{i}": jnp.ones((rows, 4096)) for i in range(count)})
        return list(made.values())

    def normal(count, rows):
        draw = jax.nn.initializers.lecun_normal()
        with layouts.scope():
            root = {f"w{i}": Variable(draw, (rows, 4096), key=jax.random.key(i)) for i in range(count)}
        return [v.value for v in named_variables(materialize(root)).values()]

    def eager(count, rows):
        return [jax.device_put(Variable(jnp.ones, (rows, 4096)).value, sharding) for _ in range(count)]

    def memory(field):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith(field))

    def clear_peak():
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")

    make = {"lazy": lazy, "traced": traced, "normal": normal, "eager": eager}[how]
    make(1, 8)
    before = memory("VmRSS")
    clear_peak()
    arrays = make(count, rows)
    peak = memory("VmHWM") - before
    arrays = jax.live_arrays()
    shards = [shard.data.nbytes for a in arrays for shard in a.addressable_shards]
    print(json.dumps({"peak": peak, "held": sum(shards), "largest": max(shards)}))
"""


@pytest.mark.parametrize(
    ("how", "count", "rows", "allowed"),
    [
        ("lazy", 1, 8192, 1.15),
        ("traced", 4, 2048, 1.15),
        ("normal", 16, 512, 1.8),  # what threefry needs beside the result, in shards, of one of 16
        *campaign(("lazy", 4, 2048, 1.15), ("traced", 1, 8192, 1.15)),
    ],
)
def test_the_shards_exist_once_and_nothing_else(
    how: str, count: int, rows: int, allowed: float
) -> None:
    total = count * rows * 4096 * 4
    found = run_fresh(MAKE, how, str(count), str(rows)).printed
    assert total == 128 * MIB
    assert 0.9 * total < found["peak"] <= allowed * total
    assert found["largest"] == total // count // 8
    assert found["held"] <= total + MIB


def test_making_it_whole_and_handing_it_out_would_need_more() -> None:
    total = 128 * MIB
    assert run_fresh(MAKE, "eager", "1", "8192").printed["peak"] > 1.6 * total
