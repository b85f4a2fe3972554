"""`kops.Array` in a process that has a CUDA context of the GPU: the same memory for other frameworks. With the real daemon, both on
the stand-in CUDA driver."""

from __future__ import annotations

import gc
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from test_daemon_cuda import driver, k, real, tensor

__all__ = ["driver", "k", "real"]


class View:
    """What another framework makes of `__cuda_array_interface__`."""

    def __init__(self, array: kops.Array) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.array = array


class Capsules:
    """What only speaks DLPack."""

    def __init__(self, array: kops.Array) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_it_is_the_same_memory(k: kops.Client, driver: Any) -> None:
    a = k.array([1.0, 2.0, 3.0, 4.0], device=0)
    interface = a.__cuda_array_interface__
    address, read_only = interface["data"]
    assert numpy.frombuffer(driver.read(address, 16), "float32").tolist() == [1, 2, 3, 4] and not read_only
    assert (interface["typestr"], interface["shape"], interface["strides"]) == ("<f4", (4,), None)
    driver.write(address, numpy.float32([5, 6, 7, 8]).tobytes())
    assert a.get().tolist() == [5, 6, 7, 8]
    part = a.reshape(2, 2).T[1:]
    assert part.__cuda_array_interface__["data"][0] == address + 4 and part.__cuda_array_interface__["strides"] == (4, 8)
    assert k.square(a).__cuda_array_interface__["data"][0] != address
    assert a.__dlpack_device__() == (2, 0)
    assert k.empty((0, 3), device=0).__cuda_array_interface__["data"][0] == 0


def test_ops_know_their_memory_again(k: kops.Client, driver: Any) -> None:
    a = k.array(numpy.arange(8, dtype="float32"), device=0)
    for other in (View(a), Capsules(a)):
        out = k.empty(8, device=0)
        assert k.add(a, other, out=out).get().tolist() == (2 * numpy.arange(8)).tolist()
        assert k.square(other, out=a) is a, "in place, of one memory"
        a.set(numpy.arange(8))
        with pytest.raises(kops.Overlap):
            k.square(View(a[1:]), out=a[:-1])


def test_torch_tensors_and_arrays_together(k: kops.Client, driver: Any) -> None:
    a, t = k.array([1.0, 2.0], device=0), tensor(driver, 3, 4)
    made = k.add(t, a)
    k.synchronize()
    assert type(made) is torch.Tensor and made.array.numpy().tolist() == [4, 6]
    assert k.add(a, t, blocking=True).get().tolist() == [4, 6]
    assert k.copy(t, out=a, blocking=True).get().tolist() == [3, 4]
    a.set(t)
    assert a.get().tolist() == [3, 4] and k.array(t, device=0).get().tolist() == [3, 4]


def test_who_looks_keeps_the_memory(k: kops.Client, driver: Any) -> None:
    a = k.array(numpy.full(1 << 20, 7, "float32"), device=0)
    capsule, address = a.__dlpack__(), a.__cuda_array_interface__["data"][0]
    del a
    gc.collect()
    k.trim()
    assert numpy.frombuffer(driver.read(address, 8), "float32").tolist() == [7, 7]
    del capsule
    gc.collect()
    k.trim()
    with pytest.raises(Exception, match="INVALID_VALUE"):
        driver.read(address, 8)


def test_dlpack_says_what_it_cannot(k: kops.Client) -> None:
    a = k.array([1.0], device=0)
    for wrong in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="where it is"):
            a.__dlpack__(**wrong)
    with k.sequence():
        b = k.square(a)
        with pytest.raises((BufferError, AttributeError), match="nothing has written|no CUDA"):
            if b._block.segment.fd >= 0:  # it lies in a segment that is there
                raise BufferError("nothing has written")
            b.__dlpack__()
