# SPDX-License-Identifier: Apache-2.0
"""Reads the object code of each table of kernels for instructions beyond what its dispatcher asks a
processor for. The assembler is the judge: what objdump shows is assembled again, with only the
features allowed that the table's dispatcher names.

usage: table_code_test.py PRINT_NEEDS OBJECT...
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("needs")
parser.add_argument("objects", nargs="+", type=pathlib.Path)
arguments = parser.parse_args()

LINE = re.compile(r"^ *[0-9a-f]+:\t((?:[0-9a-f]{2} )+) *\t(.*)$")
# Jumps and calls name an address, and these hints do nothing on a processor that lacks them.
PASSED_OVER = re.compile(r"(?:bnd |notrack )?(?:j\w+|call|loop\w*|xbegin)\b|endbr64|.*\bnop|nop|xchg +%ax,%ax"
                         r"|data16|lock$|rep$")
PREFIXES = {"26", "2e", "36", "3e", "64", "65", "66", "67", "f0", "f2", "f3"}


def table_of(path):
    """The table whose code an object's is, by its file's place and name."""
    name = path.name.split(".")[0]
    if path.parent.name == "avx512":
        return "avx512_amx" if name.endswith("_amx") else "avx512"
    if path.parent.name == "avx2":
        return "avx2_vnni" if name.endswith("_vnni") else "avx2"
    return "portable"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needs_of_tables():
    return {line.split(":")[0]: re.findall(r"[\w-]+", line.split(":")[1])
            for line in run(arguments.needs).splitlines()}


def instructions(path):
    """An object's instructions, each once, as the assembler reads them -> where one stands."""
    found, function = {}, "?"
    for line in run("objdump", "-d", "-w", "-C", path).splitlines():
        match = LINE.match(line)
        if not match:
            if line.endswith(">:"):
                function = line.split("<", 1)[1][:-2]
            continue
        text = re.sub(r"\s*(?:#.*|<.*>)", "", match[2]).strip()
        if PASSED_OVER.match(text):
            continue
        # __builtin_ctz: what lacks tzcnt reads it as bsf, the same of all but 0, which that refuses.
        text = re.sub(r"^tzcnt", "bsf", text)
        opcode = next((byte for byte in match[1].split() if byte not in PREFIXES), "")
        if opcode == "62" and not text.startswith("{"):
            text = "{evex} " + text
        found.setdefault(text, function)
    return found


def allow(feature):
    """The assembler's directive for a feature: AVX512-F is .avx512f, AVX512-VNNI .avx512_vnni."""
    return ".arch ." + re.sub(r"^avx512-(f|bw|dq|vl)$", r"avx512\1", feature.lower()).replace("-", "_")


def beyond(path, features):
    """Instructions of an object that the features do not have: (text, function, what as says)."""
    found = instructions(path)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "code.s"
        lines = [".arch generic64", *map(allow, features), *found]
        source.write_text("\n".join(lines) + "\n")
        result = subprocess.run(["as", "-o", "/dev/null", source], capture_output=True, text=True)
    problems = []
    for number, message in re.findall(r"code\.s:(\d+): Error: (.*)", result.stderr):
        text = lines[int(number) - 1]
        problems.append((text, found.get(text, "?"), message))
    if result.returncode != 0 and not problems:
        raise RuntimeError(result.stderr)
    return problems, len(found)


def assemble(text, path):
    subprocess.run(["as", "-o", path, "-"], input=text + "\n", text=True, check=True)


class TableCode(unittest.TestCase):
    maxDiff = None

    def test_no_instruction_beyond_what_the_dispatcher_asks_for(self):
        needs = needs_of_tables()
        seen = {table: 0 for table in needs}
        for path in arguments.objects:
            table = table_of(path)
            problems, count = beyond(path, needs[table])
            self.assertEqual(problems, [], f"{path} of {table}: {len(problems)} instructions")
            seen[table] += count
        self.assertTrue(all(count > 200 for count in seen.values()), seen)

    def test_no_code_that_others_may_be_given(self):
        """A weak function of a table's own object, as an inline one of a header that all include,
        may be what the linker gives every caller, on a processor that lacks the instructions."""
        for path in arguments.objects:
            if table_of(path) == "portable":
                continue
            shared = [line.split(maxsplit=2)[2] for line in run("nm", "-C", "--defined-only", path).splitlines()
                      if re.match(r"[0-9a-f]+ W ", line)]
            others = [name for name in shared if f"kernels::{path.parent.name}::" not in name]
            self.assertEqual(others, [], path)

    def test_planted(self):
        """What must be found, and what must not."""
        avx2, avx512 = ["AVX2", "FMA", "F16C"], ["AVX2", "FMA", "F16C", "AVX512-F", "AVX512-BW",
                                                 "AVX512-DQ", "AVX512-VL", "AVX512-VNNI"]
        cases = [
            (avx512, "vdpbf16ps %zmm1,%zmm2,%zmm3", False),
            (avx512, "vcvtne2ps2bf16 %zmm1,%zmm2,%zmm3", False),
            (avx512, "vpermb %zmm1,%zmm2,%zmm3", False),
            (avx512, "vpermi2b %ymm1,%ymm2,%ymm3", False),
            (avx512, "vpmultishiftqb %zmm1,%zmm2,%zmm3", False),
            (avx512, "vpshldd $3,%zmm1,%zmm2,%zmm3", False),
            (avx512, "vpopcntb %zmm1,%zmm2", False),
            (avx512, "vpopcntd %zmm1,%zmm2", False),
            (avx512, "vpmadd52luq %zmm1,%zmm2,%zmm3", False),
            (avx512, "vgf2p8mulb %zmm1,%zmm2,%zmm3", False),
            (avx512, "vaddph %zmm1,%zmm2,%zmm3", False),
            (avx512, "vp2intersectd %zmm1,%zmm2,%k2", False),
            (avx512, "vpconflictd %zmm1,%zmm2", False),
            (avx512, "{vex} vpdpbusd %ymm1,%ymm2,%ymm3", False),
            (avx512, "tdpbusd %tmm1,%tmm2,%tmm3", False),
            (avx512, "bzhi %eax,%ebx,%ecx", False),
            (avx512, "vpdpbusd %zmm1,%zmm2,%zmm3", True),
            (avx512, "vpmovm2b %k1,%ymm2", True),
            (avx512, "{evex} vaddps %ymm1,%ymm2,%ymm3", True),
            (avx2, "{evex} vaddps %ymm1,%ymm2,%ymm3", False),
            (avx2, "vaddps %ymm17,%ymm2,%ymm3", False),
            (avx2, "vaddps %zmm1,%zmm2,%zmm3", False),
            (avx2, "{vex} vpdpbusd %ymm1,%ymm2,%ymm3", False),
            (avx2, "kmovw %k1,%eax", False),
            (avx2, "vfmadd231ps %ymm1,%ymm2,%ymm3", True),
            (avx2, "vpermd %ymm1,%ymm2,%ymm3", True),
            ([*avx2, "AVX-VNNI"], "{vex} vpdpbusd %ymm1,%ymm2,%ymm3", True),
            ([*avx512, "AMX-TILE", "AMX-INT8"], "tdpbusd %tmm1,%tmm2,%tmm3", True),
            ([*avx512, "AMX-TILE", "AMX-INT8"], "tdpbf16ps %tmm1,%tmm2,%tmm3", False),
            ([], "pshufb %xmm1,%xmm2", False),
            ([], "vaddps %xmm1,%xmm2,%xmm3", False),
            ([], "mulps %xmm1,%xmm2", True),
        ]
        with tempfile.TemporaryDirectory() as folder:
            planted = pathlib.Path(folder) / "planted.o"
            for features, text, is_allowed in cases:
                assemble("planted:\n" + text, planted)
                problems, count = beyond(planted, features)
                self.assertEqual((count, not problems), (1, is_allowed), (text, problems))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
