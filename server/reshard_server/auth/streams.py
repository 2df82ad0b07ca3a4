"""Limits how many streams may be open at once, in all and per token."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_server.auth.slots_per_token import Slots, too_many

REMEDY = "try again later, or poll with If-None-Match"


@dataclass(eq=False)
class OpenStream:
    """A stream; it counts as open until ``give_back``."""

    slots: Slots
    token: str

    def give_back(self) -> None:
        """Ends the count."""
        self.slots.give_back(self.token)


class Streams:
    """The streams of this process; used from its event loop only."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self._slots.taken

    def take(self, token: str) -> OpenStream:
        """Opens a stream; ProblemError if a limit is reached."""
        if not self._slots.take_now(token):
            raise too_many("streams", "streams are open", self._slots, token, REMEDY, 5)
        return OpenStream(self._slots, token)
