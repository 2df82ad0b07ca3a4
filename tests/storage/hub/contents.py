"""Files of a repository on a hub: a large one, and small ones."""

LARGE = bytes(range(256)) * 64
FILES = {"config.json": b'{"a": 1}', "folder/model.safetensors": LARGE, "folder/a b/é.txt": b"text"}
