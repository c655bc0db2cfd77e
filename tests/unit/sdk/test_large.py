"""What is cut is put together again; what never comes whole is let go."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.large import Part, Reassembler, decode_part, split


@given(
    st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5),
    st.integers(1, 50),
    st.data(),
)
def test_values_cut_and_interleaved_come_out_whole_with_all_their_offsets(
    values: list[bytes], limit: int, data: st.DataObject
) -> None:
    queues = [split(value, limit, bytes([n]) * 16) for n, value in enumerate(values)]
    reassembler = Reassembler()
    came: list[bytes] = []
    offset = 0
    seen: dict[bytes, list[int]] = {}
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        part, piece = queue.pop(0)
        assert len(piece) <= limit
        assert decode_part(part.encode()) == part
        seen.setdefault(part.id, []).append(offset)
        whole = reassembler.add(part, piece, offset)
        if whole is not None:
            came.append(whole.value)
            assert list(whole.offsets) == seen.pop(part.id)
        assert reassembler.first_pending == min((o[0] for o in seen.values()), default=None)
        offset += 1
    assert sorted(came) == sorted(values)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_part_are_a_message_like_any_other(data: bytes) -> None:
    part = decode_part(data)
    assert part is None or part.encode() == data


def test_a_part_that_comes_twice_counts_once() -> None:
    (first, one), (second, two) = split(b"ab", 1, bytes(16))
    reassembler = Reassembler()
    assert reassembler.add(first, one, 0) is None
    assert reassembler.add(first, one, 1) is None
    whole = reassembler.add(second, two, 2)
    assert whole is not None
    assert whole == (b"ab", (0, 1, 2))


def test_parts_of_a_dead_producer_do_not_hold_commits_for_ever() -> None:
    reassembler = Reassembler(limit_offsets=10)
    reassembler.add(Part(bytes(16), 0, 2, 2), b"a", 5)
    assert reassembler.give_up_old(15) == []
    assert reassembler.give_up_old(16) == [5]
    assert (reassembler.first_pending, reassembler.given_up) == (None, 1)


def test_memory_for_parts_is_bounded_and_the_oldest_go_first() -> None:
    reassembler = Reassembler(limit_bytes=3)
    for n in range(3):
        reassembler.add(Part(bytes([n]) * 16, 0, 2, 4), b"ab", n)
        reassembler.give_up_old(n)
    assert reassembler.first_pending == 2
