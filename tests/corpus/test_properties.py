"""Whatever bytes stand in a file, each parser lets them in or refuses them with its own error, and
nothing else."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.fuzz import authors, bodies, cities, plan_replies, replies, residents, streams, tasks
from bench.fuzz.mutate import mutated

TARGETS = (authors, bodies, cities, plan_replies, replies, residents, streams, tasks)
ONES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def cut(seed: bytes, at: float, junk: bytes) -> bytes:
    """Bytes put into a good input."""
    place = int(at * len(seed))
    return seed[:place] + junk + seed[place + len(junk) // 2 :]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__.rpartition(".")[2])
def test_any_change_of_a_good_input_is_read_or_refused(target):
    """Bytes put into it anywhere, and its JSON changed at a place or two."""

    @ONES
    @given(
        st.sampled_from(target.SEEDS), st.floats(0, 1), st.binary(max_size=8), st.integers(0, 2**32)
    )
    def reads(seed: bytes, at: float, junk: bytes, number: int) -> None:
        for data in (cut(seed, at, junk), junk, mutated(seed, Random(number)) or b""):
            try:
                target.run(data)
            except target.EXPECTED:
                continue

    reads()
