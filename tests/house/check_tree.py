# SPDX-License-Identifier: Apache-2.0
"""Fails where the repository is 57 MiB or more, or takes 60 MiB of a disk's blocks, a text file
names a machine's path or a package registry's host, work is left for later, a source file is
longer than 500 lines or does not name its licence, or README shows another embedding example than
examples/embed. `--self-test` plants each and fails unless each is found."""

import argparse
import pathlib
import re
import subprocess
import sys

from planted import self_test

MAX_BYTES = 57 * 2**20
MAX_DISK_BYTES = 60 * 2**20  # whole blocks: what a checkout takes
BLOCK_BYTES = 4096
MAX_LINES = 500
SOURCES = {".h", ".cc", ".cu", ".cuh", ".py"}
TEXTS = SOURCES | {".md", ".txt", ".cmake", ".in", ".yml", ".json", ""}
# Spelt in pieces, so that this file does not find itself.
PATHS = re.compile("/(?:work|ro" + r"ot|home/[a-z]+)/[\w.]")
HOSTS = re.compile(r"(?:py" + r"pi\.org|files\.pythonhosted|deb\.deb" + "ian|hugging" + r"face\.co/)")
LATER = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b|for" + r" now\b|\bplace" + "holder")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENSED = SOURCES | {".inc", ".proto", ".cmake"}
EXAMPLE = "examples/embed/main.cc"
# Data of others, and text the models are measured on.
UNREAD = ("tests/data/", "models/")


def tracked(root):
    """Files of the tree: what git tracks and would add; without git, all but build folders."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True)
    if listed.returncode == 0 and listed.stdout:
        names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    else:
        names = [p.relative_to(root).as_posix() for p in sorted(root.rglob("*"))]
        names = [n for n in names if not n.startswith(("build", ".git/"))]
    return [n for n in names if (root / n).is_file()]


def check(root):
    names = tracked(root)
    sizes = {name: (root / name).stat().st_size for name in names}
    problems = []
    largest = ", ".join(f"{name} ({sizes[name]})" for name in sorted(sizes, key=sizes.get)[-5:])
    if sum(sizes.values()) >= MAX_BYTES:
        problems.append(f"the tree holds {sum(sizes.values())} bytes, expected under {MAX_BYTES}; "
                        f"largest: {largest}")
    disk_bytes = sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes.values())
    if disk_bytes >= MAX_DISK_BYTES:
        problems.append(f"the tree takes {disk_bytes} bytes of whole blocks, expected under "
                        f"{MAX_DISK_BYTES}; largest: {largest}")
    for name in names:
        path = root / name
        if path.suffix not in TEXTS | LICENSED or name.startswith(UNREAD):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        if path.suffix in SOURCES and len(lines) > MAX_LINES:
            problems.append(f"{name}: {len(lines)} lines, expected at most {MAX_LINES}")
        if path.suffix in LICENSED and not any(LICENCE in line for line in lines[:2]):
            problems.append(f"{name}: no licence, expected {LICENCE!r} in its first two lines")
        for what, pattern in (("machine path", PATHS), ("registry host", HOSTS),
                              ("work left for later", LATER)):
            for number, line in enumerate(lines, 1):
                match = pattern.search(line)
                if match:
                    problems.append(f"{name}:{number}: {what}: {match[0]}")
    if "README.md" in sizes and EXAMPLE in sizes:
        if (root / EXAMPLE).read_text() not in (root / "README.md").read_text():
            problems.append(f"README.md: its example is not {EXAMPLE}")
    return problems, sum(sizes.values()), len(names)


PLANTED = {  # file, its text, what must be said (None: nothing)
    "src/kv/path.cc": ("// see /ro" + "ot/models\n", "machine path"),
    "docs/host.md": ("from py" + "pi.org\n", "registry host"),
    "src/kv/later.cc": ("// TO" + "DO: all of it\n", "work left for later"),
    "src/kv/long.cc": ("\n" * (MAX_LINES + 1), "lines, expected at most"),
    "src/kv/fine.cc": (f"// {LICENCE}\n// the network of todays\n", None),
    "src/kv/free.cc": ("namespace vitrine {}\n", "no licence"),
    "tests/data/theirs.json": ('"/ro' + 'ot/x"', None),
    "README.md": ("int main() { return 0; }\n", "its example is not"),
    EXAMPLE: (f"// {LICENCE}\nint main() {{}}\n", None),
    "models/large.bin": ("x" * MAX_BYTES, "bytes, expected under"),
    "models/less_large.bin": ("x" * (MAX_DISK_BYTES - MAX_BYTES), "of whole blocks"),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        problems, count = self_test(PLANTED, lambda root: check(root)[0])
        print(f"{count} planted cases, {len(problems)} wrong")
    else:
        problems, num_bytes, num_files = check(arguments.root.resolve())
        if num_files == 0:
            problems.append("no file found")
        print(f"{num_files} files, {num_bytes / 2**20:.1f} MiB, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
