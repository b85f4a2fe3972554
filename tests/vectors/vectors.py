"""What libkops or the daemon and the Python client must do alike, as JSON beside this file: both run it. For C it becomes
a header: `vectors.py FILE.json HEADER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def load(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def literal(text: str | None) -> str:
    if text is None:
        return "NULL"
    safe = "".join(c if 32 <= ord(c) < 127 and c not in '"\\?' else "".join(f"\\{b:03o}" for b in c.encode()) for c in text)
    return f'"{safe}"'


def c_types(rows: Any) -> str:
    body = "".join(f"    {{{literal(row['type'])}, {literal(row['dtype'])}}},\n" for row in rows)
    return f"static const struct {{\n    const char *type, *dtype;\n}} c_types[] = {{\n{body}}};\n"


def hostcode(rows: Any) -> str:
    widest = max(len(row["texts"]) for row in rows)
    body = ""
    for row in rows:
        texts, blanked = (", ".join(map(literal, row[key])) for key in ("texts", "blanked"))
        body += f"    {{{len(row['texts'])}, {{{texts}}}, {{{blanked}}}}},\n"
    head = f"static const struct {{\n    unsigned n;\n    const char *texts[{widest}], *blanked[{widest}];\n}} hostcode[] = {{\n"
    return f"enum {{ HOSTCODE_TEXTS = {widest} }};\n{head}{body}}};\n"


def conditions(rows: Any) -> str:
    """The lines in ASCII."""
    numbers = ("clock", "clock_max", "memory_clock", "memory_clock_max")
    keys = [*(f"{key}_mhz" for key in numbers), "temperature_c", "power_w", "power_limit_w", "power_slowed_us", "thermal_slowed_us"]
    body = ""
    for row in rows:
        readings = []
        for reading in (row["before"], row["after"]):
            members = [f".{key} = {reading.get(key, '(double)NAN')}" for key in keys]
            members.append(f".missing = {literal(reading.get('missing', ''))}")
            reasons = ", ".join([*map(literal, reading.get("reasons", [])), "NULL"])
            readings.append(f"{{{', '.join(members)}, .reasons = (const char *const[]){{{reasons}}}}}")
        line = row["line"].replace("→", "->").replace("°", "")
        body += f"    {{{literal(row['name'])}, {literal(line)}, {', '.join(readings)}}},\n"
    head = "static const struct {\n    const char *name, *line;\n    struct kops_conditions before, after;\n} conditions[] = {\n"
    return f"{head}{body}}};\n"


def places(rows: Any) -> str:
    body = "".join(
        f"    {{{literal(row['runtime'])}, {row['uid']}, {{{', '.join(map(literal, [*row['private'], None]))}}}, "
        f"{len(row['paths'])}, {{{', '.join(map(literal, row['paths']))}}}}},\n"
        for row in rows["lists"]
    )
    head = "static const struct {\n    const char *runtime;\n    uid_t uid;\n    const char *is_private[2];\n    unsigned n;\n"
    lists = f"{head}    const char *paths[PLACES_MAX];\n}} place_lists[] = {{\n{body}}};\n"
    body = ""
    for row in rows["trust"]:
        users = [f".{key} = {row.get(key, 'PLACES_NOBODY')}" for key in ("uid", "self", "kops", "unmapped", "folder")]
        flags = [f".{key} = {str(row.get(key, False)).lower()}" for key in ("folder_shared", "parent_shared", "system", "named")]
        body += f"    {{{literal(row['about'])}, {{{', '.join(users + flags)}}}, {str(row['trusted']).lower()}}},\n"
    head = "static const struct {\n    const char *about;\n    struct place_server server;\n    bool trusted;\n} place_trust[] = {\n"
    return f"{lists}{head}{body}}};\n"


if __name__ == "__main__":
    source, header = Path(sys.argv[1]), Path(sys.argv[2])
    makers = {"c_types": c_types, "conditions": conditions, "hostcode": hostcode, "places": places}
    made = makers[source.stem](load(source.name))
    header.write_text(f"/* Generated from {source.name}. */\n{made}", encoding="utf-8")
