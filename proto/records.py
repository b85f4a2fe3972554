"""Results as records: structs and tables with which the daemon writes them, and the classes that Python reads them into."""

from __future__ import annotations

import textwrap

C_TYPES = {"uint": "uint64_t ", "float": "double ", "bool": "bool ", "str": "const char *"}  # others are struct rpc_values
C_WORDS = {"default"}
PYTHON_TYPES = {"uint": ("int", "0"), "float": ("float", "0.0"), "bool": ("bool", "False"), "str": ("str", '""'), "any": ("Any", "None")}


def fields_of(declared: dict) -> list[dict]:
    return declared["result"] if "result" in declared else declared["fields"]


def doc_of(declared: dict) -> str:
    return declared["doc"] if "fields" in declared else f"The result of `{declared['name']}`."


def in_order(declared: list[dict], maps: dict[str, dict], nested: tuple[str, ...]) -> list[dict]:
    """Each behind those that fields of the types `nested` contain."""
    ordered: list[dict] = []

    def add(one: dict) -> None:
        for field in fields_of(one):
            if field["type"] in nested and isinstance(field.get("of"), str) and field["of"] in maps:
                add(maps[field["of"]])
        if one not in ordered:
            ordered.append(one)

    for one in declared:
        add(one)
    return ordered


# ---- C ----


def c_name(declared: dict) -> str:
    return f"{declared['name']}_{'reply' if 'result' in declared else 'map'}"


def c_member(field: dict) -> tuple[str, str, str]:
    """A field's type and name, and its kind in daemon/rpc/record.c."""
    kind, optional = field["type"], not field.get("required")
    name = field["key"] + "_" * (field["key"] in C_WORDS)
    if kind == "map" and "of" in field:
        return (f"const struct {field['of']}_map *", name, "MAP_OR_NULL") if optional else (f"struct {field['of']}_map ", name, "MAP")
    if kind in ("uint", "bool") and optional:
        return "struct rpc_maybe ", name, f"MAYBE_{kind.upper()}"
    return C_TYPES.get(kind, "struct rpc_values "), name, "NAMED" if kind == "map" else kind.upper()


def structs(methods: list[dict], maps: list[dict]) -> str:
    out = ["/* Included by daemon/rpc/record.h, which says what the types mean. `?`: the key may be absent. */"]
    for declared in c_records(methods, maps):
        out += [f"/* {doc_of(declared)} */", f"struct {c_name(declared)} {{"]
        for field in fields_of(declared):
            kind, name, _ = c_member(field)
            note = " ".join(filter(None, ["" if field.get("required") else "?", field.get("doc")]))
            out.append(f"    {kind}{name};" + f" /* {note} */" * bool(note))
        out += ["};", f"extern const struct rpc_record {c_name(declared)}_record;", ""]
    return "\n".join(out)


def tables(methods: list[dict], maps: list[dict]) -> str:
    out = ["/* Included once, by daemon/rpc/record.c. FIELD(record, \"key\", member, KIND, optional, record of a map) */"]
    for declared in c_records(methods, maps):
        name = c_name(declared)
        out.append(f"static const struct rpc_record_field {name}_fields[] = {{")
        for field in fields_of(declared):
            _, member, kind = c_member(field)
            of = f"&{field['of']}_map_record" if kind.startswith("MAP") else "NULL"
            out.append(f"    FIELD({name}, \"{field['key']}\", {member}, {kind}, {int(not field.get('required'))}, {of}),")
        out += ["};", f"const struct rpc_record {name}_record = RECORD_OF({name}_fields);", ""]
    return "\n".join(out)


def c_records(methods: list[dict], maps: list[dict]) -> list[dict]:
    declared = [*maps, *(m for m in methods if m["result"] not in ("any", []))]
    return in_order(declared, {m["name"]: m for m in maps}, ("map",))


# ---- Python ----


def python_field(field: dict, maps: dict[str, dict]) -> tuple[str, str, str]:
    """A member's type, its value where the key is absent, and what converts the wire's value, if anything does."""
    of, kind, optional = field.get("of"), field["type"], not field.get("required")
    name = maps[of].get("python") if isinstance(of, str) and of in maps else None
    if kind == "list":
        return f"tuple[{name or PYTHON_TYPES[of][0]}, ...]", "()", f"several({name}.read)" if name else "tuple"
    if kind == "map" and name:
        return (f"{name} | None", "None", f"{name}.read") if optional else (name, f"{name}()", f"{name}.read")
    if kind == "map" and isinstance(field.get("values"), dict):
        return "dict[str, tuple[str, ...]]", "field(default_factory=dict)", "named"
    if kind == "map":
        return f"Mapping[str, {PYTHON_TYPES[field.get('values', 'uint')][0]}]", "field(default_factory=dict)", ""
    python, absent = PYTHON_TYPES[kind]
    unknown = optional and kind != "str" and "python" not in field
    return (f"{python} | None", "None", "") if unknown else (python, absent, "")


def python_doc(declared: dict) -> list[str]:
    def wrapped(text: str, first: str, further: str) -> str:
        return textwrap.fill(text, 130, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)

    doc = wrapped(doc_of(declared), '    """', "    ")
    notes = [wrapped(f"`{field['key']}`: {field['doc']}", "    - ", "      ") for field in fields_of(declared) if field.get("doc")]
    return [doc, "", *notes, '    """', ""] if notes else [f'{doc}"""', ""]


def python_class(declared: dict, maps: dict[str, dict]) -> list[str]:
    members = {field["key"]: python_field(field, maps) for field in fields_of(declared)}
    rows = [f"    {key}: {kind} = {absent}" for key, (kind, absent, _) in members.items()]
    converted = ", ".join(f'"{key}": {convert}' for key, (_, _, convert) in members.items() if convert)
    table = [f"    _converted: ClassVar[Converters] = {{{converted}}}"] * bool(converted)
    return ["@dataclass(frozen=True)", f"class {declared['python']}(Record):", *python_doc(declared), *rows, *table, "", ""]


def python_dict(declared: dict, maps: dict[str, dict]) -> list[str]:
    """A dictionary as it comes from the wire."""
    name, optional, required = declared["python_dict"], [], []
    for field in fields_of(declared):
        of = field.get("of")
        kind = f"list[{'list[int]' if isinstance(of, dict) else PYTHON_TYPES[of][0]}]" if field["type"] == "list" else ""
        kind = kind or (maps[of]["python_dict"] if of else PYTHON_TYPES[field["type"]][0])
        (required if field.get("required") else optional).append(f"    {field['key']}: {kind}")
    first = [f"class _Some{name}(TypedDict, total=False):", *optional, "", ""] if optional else []
    return [*first, f"class {name}({f'_Some{name}' if optional else 'TypedDict'}):", *python_doc(declared), *required, "", ""]


def python_module(methods: list[dict], results: list[dict]) -> str:
    maps = {m["name"]: m for m in results}
    out = ["from __future__ import annotations", "", "from collections.abc import Mapping", "from dataclasses import dataclass, field",
           "from typing import Any, ClassVar, TypedDict", "", "from .record import Converters, Record, named, several", "", ""]
    for key, nested, python in (("python", ("map", "list"), python_class), ("python_dict", ("map",), python_dict)):
        named = [m for m in [*results, *methods] if key in m]
        for one in in_order(named, {m["name"]: m for m in results if key in m}, nested):
            out += python(one, maps)
    return "\n".join(out).rstrip() + "\n"
