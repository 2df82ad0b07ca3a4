"""Another number of shards for a checkpoint of TensorFlow, beside TensorFlow itself."""
