"""Children of one template for all tests of a session, as each would otherwise import everything anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from reshard_server.worker.children import Children


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    started = Children()
    yield started
    started.close()


class Lent:
    """The children of the session, as an application has them: they stay when it closes."""

    def __init__(self, children: Children) -> None:
        self.launch, self.start = children.launch, children.start

    def close(self) -> None: ...
