"""What a program does with TensorFlow: restore into other shards, and save. ``tensorflow_shards SOURCE TARGET ROWS COLUMNS SHARDS``.

Runs in the environment of TensorFlow.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Restore the ShardedVariable ``table`` of a checkpoint into so many shards, and write another checkpoint."""
    import numpy as np
    import tensorflow as tf

    source, target = sys.argv[1:3]
    rows, columns, shards = map(int, sys.argv[3:])
    parts = [rows // shards + (number < rows % shards) for number in range(shards)]
    variables = [tf.Variable(tf.zeros((part, columns))) for part in parts]
    root = tf.train.Checkpoint(table=tf.__internal__.distribute.ShardedVariable(variables))
    root.read(source).assert_existing_objects_matched()
    root.write(target)
    print(np.asarray(variables[0][0, 0]))


if __name__ == "__main__":
    main()
