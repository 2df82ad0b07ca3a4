"""``python -m tests.recorded record FILE`` and ``compare FILE``: whether a change of the code changes what the engine does.

``record`` carries out every use of ``uses.py`` and writes what it left, said and read. ``compare`` does it again,
prints each difference, and exits 1 if there is any.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path

# Before jax is imported, as tests/conftest.py does: eight devices, none of them an accelerator.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=__doc__)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()

    from tests.recorded.record import differences, read, record, write
    from tests.recorded.uses import USES

    # What is said is recorded; the log and warnings say it again.
    logging.disable()
    warnings.simplefilter("ignore")
    file, began = given.file.absolute(), time.monotonic()
    found = record(USES)
    print(f"{len(found)} uses in {time.monotonic() - began:.0f} s", file=sys.stderr)
    if given.what == "record":
        write(file, found)
        return 0
    told = list(differences(read(file), found))
    print("\n".join(told or ["no difference"]))
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
