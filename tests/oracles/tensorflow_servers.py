"""A ParameterServerStrategy whose servers are all in this process; runs inside TensorFlow's environment, as a program of its own.

It prints the prefix of a checkpoint of variables that are partitioned over two servers. The servers have no end, so the process has none
either but the one at the bottom.
"""

from __future__ import annotations

import os
import socket
import sys

import numpy as np
import tensorflow as tf

KEPT: list[socket.socket] = []
"""Bound to the servers' addresses until the end, so that no other process gets one before its server listens."""


def kept_address() -> str:
    """An address of this machine that nobody listens at; gRPC's servers do although it is bound."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("localhost", 0))
    KEPT.append(found)
    return f"localhost:{found.getsockname()[1]}"


def strategy_of(servers: int, shards: int) -> tf.distribute.Strategy:
    """A strategy for one worker and these parameter servers, which are started."""
    jobs = {"worker": 1, "ps": servers}
    cluster = tf.train.ClusterSpec(
        {job: [kept_address() for _ in range(n)] for job, n in jobs.items()}
    )
    for job, count in jobs.items():
        for task in range(count):
            tf.distribute.Server(cluster, job_name=job, task_index=task, protocol="grpc")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(shards)
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def main(folder: str) -> None:
    table = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
    with strategy_of(servers=2, shards=3).scope():
        root = tf.train.Checkpoint(
            table=tf.Variable(table), half=tf.Variable(np.arange(14, dtype=np.float16)),
            step=tf.Variable(np.int64(3)),
        )  # fmt: skip
    devices = [variable.device for variable in root.table.variables]
    assert {device.split("/")[3] for device in devices} == {"task:0", "task:1"}, devices
    print(root.save(f"{folder}/ckpt"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
