"""``python -m tests.sabotage`` (``command.py``)."""

import sys

from tests.sabotage.command import main

if __name__ == "__main__":
    sys.exit(main())
