# SPDX-License-Identifier: Apache-2.0
"""Fails on an include that points up or sideways (rooms.txt), on libtorch where it must not be, and
on anything of the library in kernels/. `--self-test` plants one violation of each kind in a
temporary tree and fails unless each is found."""

import argparse
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = ("include", "src", "kernels", "examples", "bench", "tests")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(ATen|torch|c10|caffe2)/")


class Rooms:
    def __init__(self, text):
        self.level, self.torch, self.only, self.header = {}, set(), {}, {}
        level = 0
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "layer":
                level += 1
                self.level.update((room, level) for room in words[1:])
            elif words[0] == "torch":
                self.torch.update(words[1:])
            elif words[0] == "only":
                self.only[words[1]] = set(words[2:])
            elif words[0] == "headers":
                self.header.update((name, words[1]) for name in words[2:])
            else:
                raise SystemExit(f"rooms.txt:{number}: unknown word '{words[0]}'")

    def refusal(self, room, other):
        """Why `room` may not include `other`, or None."""
        if room == other:
            return None
        if room in self.only and other not in self.only[room]:
            return f"{room} may include only {', '.join(sorted(self.only[room]))}"
        if self.level[other] == self.level[room]:
            return f"points sideways, from {room} to {other}"
        if self.level[other] > self.level[room]:
            return f"points up, from {room} to {other}"
        return None

    def room_of(self, path):
        """The room of a path relative to the root, e.g. src/kv/pool.h -> kv."""
        parts = path.parts
        if parts[0] == "include":
            return self.header.get(path.stem, path.stem)
        if parts[0] == "src":
            return parts[1]
        return parts[0]  # kernels, examples, bench, tests


def resolve(root, source, name):
    """The file of ours that an include means, relative to the root, or None."""
    for base in (source.parent, root / "include", root / "src", root):
        candidate = (base / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root)
        made_of = [candidate.with_name(candidate.name + ".in")]  # by CMake
        if candidate.name.endswith(".json.h"):
            made_of.append(candidate.with_suffix(""))
        if any(each.is_file() for each in made_of):
            return candidate.relative_to(root)
    return pathlib.Path("include") / name if name == "vitrine/version.h" else None


def check_one(rooms, root, source, bracket, name):
    path = source.relative_to(root)
    top, room = path.parts[0], rooms.room_of(path)
    if TORCH.match(name):
        if top == "tests" or path == pathlib.Path("include/vitrine/torch.h"):
            return None
        if top == "include":
            return "a public header shows libtorch"
        if top == "kernels":
            return "kernels include nothing of libtorch"
        if top != "src" or room not in rooms.torch:
            return f"{room} may not include libtorch (rooms.txt)"
        return None
    target = resolve(root, source, name)
    if target is None:
        return "no such file in this tree" if bracket == '"' else None
    if top == "tests":
        return None
    other = rooms.room_of(target)
    if top in ("examples", "bench"):
        if target.parts[0] == "include" or target.parts[0] == top:
            return None
        if path.parts[:2] == ("bench", "kernels") and other == "kernels":
            return None
        return f"{top} may include only include/vitrine"
    for name_of_room in (room, other):
        if name_of_room not in rooms.level:
            return f"the room {name_of_room} is not in rooms.txt"
    if top == "include" and target.parts[0] != "include":
        return "a public header includes a private one"
    if target.parts[0] == "src" and other != room and path.parts[0] == "kernels":
        return "kernels include nothing of src"
    return rooms.refusal(room, other)


def check(root, rooms):
    problems, count = [], 0
    for folder in FOLDERS:
        for source in sorted((root / folder).rglob("*")):
            if source.suffix not in SUFFIXES or not source.is_file():
                continue
            text = source.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                count += 1
                why = check_one(rooms, root, source, match[1], match[2])
                if why:
                    line = text.count("\n", 0, match.start()) + 1
                    problems.append(f"{source.relative_to(root)}:{line}: {match[0].strip()}: {why}")
    return problems, count


PLANTED = {  # file, its text, what the message must say (None: allowed)
    "src/kv/up.cc": ('#include "src/model/config.h"\n', "points up, from kv to model"),
    "src/model/sideways.cc": ('#include "src/model/config.h"\n#include <vector>\n', None),
    "src/sample/sideways.cc": ('#include "vitrine/audit.h"\n', "may include only core"),
    "src/checkpoint/sideways.cc": ('#include "vitrine/tokenizer.h"\n', "points sideways"),
    "src/ops/relative.cc": ('#include "../kv/pool.h"\n', "points up, from ops to kv"),
    "src/kv/torch.cc": ("#include <ATen/ATen.h>\n", "may not include libtorch"),
    "src/engine/torch.cc": ("#include <c10/core/Device.h>\n", "may not include libtorch"),
    "src/backend_torch/torch.cc": ('#include <ATen/ATen.h>\n#include "src/ops/op.h"\n', None),
    "src/engine/backend.cc": ('#include "src/backend_torch/torch.cc"\n', "points up, from engine to"),
    "src/kv/down.cc": ('#include "vitrine/core.h"\n#include "src/ops/op.h"\n', None),
    "src/kv/table.json": ("{}\n", None),
    "src/kv/made.cc": ('#include "src/kv/table.json.h"\n', None),
    "src/kv/gone.cc": ('#include "src/ops/gone.h"\n', "no such file"),
    "include/vitrine/engine.h": ("#include <torch/torch.h>\n", "a public header shows libtorch"),
    "include/vitrine/torch.h": ("#include <torch/torch.h>\n", None),
    "include/vitrine/sample.h": ('#include "src/ops/op.h"\n', "includes a private one"),
    "include/vitrine/federation_engine.h": ('#include "vitrine/model.h"\n', None),  # one room
    "src/model/face.cc": ('#include "vitrine/model.h"\n', "points up, from model to engine"),
    "src/kv/face.cc": ('#include "vitrine/unknown.h"\n', "the room unknown is not in rooms.txt"),
    "kernels/cpu/a.cc": ('#include "vitrine/core.h"\n', "points up, from kernels to core"),
    "kernels/cpu/b.cc": ("#include <c10/util/Half.h>\n", "nothing of libtorch"),
    "examples/vitrine/main.cc": ('#include "src/ops/op.h"\n', "may include only include/vitrine"),
    "bench/kernels/bench.cc": ('#include "kernels/cpu/cpu_kernels.h"\n', None),
    "bench/bench.cc": ('#include "kernels/cpu/cpu_kernels.h"\n', "may include only"),
    "tests/kv/test.cc": ('#include "src/model/config.h"\n#include <ATen/ATen.h>\n', None),
}


def self_test(rooms):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        blank = ["src/model/config.h", "src/kv/pool.h", "src/ops/op.h", "include/vitrine/core.h",
                 "include/vitrine/audit.h", "include/vitrine/tokenizer.h", "include/vitrine/model.h",
                 "include/vitrine/unknown.h",
                 "kernels/cpu/cpu_kernels.h"]
        for name, text in [(b, "") for b in blank] + [(n, t) for n, (t, _) in PLANTED.items()]:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        problems, _ = check(root, rooms)
    failures = []
    for name, (_, expected) in PLANTED.items():
        mine = [p for p in problems if p.startswith(name + ":")]
        if expected is None and mine:
            failures.append(f"allowed, but refused: {mine[0]}")
        if expected is not None and not any(expected in p for p in mine):
            failures.append(f"planted in {name}, but not found: '{expected}'; said: {mine}")
    return failures, len(PLANTED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    rooms = Rooms((HERE / "rooms.txt").read_text())
    if arguments.self_test:
        problems, count = self_test(rooms)
        print(f"{count} planted cases, {len(problems)} wrong")
    else:
        problems, count = check(arguments.root.resolve(), rooms)
        print(f"{count} includes read, {len(problems)} refused")
        if count == 0:
            problems.append(f"no include found under {arguments.root}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
