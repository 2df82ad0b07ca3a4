"""Makes Hugging Face tensors of a training tree whose layers are stacked, by a map that also reads backwards."""

import tempfile
from pathlib import Path

import numpy as np

import reshard

folder = Path(tempfile.mkdtemp())
stacked = np.arange(4 * 16 * 32, dtype=np.float32).reshape(4, 16, 32)
reshard.save(folder / "train", {"layers": {"up": {"kernel": stacked}}})

rules = {
    "map": [
        {
            "from": "layers/up/kernel",
            "to": "model.layers.{l}.mlp.up_proj.weight",
            "shape": "l in out -> out in",
        }
    ]
}
reshard.convert(folder / "train", folder / "hf", to="safetensors", map=rules)
tensors = reshard.restore(folder / "hf")
assert (tensors["model.layers.3.mlp.up_proj.weight"] == stacked[3].T).all()

reshard.convert(folder / "hf", folder / "back", to="orbax", map=rules, reverse=True)
assert reshard.verify(folder / "train", folder / "back").differences == 0
print(*sorted(tensors), sep="\n")
