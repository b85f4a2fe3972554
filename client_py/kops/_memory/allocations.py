"""The device memory that was exported, by address.

`allocations` caches it, keyed on device, base address and buffer id. A pointer is looked up by address
and believed only when its buffer id (one driver call, well under a microsecond) is still the same: an address can be
reused after a free, a buffer id never is. So the second call on a tensor asks the driver for that id and sends ids
only. Of virtual memory, whose chunks come and go one by one, those that the tensor touches are asked for. Entries whose
memory is gone are released when something new is exported, and by `sweep`. Thread-safe.
"""

from __future__ import annotations

import bisect
import os
import threading

from .device_pool import DeviceSegment
from .driver import Driver
from .exports import Allocation, export
from .pool import release


class Allocations:
    """Exported allocations by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: tuple[list[int], list[Allocation]] = ([], [])  # replaced, never changed
        self._mapped: tuple[list[int], list[DeviceSegment]] = ([], [])  # the daemon's memory that is mapped here; replaced
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver()
        return self._driver

    def find(self, pointer: int) -> Allocation | DeviceSegment:
        """The allocation that holds the pointer; exports it when it is new. Where it has chunks, cover() is needed. Memory that is
        the daemon's is known to it."""
        if self._mapped[0]:
            starts, segments = self._mapped
            i = bisect.bisect_right(starts, pointer) - 1
            if i >= 0 and pointer < starts[i] + segments[i].size:
                return segments[i]
        driver = self._driver or self.driver
        starts, found = self._table
        i = bisect.bisect_right(starts, pointer) - 1
        if i >= 0:
            allocation = found[i]
            if pointer < allocation.end and (allocation.chunks or driver.buffer_id(pointer) == allocation.id):
                return allocation
        return self.cover(pointer, 1)

    def cover(self, pointer: int, nbytes: int) -> Allocation:
        """One allocation that holds all of these bytes, as they are now."""
        driver = self._driver or self.driver
        starts, found = self._table
        i = bisect.bisect_right(starts, pointer) - 1
        if i >= 0 and found[i].holds(driver, pointer, nbytes):
            return found[i]
        with self._lock:
            self._sweep(driver)
            return self._add(driver, pointer, nbytes)

    def _add(self, driver: Driver, pointer: int, nbytes: int) -> Allocation:
        found = self._table[1]
        allocation = next((a for a in found if a.holds(driver, pointer, nbytes)), None)
        if allocation is not None:
            return allocation  # another thread was faster
        allocation = export(driver, pointer, nbytes)
        while others := [a for a in found if a.base < allocation.end and allocation.base < a.end]:
            # Chunks of two tensors that overlap: one registration for both, so that the daemon sees that they share memory.
            found = [a for a in found if a not in others]
            base = min(allocation.base, *(a.base for a in others))
            end = max(allocation.end, *(a.end for a in others))
            if (base, end) != (allocation.base, allocation.end):
                allocation = export(driver, base, end - base)
            for other in others:
                release(other)
        self._keep(sorted([*found, allocation], key=lambda a: a.base))
        return allocation

    def forget(self, allocation: Allocation) -> None:
        """Drops an entry that a daemon called stale; the next use exports it anew."""
        with self._lock:
            self._keep([a for a in self._table[1] if a is not allocation])
        release(allocation)

    def sweep(self) -> None:
        """Releases the entries whose memory is gone."""
        if self._driver is not None:
            with self._lock:
                self._sweep(self._driver)

    def _sweep(self, driver: Driver) -> None:
        gone = [a for a in self._table[1] if not a.is_alive(driver)]
        if gone:
            self._keep([a for a in self._table[1] if a not in gone])
            for allocation in gone:
                release(allocation)

    def _keep(self, left: list[Allocation]) -> None:
        self._table = ([a.base for a in left], left)

    def mapped(self, segment: DeviceSegment, there: bool) -> None:
        """Memory of the daemon's was mapped in this process, at its `base`, or is to be unmapped."""
        with self._lock:
            left = [one for one in self._mapped[1] if one is not segment] + [segment] * there
            left.sort(key=lambda one: one.base)
            self._mapped = ([one.base for one in left], left)

    def after_fork(self) -> None:
        """A child has no use of its parent's CUDA memory."""
        self.__init__()  # type: ignore[misc]


allocations = Allocations()
os.register_at_fork(after_in_child=allocations.after_fork)
