# SPDX-License-Identifier: Apache-2.0
"""Compiles each public header alone: as C++20 it must stand by itself, and as C++17 the compiler's
first error must be the line that says what it needs."""

import argparse
import pathlib
import subprocess
import sys

LINE = "Vitrine's headers need C++20: compile with -std=c++20 or later."
WITH_LIBTORCH = {"torch.h"}  # its own headers of libtorch come first
OF_MACROS = {"version.h"}  # any standard will do


def compile_one(compiler, standard, name, folders):
    includes = [f"-I{folder}" for folder in folders]
    return subprocess.run([compiler, f"-std={standard}", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                           *includes, "-x", "c++", "-"], input=f"#include <vitrine/{name}>\n",
                          capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("folders", type=pathlib.Path, nargs="+", help="what -I names")
    arguments = parser.parse_args()
    names = sorted({p.name for folder in arguments.folders for p in (folder / "vitrine").glob("*.h")}
                   - WITH_LIBTORCH)
    problems = []
    for name in names:
        result = compile_one(arguments.compiler, "c++20", name, arguments.folders)
        if result.returncode != 0:
            problems.append(f"{name} as C++20: {result.stderr[:1000]}")
        if name in OF_MACROS:
            continue
        result = compile_one(arguments.compiler, "c++17", name, arguments.folders)
        errors = [line for line in result.stderr.splitlines() if "error:" in line]
        if result.returncode == 0 or not errors or LINE not in errors[0]:
            problems.append(f"{name} as C++17: its first error is {errors[:1]}, expected {LINE!r}")
    if "core.h" not in names or "version.h" not in names:
        problems.append(f"found {names}, expected all public headers")
    print(f"{len(names)} headers, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
