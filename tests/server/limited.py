"""``reshard serve`` as a user who may not read everything, on a disk that takes small files only.

For root, who may, the right to pass over permissions is given up; a file that grows too large fails as on a full disk.
"""

from __future__ import annotations

import os
import resource
import sys

LARGEST_FILE = 16 << 20
_MARK = "TESTS_LIMITED"
_RIGHTS = "-dac_override,-dac_read_search"

if __name__ == "__main__":
    if os.geteuid() == 0 and _MARK not in os.environ:
        os.environ[_MARK] = "yes"
        rights = [f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}"]
        again = [sys.executable, "-m", "tests.server.limited", *sys.argv[1:]]
        os.execvp("setpriv", ["setpriv", *rights, *again])  # noqa: S606  without a shell on purpose
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))

    from reshard.cli import main

    main()
