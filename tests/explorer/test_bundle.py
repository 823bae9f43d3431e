"""What is packed can be read by offsets alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from asking_explorer import unpacked
from pixalign.explorer.bundle import pack


@given(
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.one_of(
            arrays(np.float32, array_shapes(min_dims=0, max_side=5)),
            arrays(np.uint8, array_shapes(max_side=7)),
        ),
        max_size=4,
    ),
)
def test_what_is_packed_is_found_again(header, given_):
    header.pop("arrays", None)
    read, found = unpacked(pack(header, given_))
    assert {name: read[name] for name in header} == header
    assert found.keys() == given_.keys()
    for name, values in given_.items():
        np.testing.assert_array_equal(found[name], values)


def test_files_are_bytes():
    _, found = unpacked(pack({}, {"picture": b"abc", "other": b""}))
    assert found["picture"].tobytes() == b"abc"
    assert found["other"].size == 0
