"""Kernels for compute capability 9.0 on a GPU: tensor maps against what torch computes, cooperative launches and early
launches."""

from __future__ import annotations

from typing import Any

import hopper_sources as sources
import kops
import pytest

BOX = "tma const float* in_[][] box[32][32]"
GRID = ("ceil_div(in_.shape[1], 32)", "ceil_div(in_.shape[0], 32)")


@pytest.fixture(autouse=True)
def only_where_it_can_be(kernels_are_served: None, torch: Any) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the GPU is older than compute capability 9.0")


def up(n: int) -> int:
    return (n + 31) // 32 * 32


def outside(torch: Any, m: Any, fill: float) -> Any:
    """The matrix with what a map reads around it."""
    wanted = torch.full((up(m.shape[0]), up(m.shape[1])), float(fill), device="cuda")
    wanted[: m.shape[0], : m.shape[1]] = m
    return wanted


def copier(k: Any, more: str = "", entry: str = "copy_boxes") -> Any:
    signature = f"out float* out, {BOX} {more}, int width"
    return k.kernel(sources.BOXES, entry, signature, grid=GRID, block=128)


# ---- tensor maps ----


@pytest.mark.parametrize("where", ["daemon", "here"])
@pytest.mark.parametrize("shape", [(32, 32), (64, 96), (33, 36), (1, 4), (1000, 2052)])
def test_boxes_are_copied(torch: Any, k: Any, shape: tuple[int, int], where: str) -> None:
    m = torch.randn(shape, device="cuda")
    out = torch.full((up(shape[0]), up(shape[1])), float("nan"), device="cuda")
    copier(k)(out, m, out.shape[1], where=where)
    assert torch.equal(out, outside(torch, m, 0))


@pytest.mark.parametrize(("more", "entry", "fill"), [("fill nan", "copy_boxes", float("nan")), ("swizzle 128 l2 256", "copy_swizzled", 0)])
def test_slices_and_what_is_around_them(torch: Any, k: Any, more: str, entry: str, fill: float) -> None:
    m = torch.randn(80, 200, device="cuda")[3:73, 8:108]
    out = torch.full((96, 128), 7.0, device="cuda")
    copier(k, more, entry)(out, m, 128)
    assert torch.equal(out.nan_to_num(-7), outside(torch, m, fill).nan_to_num(-7))


@pytest.mark.parametrize("where", ["daemon", "here"])
def test_both_ways(torch: Any, k: Any, where: str) -> None:
    kern = k.kernel(sources.BOXES, "square_boxes", f"tma out float* out[][] box[32][32], {BOX}", grid=GRID, block=128)
    m, out = torch.randn(50, 60, device="cuda"), torch.full((50, 64), float("nan"), device="cuda")
    kern(out[:, :60], m, where=where)
    assert torch.equal(out[:, :60], m * m) and out[:, 60:].isnan().all()


def test_a_program_on_other_memory(torch: Any, k: Any) -> None:
    kern = k.kernel(sources.BOXES, "square_boxes", f"tma out float* out[][] box[32][32], {BOX}", grid=GRID, block=128)
    m, other = (torch.rand(64, 64, device="cuda") + 0.5 for _ in range(2))
    b, c = torch.empty_like(m), torch.empty_like(m)
    with k.program() as p:
        kern(b, m)
        kern(c, b)
    for _ in range(3):
        p.run()
    assert torch.equal(c, (m * m) * (m * m))
    for _ in range(3):
        p.run([(m, other)])
    assert torch.equal(c, (other * other) * (other * other))


def test_captured_in_a_graph(torch: Any, k: Any) -> None:
    m, out = torch.randn(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    kern = copier(k)
    kern(out, m, 64, where="here")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kern(out, m, 64)
    m.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, m)


# ---- cooperative launches ----


@pytest.mark.parametrize("where", ["daemon", "here"])
def test_a_grid_synchronises(torch: Any, k: Any, where: str) -> None:
    kern = k.kernel(sources.GRID_SUM, "grid_sum", "out float* sum[1], out float* parts[multiprocessors], const float* numbers[n], int n",
                    grid="multiprocessors", block=256, cooperative=True)  # fmt: skip
    numbers = torch.randint(0, 8, (1_000_003,), device="cuda").float()
    total, parts = torch.zeros(1, device="cuda"), torch.zeros(4096, device="cuda")
    for _ in range(50):
        total.zero_()
        kern(total, parts, numbers, numbers.numel(), where=where)
        assert total.item() == numbers.double().sum().item()  # exact: below 2^24
    with pytest.raises(kops.OutOfRange, match="run at one time"):
        kern(total, torch.zeros(1 << 20, device="cuda"), numbers, numbers.numel(), grid=1 << 20, where=where, **blocking(where))


def blocking(where: str) -> dict[str, Any]:
    return {} if where == "here" else {"blocking": True}


# ---- programmatic dependent launches ----


@pytest.mark.parametrize("form", ["sequence", "program", "one by one"])
def test_a_chain_is_in_order(torch: Any, k: Any, form: str) -> None:
    n = 1 << 20
    kern = k.kernel(sources.CHAIN, "add_one", "out float* out[n], const float* in_[n], int n", grid="ceil_div(n, 256)", block=256, pdl=True)
    x = [torch.zeros(n, device="cuda") for _ in range(9)]

    def chain() -> None:
        for before, after in zip(x, x[1:]):
            kern(after, before, n)

    program = None
    for turn in range(20):
        x[0].fill_(turn)
        if form == "sequence":
            with k.sequence(timing=True) as s:
                chain()
            assert s.timings.gpu_us > 0
        elif form == "program":
            if program is None:
                with k.program() as program:
                    chain()
            program.run()
        else:
            chain()
        k.synchronize()
        assert (x[8] == turn + 8).all()
