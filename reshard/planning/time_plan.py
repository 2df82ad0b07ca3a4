"""TimePlan: the time of a conversion on many hosts, and its bottleneck; Hosts: the hosts that run it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from reshard.answers.record import Json, Record
from reshard.arguments import check_positive
from reshard.errors import PlanError

Bottleneck = Literal["cores", "network", "store"]

MOST_HOSTS = 1_000_000
MOST_NIC_BYTES_PER_S = 1e18


class TimePlan(Record, frozen=True):
    """The time of a conversion: processors, network and store work at the same time, and the slowest decides.

    Attributes:
        hosts: number of hosts that share the tasks.
        cores: processors of each host that run tasks.
        nic_bytes_per_s: bandwidth of each host's network interface, in each direction; None if unknown.
        cores_s: seconds of the tasks over all processors, but at least those of the longest task.
        network_s: seconds in which the busier direction of each host's network carries its share of the bytes; None without
            ``nic_bytes_per_s``.
        store_s: seconds in which buckets answer the requests, by their latency and by the limits that clouds publish; None
            without a bucket, since no limits of file systems are known.
    """

    JSON: ClassVar[Json] = Json(
        (
            "hosts",
            "cores",
            "nic_bytes_per_s",
            "cores_s",
            "network_s",
            "store_s",
            "seconds",
            "bottleneck",
        )
    )

    hosts: int
    cores: int
    nic_bytes_per_s: float | None
    cores_s: float
    network_s: float | None = None
    store_s: float | None = None

    def after(self, core_s: float) -> TimePlan:
        """The same plan, plus so many processor seconds that one host spends after the tasks, on all of its cores."""
        return replace(self, cores_s=self.cores_s + core_s / self.cores) if core_s else self

    @property
    def seconds(self) -> float:
        """The largest of the three; it leaves out the start of the program and syncing to disk."""
        return max(self.by_part.values())

    @property
    def bottleneck(self) -> Bottleneck:
        """The part that takes longest; of equal ones the first of cores, network and store."""
        known = self.by_part
        return max(known, key=lambda part: known[part])

    @property
    def by_part(self) -> dict[Bottleneck, float]:
        """The known seconds of the three parts."""
        found: dict[Bottleneck, float | None] = {
            "cores": self.cores_s, "network": self.network_s, "store": self.store_s,
        }  # fmt: skip
        return {part: seconds for part, seconds in found.items() if seconds is not None}


class Hosts(Struct, frozen=True):
    """The hosts of a conversion. ``checked`` makes it from a user's numbers.

    Attributes:
        count: number of hosts that share the tasks.
        cores: processors of each; a host has at most one busy processor for each of the plan's workers.
        nic_bytes_per_s: bandwidth of each host, in each direction; None if unknown.
    """

    count: int = 1
    cores: int = 1
    nic_bytes_per_s: float | None = None

    @classmethod
    def checked(cls, hosts: Any, cores: Any, nic_bytes_per_s: Any) -> Hosts:
        """Hosts of these numbers; PlanError for impossible ones."""
        check_positive("hosts", hosts, "hosts that share the work, such as 16")
        check_positive("cores", cores, "processors of each host, such as 8")
        if max(hosts, cores) > MOST_HOSTS:
            raise PlanError(
                f"there are more than {MOST_HOSTS:,} hosts, or cores in a host; expected at most so many of each"
            )
        if nic_bytes_per_s is not None and not _is_rate(nic_bytes_per_s):
            raise PlanError(
                f"nic_bytes_per_s is {nic_bytes_per_s!r}; expected bytes per second above 0, such as 12.5e9, or None if "
                "it is not known"
            )
        return cls(hosts, cores, nic_bytes_per_s)


def _is_rate(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MOST_NIC_BYTES_PER_S
