"""OpenedViews: planned views that are kept open, at most a number of them; used from one event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from reshard_server.views.catalogue import ServedView

Plan = Callable[[], Coroutine[Any, Any, ServedView]]


class OpenedViews(OrderedDict[str, asyncio.Task[ServedView]]):
    """The views that were asked for last, by their ids; each is planned once, however many clients wait for it.

    A view that makes room for another is closed once nothing holds its ``ServedView`` any more, so that no stream loses its view.
    """

    async def view(self, commit: str, most: int, plan: Plan) -> ServedView:
        """The view of this id, planned now if it is not open; at most ``most`` stay. Raises the errors of ``plan`` to all that wait."""
        if commit not in self:
            self[commit] = asyncio.create_task(plan())
            self[commit].add_done_callback(partial(self._drop_failed, commit))
        task = self[commit]
        self.move_to_end(commit)
        while len(self) > most:
            self.popitem(last=False)
        return await asyncio.shield(task)  # others wait for it, even if this client leaves

    def _drop_failed(self, commit: str, task: asyncio.Task[ServedView]) -> None:
        if self.get(commit) is task and (task.cancelled() or task.exception() is not None):
            del self[commit]
