#!/usr/bin/env python3
"""The inputs that fuzzing found, packed: corpus/<target>.tar.xz.

    tests/fuzz/corpus.py unpack FOLDER [TARGET…]   into FOLDER/<target>, with the golden vectors as inputs
    tests/fuzz/corpus.py pack BUILD [TARGET…]      packs anew, minimised, with what BUILD/corpus has found since

BUILD is a build with libFuzzer (tests/fuzz/run makes build/fuzz). The smallest inputs with the same coverage are kept, without
those that the golden vectors have already. The same inputs make the same archive: names are hashes, and owners
and times are left out.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import seeds

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
TARGETS = sorted(path.name.partition(".")[0] for path in CORPUS.glob("*.tar.xz"))
LONGEST = 1 << 20  # bytes of an input
PASSES = {"server": 4}  # its coverage depends on threads, too: each pass adds what the ones before did not see


def unpack(folder: Path, target: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (CORPUS / f"{target}.tar.xz").exists():
        return  # a new target
    with tarfile.open(CORPUS / f"{target}.tar.xz") as archive:
        for member in archive.getmembers():
            data = archive.extractfile(member)
            if data is not None and "/" not in member.name:
                (folder / member.name).write_bytes(data.read())


def packed(inputs: list[bytes]) -> bytes:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted((hashlib.sha1(data).hexdigest(), data) for data in inputs):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return lzma.compress(tar.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def pack(build: Path, target: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seeds.write(folder / "golden")
        (folder / "golden" / target).mkdir(exist_ok=True)
        known = {path.read_bytes() for path in (folder / "golden" / target).iterdir()}
        unpack(folder / "old", target)
        shutil.copytree(folder / "golden" / target, folder / "new")
        sources = [path for path in (folder / "old", build / "corpus" / target) if path.is_dir()]
        command = [build / "bin" / f"fuzz_{target}", "-merge=1", f"-max_len={LONGEST}", folder / "new", *sources]
        for _ in range(PASSES.get(target, 1)):
            subprocess.run([str(word) for word in command], check=True, stderr=subprocess.DEVNULL)
        kept = {path.read_bytes() for path in (folder / "new").iterdir()} - known
        data = packed(sorted(kept))
    (CORPUS / f"{target}.tar.xz").write_bytes(data)
    print(f"{target:8} {len(kept):4} inputs, {sum(map(len, kept)):7} bytes, packed {len(data)}")


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] not in ("pack", "unpack"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[2])
    if sys.argv[1] == "unpack":
        seeds.write(folder)
    for target in sys.argv[3:] or TARGETS:
        if sys.argv[1] == "pack":
            pack(folder, target)
        else:
            unpack(folder / target, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
