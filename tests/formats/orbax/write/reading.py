"""A written checkpoint as others read it: stock Orbax v0 and v1, and TensorStore."""

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from orbax.checkpoint import v1

READERS = {
    "standard": lambda path, target=None: ocp.StandardCheckpointer().restore(path, target),
    "pytree": lambda path: ocp.PyTreeCheckpointer().restore(path),
    "v1": lambda path, target=None: v1.load(path, target) if target else v1.load(path),
}


def assert_same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert np.asarray(found).tobytes() == wanted.tobytes()


def read_array(path):
    kvstore = {"driver": "file", "path": str(path)}
    spec = {"driver": "zarr3", "kvstore": kvstore, "fill_missing_data_reads": False}
    return ts.open(spec).result().read().result()
