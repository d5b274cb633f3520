"""Bodies of replies, unpacked in whatever pieces they come."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.body import STEP, Unpacker, whole_answer
from harness.errors import TransportFault

TEXT = '{"choices":[{"message":{"content":"标签"}}]}'.encode()
BARE = zlib.compress(TEXT)[2:-4]
BODIES = [
    ("", TEXT),
    ("gzip", TEXT),
    ("gzip", gzip.compress(TEXT)),
    ("X-GZip", gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])),
    ("gzip", zlib.compress(TEXT)),
    ("deflate", zlib.compress(TEXT)),
    ("deflate", gzip.compress(TEXT)),
    ("deflate", BARE),
    ("br", TEXT),
]


@given(st.sampled_from(BODIES), st.sets(st.integers(1, 200)))
def test_body_is_the_same_in_whatever_pieces_it_comes(body, cuts):
    """Cut anywhere, packed or only said to be, and in either form of deflate."""
    coding, data = body
    unpacker = Unpacker(coding, 10**6)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert b"".join(map(unpacker.unpack, pieces)) == TEXT


@pytest.mark.parametrize("more", range(0, 260, 20))
@pytest.mark.parametrize("window", [-15, 15, 31])
def test_end_that_is_unpacked_in_a_step_of_its_own_is_not_lost(window, more):
    """zlib may have read all that came and still hold up to 258 bytes of what it is."""
    body = b"x" * (STEP + more)
    packer = zlib.compressobj(wbits=window)
    assert Unpacker("deflate", 2 * STEP).unpack(packer.compress(body) + packer.flush()) == body


@pytest.mark.parametrize("data", [gzip.compress(b" " * 2000), b" " * 1001], ids=["packed", "plain"])
def test_body_beyond_its_bounds_is_left(data):
    """Of what comes, and of what it unpacks to."""
    with pytest.raises(TransportFault) as caught:
        Unpacker("gzip", 1000).unpack(data)
    assert caught.value.kind == "too_large"


CHUNK = b'{"choices":[{"delta":{"content":"x"}}]}'


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (TEXT, TEXT),
        (b" \r\n" + TEXT + b"\n", TEXT),
        (b": a {\r\n\r\n: b\n" + TEXT + b"\n\n: c }\n\ndata: [DONE]\n\n", TEXT),
        (TEXT + TEXT, None),
        (TEXT + b"\n" + TEXT, None),
        (TEXT[:-1], None),
        (b"x" + TEXT, None),
        (b"data: " + TEXT, None),
        (CHUNK, None),
        (b'{"choices":[]}', None),
        (b'{"error":{"message":"busy"}}', None),
        (b"[" + TEXT + b"]", None),
        (b"", None),
    ],
)
def test_whole_answer_is_one_object_and_nothing_else(body, answer):
    """Two objects are none, a chunk of a stream is none, and neither is half an object."""
    found = whole_answer(body)
    assert (found and found.strip()) == answer
