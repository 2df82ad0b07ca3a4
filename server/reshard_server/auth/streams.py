"""The number of streams that may be open at once, in all and per token."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_server.auth.slots_per_token import Places, too_many

REMEDY = "try again later, or poll with If-None-Match"


@dataclass(eq=False)
class OpenStream:
    """A stream that counts as open until ``give_back``."""

    places: Places
    token: str

    def give_back(self) -> None:
        """It is over."""
        self.places.give_back(self.token)


class Streams:
    """The streams of this process; used from its event loop only."""

    def __init__(self, places: Places) -> None:
        self._places = places

    @property
    def open(self) -> int:
        """How many are open."""
        return self._places.taken

    def take(self, token: str) -> OpenStream:
        """Opens one; ProblemError where there are as many as may be."""
        if not self._places.take_now(token):
            raise too_many("streams", "streams are open", self._places, token, REMEDY, 5)
        return OpenStream(self._places, token)
