"""Two processes of four devices each: every process keeps only the shards of its devices."""

from __future__ import annotations

import json
import textwrap

from tests.process_groups import run_group

CODE = """
    import json, sys
    import jax
    import numpy as np
    from reshard import DeviceMesh, TensorLayout, distribute_tensor

    rank, address = int(sys.argv[1]), sys.argv[3]
    jax.distributed.initialize(address, num_processes=2, process_id=rank)
    value = np.arange(64.0).reshape(8, 8)  # float64, of which jax keeps float32
    mesh = DeviceMesh((4, 2), ("data", "model"))
    layout = TensorLayout(("data", "model"), mesh)
    host = distribute_tensor(value, layout)
    local = distribute_tensor(jax.numpy.asarray(value), layout)
    same = distribute_tensor(host, layout) is host
    turned = distribute_tensor(host, TensorLayout((None, "data"), mesh))
    total = jax.jit(lambda v: distribute_tensor(v, layout).sum(), out_shardings=None)(host)

    def right(array):
        return all(np.array_equal(s.data, value[s.index]) for s in array.addressable_shards)

    print(json.dumps({
        "devices": len(host.sharding.device_set),
        "mine": sorted(s.device.id for s in host.addressable_shards),
        "right": [right(a) for a in (host, local, turned)],
        "dtypes": [str(a.dtype) for a in (host, local, turned)],
        "same": same,
        "total": float(total.addressable_data(0)),
    }))
    jax.distributed.shutdown()
"""


def test_each_process_holds_its_part() -> None:
    printed = run_group(2, ["-c", textwrap.dedent(CODE)])
    found = [json.loads(lines.splitlines()[-1]) for lines in printed]
    for answer in found:
        assert answer["devices"] == 8
        assert answer["right"] == [True] * 3
        assert answer["dtypes"] == ["float32"] * 3
        assert answer["same"]
        assert answer["total"] == 64 * 63 / 2
    assert [len(answer["mine"]) for answer in found] == [4, 4]
    assert not set(found[0]["mine"]) & set(found[1]["mine"])
