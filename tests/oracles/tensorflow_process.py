"""Runs inside the environment of TensorFlow: one JSON request a line in, one JSON answer a line out.

Nothing of reshard is imported here. Standard output is kept for answers alone; what TensorFlow
prints goes to standard error.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the Keras that has dtensor
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import numpy as np  # noqa: E402  after the environment is set
import tensorflow as tf  # noqa: E402  after the environment is set
import tensorflow_checkpoints  # noqa: E402  after the environment is set

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
ShardedVariable = tf.__internal__.distribute.ShardedVariable
PARTITIONERS = {
    "fixed": tf.distribute.experimental.partitioners.FixedShardsPartitioner,
    "min": tf.distribute.experimental.partitioners.MinSizePartitioner,
    "max": tf.distribute.experimental.partitioners.MaxSizePartitioner,
}


def decoded(value: Any) -> Any:
    """Arrays, slices and the rest of an index from their JSON forms."""
    if isinstance(value, list):
        return [decoded(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        data = np.frombuffer(base64.b64decode(value["array"]), value["dtype"])
        return data.reshape(value["shape"])
    if "slice" in value:
        return slice(*value["slice"])
    return Ellipsis if "ellipsis" in value else {k: decoded(v) for k, v in value.items()}


def encoded(value: Any) -> Any:
    """Arrays and bytes in their JSON form, also within lists and dicts; other values as they are."""
    if isinstance(value, dict):
        return {name: encoded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [encoded(v) for v in value]
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tf.Tensor | tf.Variable | np.ndarray):
        found = np.ascontiguousarray(value)
        shape = list(np.shape(value))
        text = base64.b64encode(found.tobytes()).decode()
        return {"array": text, "dtype": found.dtype.name, "shape": shape}
    return value


def partition(kind: str, arguments: list[Any], shape: list[int], dtype: str, axis: int) -> Any:
    made = PARTITIONERS[kind](*arguments)
    return [int(n) for n in made(tf.TensorShape(shape), tf.dtypes.as_dtype(dtype), axis)]


def index(shards: list[Any], items: list[Any], single: bool) -> Any:
    variable = ShardedVariable([tf.Variable(s) for s in shards])
    return encoded(variable[items[0] if single else tuple(items)])


def change(shards: list[Any], method: str, arguments: list[Any]) -> Any:
    """Every shard after one method was called."""
    variable = ShardedVariable([tf.Variable(s) for s in shards])
    if "scatter" in method:
        indices, values = arguments
        arguments = [tf.IndexedSlices(tf.constant(values), tf.constant(indices))]
    getattr(variable, method)(*arguments)
    return [encoded(v) for v in variable.variables]


def shards_after(shards: list[Any], method: str, arguments: list[Any]) -> Any:
    """Every shard after one method was called, whether it raised or not."""
    variable = ShardedVariable([tf.Variable(s) for s in shards])
    with contextlib.suppress(Exception):
        getattr(variable, method)(*arguments)
    return [encoded(v) for v in variable.variables]


def sparse_read(shards: list[Any], indices: Any) -> Any:
    return encoded(
        ShardedVariable([tf.Variable(s) for s in shards]).sparse_read(tf.constant(indices))
    )


def embedding_lookup(
    shards: list[Any], ids: Any, strategy: str, max_norm: float | None, plain: bool
) -> Any:
    """From a list of plain tables, or from a ShardedVariable of them."""
    tables: Any = [tf.Variable(s) for s in shards]
    tables = tables if plain else ShardedVariable(tables)
    lookup = tf.compat.v1.nn.embedding_lookup
    return encoded(lookup(tables, ids, partition_strategy=strategy, max_norm=max_norm))


def lookup_in_function(shards: list[Any], ids: Any, strategy: str) -> Any:
    variable = ShardedVariable([tf.Variable(s) for s in shards])
    lookup = tf.compat.v1.nn.embedding_lookup
    return encoded(tf.function(lambda i: lookup(variable, i, partition_strategy=strategy))(ids))


def construct(shards: list[Any]) -> Any:
    made = ShardedVariable([tf.Variable(s) for s in shards], name="v")
    dtype = made.dtype.name
    return {"shape": made.shape.as_list(), "dtype": dtype, "name": made.name}


def of_lists(shards: list[Any]) -> Any:
    variable = ShardedVariable([tf.Variable(s) for s in shards])
    return [encoded(v) for v in variable.variables]


def saved_as(shards: list[Any], count: int, folder: str) -> Any:
    """Every shard of a variable of ``count`` shards, restored from a checkpoint of these."""
    whole = np.concatenate(shards)
    saved = ShardedVariable([tf.Variable(s) for s in shards])
    path = tf.train.Checkpoint(v=saved).save(f"{folder}/c")
    fresh = [np.zeros_like(s) for s in np.array_split(whole, count)]
    restored = ShardedVariable([tf.Variable(s) for s in fresh])
    tf.train.Checkpoint(v=restored).restore(path).assert_consumed()
    return [encoded(v) for v in restored.variables]


def operate(name: str, shards: list[Any], other: Any) -> Any:
    import operator

    variable = ShardedVariable([tf.Variable(s) for s in shards])
    return encoded(getattr(operator, name)(variable, other))


def dtensor_model(kind: str, parts: list[Any], rules: list[Any]) -> Any:
    """The axes of every weight of a model that was made in a scope, as ``layer/weight``."""
    from dtensor_process import model_axes

    return model_axes(kind, parts, rules)


def dtensor_case(name: str) -> Any:
    """What the Keras of dtensor answers to a row of ``docs/reference/compared-with-keras-and-tensorflow.md``."""
    from dtensor_process import CASES

    return CASES[name]()


FUNCTIONS: dict[str, Any] = {
    f.__name__: f
    for f in (
        partition,
        index,
        change,
        shards_after,
        sparse_read,
        embedding_lookup,
        lookup_in_function,
        construct,
        dtensor_case,
        dtensor_model,
        of_lists,
        saved_as,
        operate,
        *tensorflow_checkpoints.FUNCTIONS,
    )
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    arguments = {key: decoded(value) for key, value in request["arguments"].items()}
    try:
        return {"value": encoded(FUNCTIONS[request["function"]](**arguments))}
    except Exception as error:  # noqa: BLE001  what TensorFlow raises is an answer too
        return {"error": type(error).__name__, "text": str(error)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
