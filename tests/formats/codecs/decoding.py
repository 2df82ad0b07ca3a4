"""Decodes a chunk in a fresh process, to see what memory that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from msgspec.structs import asdict

from reshard.formats.codecs import encode_chunk
from reshard.formats.contents import Encoding

_MEASURE = """
import json, sys
from reshard.formats.contents import Extent
from reshard.formats.contents import Encoding
from reshard.formats.codecs import encoded_room, open_stream
encoding, path, length, nbytes, at_once = json.loads(sys.argv[1])
encoding = Encoding(**encoding)
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024
def run(extent, nbytes, out):
    room = memoryview(bytearray(encoded_room(encoding, nbytes))) if at_once else None
    stream = open_stream(encoding, extent, nbytes, "chunk", encoded=room)
    try:
        for at in range(0, nbytes, len(out)):
            stream.readinto(out[: nbytes - at])
        stream.close_checked()
    except Exception as error:
        print(type(error).__name__, file=sys.stderr)
size = nbytes if at_once else 1 << 20
out = memoryview(bytearray(size))
out[:] = bytes(size)
small = open(path + ".small", "rb").read()
run(Extent("", 0, len(small), small), 4096, out)  # loads libraries
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
run(Extent(path, 0, length), nbytes, out)
print(status("VmHWM") - before)
"""


def growth(
    encoding: Encoding, data: bytes, nbytes: int, folder: Path, *, at_once: bool = False
) -> tuple[int, str]:
    """Bytes that the process grows by when it decodes ``data`` to ``nbytes``, and the error that it met.

    In steps of 1 MiB, or ``at_once``, what is read then included.
    """
    file, small = folder / "chunk", np.arange(1024, dtype=np.float32)
    file.write_bytes(data)
    (folder / "chunk.small").write_bytes(b"".join(encode_chunk(encoding, small.data)))
    argument = [asdict(encoding), str(file), len(data), nbytes, at_once]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, json.dumps(argument)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout), done.stderr.strip()
