"""What a node's clock says beside the driver's, as far as that can be known from questions and answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Apart:
    """The driver's CLOCK_MONOTONIC less the node's lies between the two, in ns."""

    least: int
    most: int

    @property
    def middle(self) -> int:
        return (self.least + self.most) // 2

    @property
    def uncertain(self) -> int:
        """How far the middle may be off."""
        return (self.most - self.least + 1) // 2


def seen(asked: int, node: int, answered: int) -> Apart:
    """The node's clock was read between the question and the answer, which the driver's has timed."""
    return Apart(asked - node, answered - node)


def narrowed(readings: list[Apart]) -> Apart:
    """By several readings at about one time, all of which are true."""
    least, most = max(one.least for one in readings), min(one.most for one in readings)
    if least > most:  # a clock was set meanwhile, or runs otherwise: the last one is as true as any
        return readings[-1]
    return Apart(least, most)


def over(times: list[Apart]) -> Apart:
    """From the first to the last of these, between which one clock may have gained on the other."""
    return Apart(min(one.least for one in times), max(one.most for one in times))
