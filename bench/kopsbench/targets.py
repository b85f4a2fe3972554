"""The tables of the pages: what each row is called, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Records = Mapping[str, Mapping[str, Any]]

ROWS = {
    "noop_rpc_socket_sleep": "C no-op RPC, socket, all sleep",
    "noop_rpc_socket_spin": "C no-op RPC, socket, all poll",
    "noop_rpc_shm": "C no-op RPC, shared memory",
    "blocking_tiny_add_c_shm": "C blocking tiny add, shared memory",
    "blocking_mps_tiny_add_c_shm": "the same under MPS",
    "blocking_tiny_add_python": "Python blocking tiny add, torch tensors",
    "blocking_mps_tiny_add_python": "the same under MPS",
    "blocking_1us": "Python blocking square of 1 Ki floats, torch tensors",
    "blocking_32us": "of 16 Mi floats, 32 µs on the GPU",
    "blocking_126us": "of 64 Mi floats, 126 µs",
    "blocking_500us": "of 256 Mi floats, 500 µs",
    "blocking_gemm_170us": "Python blocking gemm of 4096³, bf16, 170 µs",
    "blocking_gemm_1400us": "of 8192³, bf16, 1.4 ms",
    "blocking_gemm_20ms": "of 8192³, f32, 21 ms",
    "blocking_tiny_add_python_vs_queue": "Python blocking tiny add",
    "blocking_tiny_add_python_vs_grpc": "Python blocking tiny add",
    "ordered_add_c_batch": "ordered tiny add from C, in a batch, MPS",
    "ordered_add_c_own": "ordered tiny add from C, each on its own, MPS",
    "ordered_add_python_own": "ordered tiny add from Python, each on its own, MPS",
    "ordered_add_python_batch": "ordered tiny add from Python, in a batch, MPS",
    "torch_op_eager": "`torch.ops.kops.add`, one ordered call, beside `Client.add`, MPS",
    "ordered_chain_c": "C: kernel → daemon op → kernel, pipelined, MPS",
    "ordered_chain_python": "Python: op → daemon op → op, pipelined, MPS",
    "ordered_add_c_own_time_slicing": "ordered tiny add from C, each on its own, without MPS",
    "ordered_chain_c_time_slicing": "C: kernel → daemon op → kernel, without MPS",
    "program_20_python_vs_eager": "Python program of 20 tiny ops, blocking",
    "program_20_python_vs_graph": "Python program of 20 tiny ops, blocking",
    "program_20_c_vs_launches": "C program of 20 tiny ops, blocking",
    "program_20_c_vs_graph": "C program of 20 tiny ops, blocking",
    "arrays_20_ops_64MiB": "NumPy program without CUDA: 64 MiB uploaded once, 20 ops, downloaded once",
    "timing_off_add_tiny": "rate of timed tiny adds, against a daemon without CUPTI",
    "timing_off_add_50us": "the same of 50 µs",
    "timing_off_gemm_tiny": "of gemms of 256³, bf16",
    "timing_off_gemm_50us": "of 2560³",
    "timing_off_kernel_tiny": "of tiny kernels of a user's",
    "timing_off_kernel_50us": "of 50 µs",
    "timing_python_add": "Python blocking tiny add, torch tensors, timed",
    "timing_python_gemm": "the same with a gemm of 1024³, bf16",
    "timing_python_kernel": "the same with a tiny kernel of a user's",
    "clients_4_rate": "tiny blocking adds of 4 clients: total rate",
    "clients_16_rate": "of 16 clients",
    "clients_64_rate": "of 64 clients",
    "clients_torch_4_rate": "tiny blocking adds of 4 processes with torch: total rate",
    "clients_torch_16_rate": "of 16 processes",
    "clients_torch_32_rate": "of 32 processes",
    "clients_4_jain": "fairness of 4 clients",
    "clients_16_jain": "of 16 clients",
    "clients_64_jain": "of 64 clients",
    "priority_high_beside_gemms": "high-priority tiny add beside f32 gemms of 8192³",
    "compile_cold_to_first_launch": "kernel of a user's: source to first launch, compiled now",
    "compile_cold_vs_load_inline": "the same",
    "compile_second_process": "the same, of a kernel that another process had compiled",
    "compile_second_process_vs_torch_nvrtc": "the same",
    "compile_second_process_vs_load_inline": "the same",
    "extension_load_cold": "`load_inline` of a tutorial's wrapper, compiled now",
    "extension_load_second_process": "the same, compiled by an earlier process",
    "extension_call": "call of that wrapper: checks, a new tensor, one launch",
    "compile_after_restart": "the same, of a kernel on the disk of a restarted daemon",
    "compile_node_cpu": "8 processes that start at once and need the same 20 new kernels: processor time of all",
    "compile_node_compiles": "the same: compiles",
    "kernel_launch_python_vs_builtin": "ordered launch of a user's kernel from Python, MPS",
    "kernel_launch_python_vs_torch_nvrtc": "ordered launch of a user's kernel from Python, MPS",
    "here_launch_python": "launch of a user's kernel in the caller's context, from Python, the caller's time",
    "here_launch_c": "launch of a user's kernel in the caller's context, from C",
    "here_chain_python": "torch op → user's kernel in the caller's context → torch op",
    "here_op_python": "op in the caller's process, `where=\"here\"`, issued and completed",
    "here_op_auto": "the same with `where=\"auto\"`, beside `where=\"here\"`",
    "here_torch_op": "`torch.ops.kops.add` connected with `where=\"here\"`",
    "here_chain_ops": "torch op → kops op with `where=\"auto\"` → torch op",
    "here_replay": "replay of a graph of 20 launches",
    "here_model": "model of 20 ops of torch and kops in graphs of `torch.compile`",
    "here_second_process": "user's kernel in the caller's context: source to first launch, compiled before",
    "judge_rate": "solutions that a judge judges and times, of five tasks",
    "judge_rate_vs_load_inline": "the same",
    "judge_rate_strict": "the same, a process of its own on the GPU for each",
    "judge_thousand_wrong_verdicts": "1,000 solutions of which 50 fault and 50 never end: wrong verdicts",
    "judge_thousand_trouble": "the same: errors of clients that work beside",
    "judge_thousand_stalled": "the same: their time in waits of 5 ms and more",
    "judge_spread": "a solution judged 20 times beside others' work: spread of its time",
    "kernel_launch_blocking_python_vs_builtin": "blocking launch of a user's kernel from Python",
    **{
        f"load_{kind}_{count}_connections": f"{what}, {count} connection{'s' * (count > 1)}, 2 processors"
        for kind, what in (("noop", "no-op"), ("add", "add of 16 f32, host"))
        for count in (1, 4, 16, 64, 256)
    },
    "load_noop_twice_saturation": "no-op, twice as many asked for as can be given",
    "load_add_twice_saturation": "add of 16 f32, host, twice as many asked for as can be given",
    "isolation_fault_others_wait": "another user's kernel faults: longest wait for a right answer",
}
UNITS = {"us": "µs", "calls/s": "/s", "requests/s": "/s", "Jain's index": "", "compiles": "", "count": ""}
MET = {True: "yes", False: "**no**", None: ""}


# ---- what tables have in common ----


def lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def aligned(table: str) -> str:
    """One that is read in a terminal."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "---" not in line]
    widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows)


def failed(record: Mapping[str, Any]) -> str | None:
    """What a record without a number says in its place."""
    if not record.get("error"):
        return None
    return f"failed: {record['error'].strip().splitlines()[-1][:120]}".replace("|", "\\|")


def duration(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    return f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"


def amount(value: float, unit: str) -> str:
    if unit in ("calls/s", "requests/s"):
        return f"{value / 1000:.3g} k/s" if value >= 1000 else f"{value:.3g} /s"
    return duration(value) if unit == "us" else f"{value:.3g} {UNITS.get(unit, unit)}".strip()


def side(summary: Mapping[str, Any] | None, unit: str) -> str:
    if not summary:
        return ""
    (p50, *of), (p99, *same) = amount(summary["p50"], unit).split(), amount(summary["p99"], unit).split()
    return " ".join([p50, f"({p99})", *of] if of == same else [p50, *of, f"({' '.join([p99, *same])})"])


def target(record: Mapping[str, Any]) -> str:
    if record["target"] is None:
        return ""
    if record["better"] == "same":
        return f"± {amount(record['target'], record['unit'])}"
    sign = "≤" if record["better"] == "lower" else "≥"
    bounds = record["detail"].get("target_bounds")
    if bounds:
        which = f" {bounds.split('.')[-1]}" if bounds.endswith(("p99", "max")) else ""
        return f"{sign} {amount(record['target'], record['unit'])}{which}"
    return f"{sign} {record['target']:g} ×"


# ---- the table of targets ----


HEAD = ("measure", "against", "kopsd p50 (p99)", "peer p50 (p99)", "ratio", "target", "met")


def rows_of(labels: Mapping[str, str], records: Records) -> list[tuple[str, ...]]:
    """Of the records that are there, in the order of the labels."""
    rows: list[tuple[str, ...]] = []
    for name, label in labels.items():
        if (record := records.get(name)) is None:
            continue
        if failed(record):
            rows.append((label, failed(record) or "", *[""] * 5))
            continue
        peer, unit = record["peer"], record["unit"]
        against = (peer.get("name") or "").replace("_", " ") if peer else "–"
        ratio = "" if record["ratio"] is None else f"{record['ratio']:.3g} ×"
        rows.append((label, against, side(record["ours"], unit), side(peer, unit), ratio, target(record), MET[record["met"]]))
    return rows


def markdown(records: Records, *, everything: bool = False) -> str:
    """The rows with a target; `everything`: all."""
    labels = {**ROWS, **{name: name for name in records if everything and name not in ROWS}}
    rows = []
    for label, against, ours, peer, ratio, bound, met in rows_of(labels, records):
        if everything or met or not ours:
            wanted = f"{bound}: **no**" if met == MET[False] else bound
            last = f"{ratio} ({wanted})" if ratio and wanted else ratio or wanted
            rows.append((label, ours or against, f"{against} {peer}" if peer else "", last))
    table = lines(("measure", "kopsd p50 (p99)", "peer", "ratio (target)"), rows)
    missing = [name for name in ROWS if name not in records]
    return table + (f"\n\nNot measured: {', '.join(missing)}." if missing else "")


def waits(hosts: Sequence[Records]) -> str:
    """Blocking calls by how long the work takes, a column for each host, whose names are letters in the order of their records."""

    def cell(record: Mapping[str, Any]) -> str:
        if not record or record.get("error"):
            return ""
        detail = record["detail"]
        processors = detail["processor_us_a_call"] / detail["processor_us_a_call_peer"]
        missed = " and ".join(what for what, met in (("p50", record["met"]), ("p99", detail["p99_met"])) if not met)
        return f"{record['ratio']:.3g} ×, {processors:.2g} ×" + (f", **{missed}**" if missed else "")

    names = [name for name in ROWS if any("processor_us_a_call" in found.get(name, {}).get("detail", {}) for found in hosts)]
    rows = [(ROWS[name], *(cell(found.get(name, {})) for found in hosts)) for name in names]
    return lines(("measure", *"ABCDEFGH"[: len(hosts)]), rows)


# ---- one user beside another ----


def beside(side: Mapping[str, Any], failures: Any, ended: Any) -> str:
    """p50 and p99 of the user that works; what failed is said in their place."""
    what = f"no answer for {duration(side['p99'])}" if failures else f"{duration(side['p50'])}, {duration(side['p99'])}"
    return what + (f"; the daemon ended with status {ended}" if ended is not None else "")


def neighbours(records: Records, *, worst: bool = False) -> str:
    """The rows of `bench/run neighbours`, beside those of the user alone. `worst`: rows over half of the lowest target, others in a line"""
    rows: list[tuple[str, ...]] = []
    rest: list[float] = []
    chosen = {name: record for name, record in records.items() if name.startswith("neighbours_")}
    lowest = min((record["target"] for record in chosen.values() if record.get("unit") == "us" and record["target"]), default=0)
    for name, record in chosen.items():
        if failed(record):
            rows.append((name, "", failed(record) or "", ""))
            continue
        detail, met = record["detail"], MET[record["met"]]
        if record["unit"] == "share":
            rows.append(("adds on 64 connections: share of the user with 1", "", f"{record['ours']['p50']:.2g}", met))
        elif worst and record["met"] and record["ours"]["p99"] <= lowest / 2:
            rest.append(record["ours"]["p99"])
        else:
            now = beside(record["ours"], detail["failures"], detail["daemon_ended"])
            rows.append((detail["measured"].split(": ", 1)[1], beside(record["peer"], None, None), now, met))
    if rest:
        rows.append((f"each of {len(rest)} other attacks", "", f"p99 {duration(max(rest))} at most", MET[True]))
    return lines(("while the other user does", "alone: p50, p99", "now: p50, p99", "met"), rows)


HARM = {
    "fault": "a kernel faults",
    "fault_no_spare": "the same, no executor is ready to take over",
    "hang": "a kernel never ends, deadline 100 ms",
}
FELT = {
    "reply": "its reply",
    "next_good": "until the next good reply",
    "others_wait": "the others' longest wait for a right answer",
    "other_kernels_wait": "the same of others whose own kernels wait for a turn",
    "others_calls": "the others' calls",
    "trouble": "errors, wrong answers and reconnections of the others",
}


def isolation(records: Records) -> str:
    """The records of `bench/run isolation`."""
    rows = []
    for name, what in HARM.items():
        for key, felt in FELT.items():
            record = records.get(f"isolation_{name}_{key}")
            if record and not record.get("error"):
                ours = record["ours"]
                numbers = [ours["p50"], ours["p99"], ours.get("max", ours["p99"])]
                text = ", ".join(amount(number, record["unit"]) for number in (numbers if len(set(numbers)) > 1 else numbers[:1]))
                rows.append((what, felt, text, target(record), MET[record["met"]]))
                what = ""
    return lines(("another user's kernel", "measured", "p50, p99, largest", "target", "met"), rows)


# ---- gemm as it was tuned ----


def tuned(records: Records) -> str:
    """The records of `bench/run gemm_tuned`: a line a shape (m × n × k), a column a type, in each cell the ratio to torch.mm and what
    the tuning chose."""
    cells: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        dtype, _, shape = name.removeprefix("gemm_tuned_").partition("_")
        if name.startswith("gemm_tuned_") and shape != "tuning" and not record.get("error"):
            cells.setdefault(shape, {})[dtype] = f"{record['ratio']:.2f} × ({record['detail']['chosen'].split(',')[0]})"
    dtypes = list(dict.fromkeys(dtype for row in cells.values() for dtype in row))
    rows = [[shape if "x" in shape else f"{shape}³", *(row.get(dtype, "") for dtype in dtypes)] for shape, row in cells.items()]
    return lines(["shape", *dtypes], rows)


# ---- ten of them, for the first page ----

BRIEF = {
    "blocking_tiny_add_python": "a blocking add of 1024 floats from Python, torch tensors",
    "blocking_126us": "a blocking square of 64 Mi floats, 126 µs on the GPU",
    "blocking_gemm_170us": "a blocking gemm of 4096³, bf16, 170 µs on the GPU",
    "blocking_tiny_add_python_vs_queue": "small blocking adds asked of another process, a second",
    "here_chain_python": "torch op → your kernel, launched in this process → torch op",
    "ordered_chain_c_time_slicing": "kernel → op in the daemon → kernel from C, **without** MPS",
    "ordered_add_python_own": "an add on torch's stream, asynchronous, under MPS",
    "ordered_add_python_batch": "the same in `with k.batch():`",
    "compile_second_process_vs_torch_nvrtc": "first launches of a kernel that another process had compiled, a second",
    "isolation_fault_others_wait": "another user's kernel faults: longest wait for a right answer",
}
# What to divide by, from where on, and what the unit is called then.
LARGER = {"us": (1000, "ms"), "GFLOP/s": (1000, "TFLOP/s"), "calls/s": (1000, "k/s")}


def readable(value: float, unit: str) -> str:
    step = LARGER.get(unit)
    if step and value >= step[0]:
        return f"{value / step[0]:.3g} {step[1]}"
    return f"{value:.3g} {UNITS.get(unit, unit)}".replace(" /s", " a second")


def brief(records: Records) -> str:
    """Medians only. A measure without a record is an error: the page would say less than it promises."""
    rows = []
    for name, label in BRIEF.items():
        record = records[name]
        unit, peer, ours = record["unit"], record["peer"], readable(record["ours"]["p50"], record["unit"])
        if not peer:
            rows.append((label, ours, "", ""))
            continue
        who = (peer.get("name") or "").replace("torch.cuda._compile_kernel", "`torch.cuda._compile_kernel`")
        other = f"{who.replace('_', ' ') if '`' not in who else who}: {readable(peer['p50'], unit)}"
        ratio = f"{record['ratio']:.0f}" if record["ratio"] >= 10 else f"{record['ratio']:.2g}"
        rows.append((label, ours, other, f"{ratio} × the {'time' if record['better'] == 'lower' else 'rate'}"))
    return lines(("measure", "kopsd", "beside it", "kopsd is"), rows)
