"""Checkpoints as TensorFlow saves them; runs inside its environment, and imports nothing of reshard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

ShardedVariable = tf.__internal__.distribute.ShardedVariable
DTYPES = (
    "float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64", "bool", "bfloat16", "uint16",
    "complex128", "float16", "uint32", "uint64", "float8_e5m2", "float8_e4m3fn", "int4",
)  # fmt: skip


class Module(tf.Module):
    """Holds whatever it is given."""


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def save_dtypes(folder: str) -> str:
    root = tf.train.Checkpoint(model=Module())
    for dtype in DTYPES:
        values = np.arange(-3 if dtype != "bool" else 0, 9).reshape(3, -1)
        numpy_type = tf.dtypes.as_dtype(dtype).as_numpy_dtype
        setattr(root.model, dtype, tf.Variable(tf.constant(values.astype(numpy_type))))
    root.model.empty = tf.Variable(np.zeros((3, 0, 2), np.float32))
    root.model.scalar = tf.Variable(2.5)
    return root.save(f"{folder}/ckpt")


def save_names(folder: str) -> str:
    root = tf.train.Checkpoint(model=Module())
    root.model.layers = [tf.Variable(numbers(n + 1)) for n in range(12)]
    root.model.odd = {
        "a.b/c": tf.Variable(numbers(3)),
        "..": tf.Variable(numbers(4)),
        "ü": tf.Variable(numbers(5)),
    }
    root.model.text = tf.Variable("grüße")
    root.model.blob = tf.Variable(b"\xff\x00")
    root.model.words = tf.Variable(["a", "bc", ""])
    return root.save(f"{folder}/ckpt")


def save_shards(folder: str, rows: list[int]) -> str:
    """A ShardedVariable with so many rows in each shard, beside a variable that is whole."""
    root = tf.train.Checkpoint(model=Module())
    root.model.table = ShardedVariable(
        [tf.Variable(numbers(n, 6, seed=k)) for k, n in enumerate(rows)]
    )
    root.model.kernel = tf.Variable(numbers(6, 5))
    return root.save(f"{folder}/ckpt")


def save_columns(folder: str) -> str:
    """As TensorFlow 1 saves a variable that is partitioned along its columns, with the slots of Adam."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable(
            "dense/kernel", initializer=tf.constant(numbers(4, 10)),
            partitioner=tf.compat.v1.fixed_size_partitioner(3, axis=1),
        )  # fmt: skip
        bias = tf.compat.v1.get_variable("dense/bias", initializer=tf.constant(numbers(10)))
        loss = tf.reduce_sum(tf.matmul(tf.ones((2, 4)), tf.convert_to_tensor(variable)) + bias)
        train = tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
        return str(tf.compat.v1.train.Saver().save(session, f"{folder}/model.ckpt", global_step=7))


def save_loose(folder: str) -> str:
    """Slices that are no grid, in several data files."""
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=20_000)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    root = tf.train.Checkpoint(cube=tf.Variable(numbers(3, 40, 50)), small=tf.Variable(numbers(7)))
    return root.save(f"{folder}/ckpt", options=options)


def words() -> np.ndarray:
    return np.array([[f"w{row}.{n}" * (n % 3) for n in range(4)] for row in range(5)], object)


def save_strings(folder: str) -> str:
    """Strings whole and in the shards of a ShardedVariable."""
    shards = [tf.Variable(words()[:2]), tf.Variable(words()[2:4]), tf.Variable(words()[4:])]
    root = tf.train.Checkpoint(model=Module())
    root.model.words = ShardedVariable(shards)
    root.model.none = tf.Variable(np.zeros((0, 3), object))
    root.model.long = tf.Variable(np.array(["a" * 300, "", "ü"], object))
    root.model.blob = tf.Variable(b"\xff\x00")
    root.model.text = tf.Variable("text")
    return root.save(f"{folder}/ckpt")


def save_string_columns(folder: str) -> str:
    """Strings in slices of columns, as TensorFlow 1 saves them."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable(
            "words", initializer=tf.constant(words()),
            partitioner=tf.compat.v1.fixed_size_partitioner(3, axis=1),
        )  # fmt: skip
        session.run(tf.compat.v1.global_variables_initializer())
        return str(tf.compat.v1.train.Saver().save(session, f"{folder}/model.ckpt"))


def save_servers(folder: str) -> str:
    """Variables of a ParameterServerStrategy, saved by a process of its own, whose devices are others than this one's."""
    program = Path(__file__).with_name("tensorflow_servers.py")
    done = subprocess.run(
        [sys.executable, str(program), folder], capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.split()[-1]


def string_values(prefix: str) -> dict[str, Any]:
    """Every tensor of strings by its key: its shape, and the strings as TensorFlow reads them."""
    reader = tf.train.load_checkpoint(prefix)
    found = {}
    for key, dtype in reader.get_variable_to_dtype_map().items():
        if dtype == tf.string and not key.startswith("_"):
            value = np.asarray(reader.get_tensor(key), object)
            found[key] = [list(value.shape), [one.hex() for one in value.ravel()]]
    return found


def save_keras(folder: str) -> str:
    """A model of Keras 2 with its optimizer, after a step."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(5), tf_keras.layers.Dense(2)])
    model.compile(tf_keras.optimizers.legacy.Adam(0.1), "mse")
    model.fit(numbers(8, 3), numbers(8, 2), verbose=0)
    root = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    return root.save(f"{folder}/ckpt")


def _lookup() -> Any:
    return tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)


def save_shared(folder: str) -> str:
    """A variable that two paths have, a lookup table, and shards."""
    variable, table = tf.Variable(numbers(3)), _lookup()
    table.insert(["a", "b"], [1, 2])
    shards = ShardedVariable([tf.Variable(numbers(n, 6, seed=n)) for n in (3, 2, 2)])
    root = tf.train.Checkpoint(first=variable, second=variable, lookup=table, table=shards)
    return root.save(f"{folder}/ckpt")


def restored_shared(prefix: str, of_second: str, rows: list[int]) -> list[Any]:
    """What ``save_shared`` saved, its variable by the second path, and with so many rows in each shard."""
    variable, table = tf.Variable(np.zeros(3, np.float32)), _lookup()
    shards = [tf.Variable(np.zeros((n, 6), np.float32)) for n in rows]
    objects = {of_second: variable, "lookup": table, "table": ShardedVariable(shards)}
    root = tf.train.Checkpoint(**objects)
    root.restore(prefix).assert_existing_objects_matched().assert_consumed()
    found = table.lookup(tf.constant(["a", "b", "c"]))
    return [np.asarray(one) for one in (variable, found, *shards)]


def restored_without_slots(prefix: str) -> list[Any]:
    """The model of ``save_keras``, whose optimizer restores its step and hyperparameters only: what they are, and the step after another."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(5), tf_keras.layers.Dense(2)])
    model.compile(tf_keras.optimizers.legacy.Adam(0.1), "mse")
    root = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    status = root.restore(prefix)
    model.build((None, 3))
    weights = [np.array(weight) for weight in model.weights]
    model.fit(numbers(8, 3), numbers(8, 2), verbose=0)
    status.assert_nontrivial_match()
    return [*weights, np.asarray(model.optimizer.iterations)]


def latest(folder: str) -> str | None:
    """What TensorFlow takes for the latest checkpoint of a folder."""
    return tf.train.latest_checkpoint(folder)


def trained_on(folder: str, steps: list[int]) -> str:
    """Goes on from the latest checkpoint of a folder, saves these steps and keeps one; the latest then."""
    variable = tf.Variable(np.zeros(6, np.float32))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=variable), folder, max_to_keep=1)
    manager.checkpoint.restore(manager.latest_checkpoint).assert_nontrivial_match()
    for step in steps:
        manager.save(checkpoint_number=step)
    return str(manager.latest_checkpoint)


def checkpoint_values(prefix: str) -> dict[str, Any]:
    """Every tensor that is no string by its key, as its dtype, shape and bytes."""
    reader = tf.train.load_checkpoint(prefix)
    found = {}
    for key, dtype in reader.get_variable_to_dtype_map().items():
        if dtype not in (tf.string, tf.variant, tf.resource):
            value = np.asarray(reader.get_tensor(key))
            found[key] = [dtype.name, list(value.shape), np.ascontiguousarray(value).tobytes()]
    return found


def restored_shards(prefix: str, rows: list[int], columns: int) -> list[Any]:
    """The shards of ``model.table``, restored into a ShardedVariable with so many rows in each, beside ``model.kernel``."""
    shards = [tf.Variable(np.zeros((n, columns), np.float32)) for n in rows]
    root = tf.train.Checkpoint(model=Module())
    root.model.table = ShardedVariable(shards)
    root.model.kernel = tf.Variable(np.zeros((6, 5), np.float32))
    root.restore(prefix).assert_existing_objects_matched().assert_consumed()
    return [np.asarray(shard) for shard in (*shards, root.model.kernel)]


def restored_slices(prefix: str, key: str, dtype: str, specs: list[str]) -> list[Any]:
    """Slices of a tensor, each by its text, such as ``"8 6 2,3:-"``."""
    found = tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=[key] * len(specs), shape_and_slices=specs,
        dtypes=[tf.dtypes.as_dtype(dtype)] * len(specs),
    )  # fmt: skip
    return [np.asarray(one) for one in found]


def restored_by_saver(prefix: str) -> dict[str, Any]:
    """The variables of ``save_columns`` with one shard, as TensorFlow 1 restores them."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        shapes = {"dense/kernel": (4, 10), "dense/kernel/Adam": (4, 10), "dense/bias": (10,)}
        variables = {
            name: tf.compat.v1.get_variable(f"v{number}", shape)
            for number, (name, shape) in enumerate(shapes.items())
        }
        tf.compat.v1.train.Saver(variables).restore(session, prefix)
        return {name: session.run(variable) for name, variable in variables.items()}


def resumed_keras(prefix: str) -> list[Any]:
    """The weights of the model of ``save_keras`` and the slots of its optimizer, restored into new ones."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(5), tf_keras.layers.Dense(2)])
    model.compile(tf_keras.optimizers.legacy.Adam(0.1), "mse")
    model.fit(numbers(8, 3, seed=5), numbers(8, 2, seed=6), verbose=0)
    root = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    root.restore(prefix).assert_existing_objects_matched()
    weights = [*model.weights, *model.optimizer.weights]
    return [np.asarray(weight) for weight in weights]


FUNCTIONS = (
    save_dtypes, save_names, save_shards, save_columns, save_loose, save_keras, checkpoint_values, restored_shards,
    latest, trained_on, restored_slices, restored_by_saver, resumed_keras, save_shared, restored_shared, restored_without_slots, save_strings, save_string_columns, save_servers, string_values,
)  # fmt: skip
