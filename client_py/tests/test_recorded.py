"""What a recorded call returns says that it has no content yet, and is an array like any other once it has."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import kops
import numpy
import pytest

READS = {
    "add": lambda c: c + 1,
    "in place": lambda c: c.__iadd__(1),
    "sum": lambda c: c.sum(),
    "concatenate": lambda c: numpy.concatenate([c, c]),
    "tolist": lambda c: c.tolist(),
    "a number": lambda c: c[0, 0],
    "of a view": lambda c: c[1:].T.mean(),
    "iterate": lambda c: list(c),
    "compare": lambda c: c == 0,
    "bool": lambda c: bool(c[0, :1]),
    "copy": lambda c: c.copy(),
    "deepcopy": lambda c: copy.deepcopy(c),
    "pickle": lambda c: pickle.dumps(c),
    "astype": lambda c: c.astype("f8"),
    "out": lambda c: numpy.add(1, 1, out=c[0, :1]),
    "mask": lambda c: c[c > 0],
}


@pytest.fixture
def a(k: kops.Client) -> Any:
    return k.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_too_early_is_refused(k: kops.Client, a: Any, read: Any) -> None:
    with k.sequence():
        c = k.add(a, a)
        with pytest.raises(kops.BadArgument, match="written when its `with` block ends"):
            read(c)
    read(c)


def test_the_text_says_so(k: kops.Client, a: Any) -> None:
    with k.sequence() as s:
        c = k.add(a, a)
        text = "<kops: 2×2 float32, written when its `with` block ends>"
        assert repr(c) == str(c) == f"{c}" == text and text in repr([c])
        assert c[0, 0:1].shape == (1,) and "written" in str(c.T)
    assert str(c) == "[[2. 4.]\n [6. 8.]]" and repr(c) == "array([[2., 4.],\n       [6., 8.]], dtype=float32)"
    assert s.results[0] is c


def test_what_is_seen_from_outside_works_at_once(k: kops.Client, a: Any) -> None:
    with k.sequence():
        c = k.add(a, a)
        assert c.shape == (2, 2) and c.dtype == "float32" and len(c) == 2 and c.nbytes == 16 and c.flags.c_contiguous
        assert numpy.shape(c) == (2, 2) and isinstance(c, numpy.ndarray) and numpy.shares_memory(c, c[1:])
        d = k.gemm(c.T, c[:, ::-1][:, ::-1])
    assert numpy.array_equal(d, (2 * a).T @ (2 * a))


def test_afterwards_it_is_an_array(k: kops.Client, a: Any) -> None:
    with k.sequence():
        c = k.square(a)
    assert type(c + 1) is numpy.ndarray and type(c.copy()) is numpy.ndarray and type(numpy.sort(c)) is numpy.ndarray
    assert c.sum() == 30 and c.max() == 16 and c[1, 1] == 16 and list(c[0]) == [1, 4] and (c @ c).shape == (2, 2)
    assert type(pickle.loads(pickle.dumps(c))) is numpy.ndarray
    c += 1
    assert c.tolist() == [[2, 5], [10, 17]]
    assert k.square(c[0]).tolist() == [4, 25]


def test_given_outputs_are_left_as_they_are(k: kops.Client, a: Any) -> None:
    out = k.zeros((2, 2))
    with k.sequence():
        assert k.square(a, out=out) is out and type(out) is numpy.ndarray and out.sum() == 0
    assert out.sum() == 30
    (c,) = k.sequence([("square", a)])
    assert type(c) is numpy.ndarray and c.sum() == 30


def test_a_program(k: kops.Client, a: Any) -> None:
    with k.program() as p:
        c = k.square(a)
    assert str(c) == "<kops: 2×2 float32, written with its first run()>"
    with pytest.raises(kops.BadArgument, match=r"first run\(\)"):
        c.sum()
    p.run()
    assert c.sum() == 30
    p.run([(a, k.array([[2.0, 2.0], [2.0, 2.0]]))])
    assert c.tolist() == [[4, 4], [4, 4]]
