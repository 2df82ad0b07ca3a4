"""One process of three with two devices each, whose arrays lie in some of them: ``stage_member.py INDEX COUNT ADDRESS PATH``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import reshard

INDEX, COUNT, ADDRESS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def on(*processes: int) -> Mesh:
    """The devices of these processes."""
    devices = [d for d in jax.devices() if d.process_index in processes]
    return Mesh(np.array(devices).reshape(len(processes), 2), ("p", "d"))


def shardings() -> dict[str, jax.sharding.Sharding]:
    rows, columns = PartitionSpec(("p", "d")), PartitionSpec(None, ("p", "d"))
    last = next(d for d in jax.devices() if d.process_index == COUNT - 1)
    return {
        "first": NamedSharding(on(0), rows),
        "second": NamedSharding(on(1), columns),
        "last": NamedSharding(on(2), PartitionSpec("d")),
        "pair": NamedSharding(on(1, 2), rows),
        "ends": NamedSharding(on(0, 2), PartitionSpec("d", None)),
        "everywhere": NamedSharding(on(0, 1, 2), columns),
        "device": SingleDeviceSharding(last),
    }


SHAPES = {
    "first": (8, 6), "second": (5, 8), "last": (4,), "pair": (512, 1024), "ends": (600, 512),
    "everywhere": (7, 12), "device": (3, 3),
}  # fmt: skip


def spread(data: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(
        data.shape, sharding, lambda index: data[index], dtype=data.dtype
    )


def tree() -> dict[str, Any]:
    arrays = {name: spread(values(*SHAPES[name]), s) for name, s in shardings().items()}
    keys = spread(np.arange(8, dtype=np.uint32).reshape(4, 2), shardings()["last"])
    more = {"keys": jax.random.wrap_key_data(keys), "copy": jax.numpy.arange(6.0), "count": 7}
    return {**arrays, **more, "plain": values(2, 2)}


def save(root: Path) -> str:
    reshard.save(root / "saved", tree(), timeout=60)
    handle = reshard.save(root / "later", tree(), wait=False, timeout=60)
    assert handle is not None
    handle.wait()
    reshard.save(root / "alone", {"second": tree()["second"]}, timeout=60)
    return "done"


def likes() -> dict[str, Any]:
    return {
        n: jax.ShapeDtypeStruct(SHAPES[n], np.float32, sharding=s) for n, s in shardings().items()
    }


def checked(found: dict[str, jax.Array]) -> str:
    """Compares what this process has with the values, and tells how many shards that is."""
    counts = []
    for name, array in sorted(found.items()):
        assert array.sharding == shardings()[name], name
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(shard.data), values(*SHAPES[name])[shard.index]
            )
        counts.append(f"{name} {len(array.addressable_shards)}")
    return ", ".join(counts)


def restore(root: Path) -> str:
    return checked(reshard.restore(root / "saved", like=likes(), unexpected="ignore"))


def unlike(root: Path) -> str:
    """Process 2 has it with process 1, which has it alone."""
    places = [(0,), (1,), (1, 2)]
    array = spread(values(4), NamedSharding(on(*places[INDEX]), PartitionSpec()))
    reshard.save(root / "unlike", {"odd": array}, timeout=60)
    return "done"


def main() -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(ADDRESS, COUNT, INDEX)
    scenarios: tuple[Callable[[Path], str], ...] = (save, restore, unlike)
    for scenario in scenarios:
        try:
            said = scenario(Path(sys.argv[4]))
        except reshard.ReshardError as error:
            said = f"{type(error).__name__}: {error}".replace("\n", " ")
        print(f"{scenario.__name__}: {said}", flush=True)


if __name__ == "__main__":
    main()
