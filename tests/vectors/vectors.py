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


if __name__ == "__main__":
    source, header = Path(sys.argv[1]), Path(sys.argv[2])
    made = {"c_types": c_types, "hostcode": hostcode}[source.stem](load(source.name))
    header.write_text(f"/* Generated from {source.name}. */\n{made}", encoding="utf-8")
