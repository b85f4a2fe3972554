"""The tables of the documents: PROTOCOL.md and docs/ops.md have them between `<!-- generated: NAME -->` and `<!-- end -->`."""

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


def params_table(params: list[dict]) -> str:
    rows = []
    for p in params:
        default = "required" if p.get("required") else json.dumps(p["default"]) if "default" in p else ""
        bounds = [f"≥ {p['min']}"] if "min" in p else []
        bounds += [f"≤ {p['max']}"] if "max" in p else []
        rows.append([f"`{p['key']}`", ", ".join([p["type"], *bounds]), default, p["doc"]])
    return markdown_table(["key", "type", "default", "meaning"], rows)


def type_name(of: str | dict) -> str:
    """What a result's `of` or `values` says: a type, a list of something, or a map of results.json."""
    if isinstance(of, dict):
        return f"{of['type']} of {type_name(of['of'])}"
    return of if of in TYPES else f"{of} map"


def result_type(field: dict) -> str:
    if "values" in field:
        return f"map of {type_name(field['values'])}"
    if field["type"] == "list":
        return f"list of {type_name(field['of'])}"
    return f"{field['of']} map" if "of" in field else field["type"]


def present(field: dict) -> str:
    if "with" in field:
        return "with " + ", ".join(f"`{condition}`" for condition in field["with"])
    return "always" if field.get("required") else ""


def result_table(fields: list[dict]) -> str:
    rows = [[f"`{f['key']}`", result_type(f), present(f), f.get("doc", "")] for f in fields]
    return markdown_table(["key", "type", "present", "meaning"], rows)


def methods_section(methods: list[dict], maps: list[dict]) -> str:
    out = []
    for m in methods + maps:
        title = f"### `{m['name']}`" if "result" in m else f"### The {m['name']} map"
        asked = {"tune": " For those who may tune, see Access.", "administer": " For administrators, see Access."}
        out += [title, "", m["doc"] + asked.get(m.get("class", "use"), ""), ""]
        if m["params"] == "any":
            out += ["Params: any map.", ""]
        elif not m["params"]:
            out += ["Params: an empty map.", ""]
        else:
            out += [params_table(m["params"]), ""]
        if m.get("result") == "any":
            out += ["Result: the same map.", ""]
        elif m.get("result"):
            out += ["Result:", "", result_table(m["result"]), ""]
        elif "result" in m:
            out += ["Result: an empty map.", ""]
    return "\n".join(out).rstrip()


def out_dtypes_text(op: dict) -> str:
    rows = [f"{d}: {' or '.join(outs)}" for d, outs in op.get("out_dtypes", {}).items()]
    return f"dtypes of the outputs, where they may be others: {'; '.join(rows)}. " if rows else ""


def in_dtypes_text(op: dict) -> str:
    rows = [f"`{name}`: {' or '.join(dtypes)}" for name, dtypes in op.get("in_dtypes", {}).items()]
    return f"dtypes of inputs that have their own: {'; '.join(rows)}. " if rows else ""


def ops_section(ops: list[dict]) -> str:
    out = []
    for o in ops:
        out += [f"### `{o['name']}`: {o['summary']}", "", o["doc"], "",
                f"Inputs: {', '.join(f'`{i}`' for i in o['inputs'])}. Outputs: {', '.join(f'`{i}`' for i in o['outputs'])}. "
                f"dtypes: {', '.join(o['dtypes'])}. {in_dtypes_text(o)}{out_dtypes_text(o)}Arithmetic: {o['flops']}.", ""]
        if o["attrs"]:
            rows = [[f"`{a['name']}`", " / ".join(a["choices"]) if a["type"] == "choice" else a["type"], json.dumps(a["default"]), a["doc"]] for a in o["attrs"]]
            out += [markdown_table(["attribute", "type", "default", "meaning"], rows), ""]
        rows = [[d, t.get("rtol", 0), t.get("scaled", 0), t.get("atol", 0)] for d, t in o["tolerance"].items()]
        for precision, table in tolerances_of(o)[1:]:
            rows += [[f"{d}, precision {precision}", t.get("rtol", 0), t.get("scaled", 0), t.get("atol", 0)] for d, t in table.items()]
        out += [markdown_table(["dtype", "rtol", "scaled", "atol"], rows), ""]
    return "\n".join(out).rstrip()


def ops_summary(ops: list[dict]) -> str:
    rows = [[f"`{o['name']}`", f"`{o['summary']}`", ", ".join(o["dtypes"]), ", ".join(f"`{a['name']}`" for a in o["attrs"]) or "none"] for o in ops]
    return markdown_table(["op", "meaning", "dtypes", "attributes"], rows)


def metrics_section(metrics: list[dict]) -> str:
    rows = [[f"`{m['name']}`", m["type"], ", ".join(f"`{label}`" for label in m["labels"]), m["help"]] for m in metrics]
    return markdown_table(["metric", "type", "labels", "meaning"], rows)


def errors_section(errors: list[dict]) -> str:
    return markdown_table(["code", "value", "raised by", "meaning"], [[f"`{e['name']}`", e["value"], e["origin"], e["doc"]] for e in errors])


def fill_markers(path: Path, sections: dict[str, str]) -> str:
    def fill(match: re.Match) -> str:
        name = match.group(1)
        if name not in sections:
            raise SystemExit(f"generate.py: {path.name}: no section `{name}`")
        return f"<!-- generated: {name} -->\n{sections[name]}\n<!-- end -->"

    text = path.read_text(encoding="utf-8")
    return re.sub(r"<!-- generated: (\S+) -->\n.*?<!-- end -->", fill, text, flags=re.S)


def sections(
    *, methods: list[dict], maps: list[dict], results: list[dict], ops: list[dict], errors: list[dict], dtypes: list[dict],
    metrics: list[dict], kernels: dict,
) -> dict[str, str]:  # fmt: skip
    """The sections by name. `maps` are those that methods.json has, `results` those of results.json."""
    return {"methods": methods_section(methods, maps), "ops": ops_section(ops), "ops-summary": ops_summary(ops),
            **{f"result-{m['name']}": result_table(m["fields"]) for m in results},
            "errors": errors_section(errors), "metrics": metrics_section(metrics),
            "kernel-limits": markdown_table(["limit", "at most", "of"],
                                            [[f"`{k['name']}`", k["value"], k["doc"]] for k in kernels["limits"] if not k.get("internal")]),
            "dtypes": markdown_table(["dtype", "bytes", "meaning"], [[d["name"], d["size"], d["doc"]] for d in dtypes])}
