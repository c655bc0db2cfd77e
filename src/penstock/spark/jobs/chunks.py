"""Divide the offsets that a job has to read into chunks, one for each transaction. Pure."""

from collections.abc import Mapping

from penstock.model.ids import TopicPartition
from penstock.spark.offsets import Offsets


def next_chunk(
    at: Mapping[TopicPartition, int], after: Offsets, most: int
) -> tuple[Offsets, Offsets]:
    """Return where the next chunk starts and ends.

    A chunk has at most `most` offsets, an equal share of what is left in each partition.
    """
    left = {place: after[place] - at[place] for place in sorted(after) if after[place] > at[place]}
    share = max(1, most // max(1, len(left)))
    start, end, room = {}, {}, most
    for place, rest in left.items():
        taken = min(rest, share, room)
        if taken > 0:
            start[place], end[place] = at[place], at[place] + taken
            room -= taken
    return start, end
