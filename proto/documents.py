"""The tables and lists of the documents: PROTOCOL.md, docs/ops.md and docs/stats.md have them between `<!-- generated: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import json
import re
from pathlib import Path

TYPES = {"uint", "int", "float", "bool", "str", "bin", "map", "list", "device", "any"}


def tolerances_of(op: dict) -> list[tuple[str, dict]]:
    """By the attribute `precision`, where an op has it; "" is of all values without one of their own."""
    own = {key.removeprefix("tolerance_"): table for key, table in op.items() if key.startswith("tolerance_")}
    return [("", op["tolerance"]), *own.items()]


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    out += ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(out)


def bounds_of(param: dict) -> str:
    if "min" in param and "max" in param:
        return f" {param['min']}–{param['max']}"
    return f" ≥ {param['min']}" if "min" in param else f" ≤ {param['max']}" if "max" in param else ""


def param_type(param: dict) -> str:
    """The type with its bounds; `?` where the key has no default and may be left out."""
    optional = "" if param.get("required") or "default" in param else "?"
    return f"{param['type']}{optional}{bounds_of(param)}" + (f", default {json.dumps(param['default'])}" if "default" in param else "")


def fields_list(rows: list[tuple[str, str, str]]) -> str:
    """A list of (key, type, meaning). Neighbours of one type and meaning share a line, as do keys that are as in another method."""
    kept: list[list[str]] = []
    elsewhere: dict[str, list[str]] = {}
    for key, kind, meaning in rows:
        if re.fullmatch(r"As in `\w+`\.", meaning):
            elsewhere.setdefault(meaning[:-1], []).append(f"`{key}`")
        elif kept and kept[-1][1:] == [kind, meaning]:
            kept[-1][0] += f", `{key}`"
        else:
            kept.append([f"`{key}`", kind, meaning])
    lines = [f"- {keys} ({kind})" + (f": {meaning}" if meaning else "") for keys, kind, meaning in kept]
    return "\n".join(lines + [f"- {where}: {', '.join(keys)}." for where, keys in elsewhere.items()])


def params_list(params: list[dict]) -> str:
    return fields_list([(p["key"], param_type(p), p.get("doc", "")) for p in params])


def type_name(of: str | dict) -> str:
    """What a result's `of` or `values` says: a type, a list of something, or a map of results.json."""
    return f"{of['type']} of {type_name(of['of'])}" if isinstance(of, dict) else of


def result_type(field: dict) -> str:
    """The type; `?` where the key may be absent."""
    if "with" in field:
        optional = ", with " + " or ".join(f"`{condition}`" for condition in field["with"])
    else:
        optional = "" if field.get("required") else "?"
    if "values" in field:
        return f"map of {type_name(field['values'])}{optional}"
    if field["type"] == "list":
        return f"list of {type_name(field['of'])}{optional}"
    return field.get("of", field["type"]) + optional


def result_list(fields: list[dict]) -> str:
    return fields_list([(f["key"], result_type(f), f.get("doc", "")) for f in fields])


def columns_section(declared: dict) -> str:
    lines = [f"- `{c['key']}`" + (f": {c['doc']}" if c.get("doc") else "") for c in declared["columns"]]
    return "\n".join([declared["doc"], "", *lines])


def methods_section(methods: list[dict], maps: list[dict]) -> str:
    out = []
    for m in methods + maps:
        title = f"### `{m['name']}`" if "result" in m else f"### The {m['name']} map"
        asked = {"tune": " Class tune.", "administer": " Class administer."}
        out += [title, "", m["doc"] + asked.get(m.get("class", "use"), ""), ""]
        if m["params"] and m["params"] != "any":
            out += [params_list(m["params"]), ""]
        if m.get("result") and m["result"] != "any":
            out += ["Result:", "", result_list(m["result"]), ""]
    return "\n".join(out).rstrip()


FLOATS = ["f32", "f64", "f16", "bf16"]
INTEGERS = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"]


def dtypes_text(names: list[str]) -> str:
    """The names; the four floats and the eight integers by one word each."""
    groups = [(word, members) for word, members in (("floats", FLOATS), ("integers", INTEGERS)) if set(members) <= set(names)]
    grouped = {n for _, members in groups for n in members}
    return ", ".join([word for word, _ in groups] + [n for n in names if n not in grouped])


def dtypes_section(dtypes: list[dict]) -> str:
    """A line each, but one for the integers."""
    integers = "- " + ", ".join(f"`{d['name']}` ({d['size']})" for d in dtypes if d["name"] in INTEGERS) + ": signed and unsigned integers"
    lines = [integers if d["name"] == INTEGERS[0] else f"- `{d['name']}` ({d['size']}): {d['doc']}"
             for d in dtypes if d["name"] not in INTEGERS[1:]]
    return "\n".join(lines)


def out_dtypes_text(op: dict) -> str:
    rows = [f"{d}: {' or '.join(outs)}" for d, outs in op.get("out_dtypes", {}).items()]
    return f"Output dtypes: {'; '.join(rows)}. " if rows else ""


def in_dtypes_text(op: dict) -> str:
    rows = [f"`{name}`: {' or '.join(dtypes)}" for name, dtypes in op.get("in_dtypes", {}).items()]
    return f"Input dtypes: {'; '.join(rows)}. " if rows else ""


def outputs_text(outputs: list[str]) -> str:
    """Nothing where there is `out` alone, as the page says."""
    return "" if outputs == ["out"] else f"Outputs: {', '.join(f'`{name}`' for name in outputs)}. "


def tolerance_text(table: dict[str, dict]) -> str:
    """Of each dtype; those that are computed exactly are named last, together."""
    inexact = {dtype: [f"{name} {t[name]}" for name in ("rtol", "scaled", "atol") if t.get(name)] for dtype, t in table.items()}
    texts = [f"{dtype} {', '.join(parts)}" for dtype, parts in inexact.items() if parts]
    rest = "" if all(inexact.values()) else "the others exact" if texts else "exact"
    return "; ".join([*texts, rest] if rest else texts)


def ops_section(ops: list[dict]) -> str:
    """A section for each op. Attributes and tolerances that an earlier op has, too, are named by that op."""
    out: list[str] = []
    seen: dict[str, str] = {}

    def first(what: object, name: str) -> str | None:
        """The op that had this before; None where this is the first."""
        before = seen.setdefault(json.dumps(what), name)
        return None if before == name else before

    for o in ops:
        out += [f"### `{o['name']}`: {o['summary']}", "", o["doc"], "",
                f"Inputs: {', '.join(f'`{i}`' for i in o['inputs'])}. {outputs_text(o['outputs'])}"
                f"dtypes: {dtypes_text(o['dtypes'])}. {in_dtypes_text(o)}{out_dtypes_text(o)}Arithmetic: {o['flops']}.", ""]
        elsewhere: dict[str, list[str]] = {}
        for a in o["attrs"]:
            if before := first(a, o["name"]):
                elsewhere.setdefault(before, []).append(f"`{a['name']}`")
                continue
            of = " or ".join(a["choices"]) if a["type"] == "choice" else a["type"]
            out.append(f"- `{a['name']}` ({of}, default {json.dumps(a['default'])}): {a['doc']}")
        out += [f"- As of `{before}`: {', '.join(names)}." for before, names in elsewhere.items()]
        out += [""] * bool(o["attrs"])
        for precision, table in tolerances_of(o):
            of = f" with precision {precision}" if precision else ""
            before = first([precision, table], o["name"])
            out += [f"Tolerance{of}: {f'as of `{before}`' if before else tolerance_text(table)}.", ""]
    return "\n".join(out).rstrip()


def ops_summary(ops: list[dict]) -> str:
    rows = [[f"`{o['name']}`", f"`{o['summary']}`", dtypes_text(o["dtypes"]), ", ".join(f"`{a['name']}`" for a in o["attrs"]) or "none"] for o in ops]
    return markdown_table(["op", "meaning", "dtypes", "attributes"], rows)


def metrics_section(metrics: list[dict]) -> str:
    return "\n".join(f"- `{m['name']}" + (f"{{{','.join(m['labels'])}}}" if m["labels"] else "") + f"`: {m['help']}" for m in metrics)


def errors_section(errors: list[dict]) -> str:
    return "\n".join(f"- `{e['name']}` ({e['value']}): {e['doc']}" for e in errors)


def fill_markers(path: Path, sections: dict[str, str]) -> str:
    def fill(match: re.Match) -> str:
        name = match.group(1)
        if name not in sections:
            raise SystemExit(f"generate.py: {path.name}: no section `{name}`")
        return f"<!-- generated: {name} -->\n{sections[name]}\n<!-- end -->"

    text = path.read_text(encoding="utf-8")
    return re.sub(r"<!-- generated: (\S+) -->\n.*?<!-- end -->", fill, text, flags=re.S)


def sections(
    *, methods: list[dict], maps: list[dict], results: list[dict], lists: list[dict], ops: list[dict], errors: list[dict], dtypes: list[dict],
    metrics: list[dict], kernels: dict,
) -> dict[str, str]:  # fmt: skip
    """The sections by name. `maps` are those that methods.json has, `results` those of results.json, `lists` its columns."""
    return {"methods": methods_section(methods, maps), "ops": ops_section(ops), "ops-summary": ops_summary(ops),
            **{f"result-{m['name']}": result_list(m["fields"]) for m in results},
            **{f"columns-{m['name']}": columns_section(m) for m in lists},
            "errors": errors_section(errors), "metrics": metrics_section(metrics),
            "kernel-limits": "\n".join(f"- `{k['name']}` ({k['value']}): {k['doc']}" for k in kernels["limits"] if not k.get("internal")),
            "dtypes": dtypes_section(dtypes)}
