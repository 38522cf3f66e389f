# SPDX-License-Identifier: Apache-2.0
"""Installs the library into a fresh prefix, builds examples/embed against it with find_package, and
runs it on the shipped model: once with the libtorch that the package remembers, once with another
place given by VITRINE_TORCH_DIR."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, errors="replace", **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {result.returncode}\n"
                 f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
    return result.stdout


def expect(condition, message):
    if not condition:
        sys.exit(message)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "VITRINE_VENV")}

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prefix = folder / "prefix"
        run(arguments.cmake, "--install", arguments.build, "--prefix", prefix)
        headers = {p.name for p in (prefix / "include/vitrine").iterdir()}
        expected = {p.name for p in (arguments.source / "include/vitrine").iterdir()} | {"version.h"}
        expect(headers == expected, f"installed headers {sorted(headers)}, expected {sorted(expected)}")

        moved = folder / "elsewhere"
        moved.mkdir()
        for entry in (arguments.torch, arguments.torch.parent / "nvidia"):
            (moved / entry.name).symlink_to(entry)

        for name, options, torch in (("remembered", [], arguments.torch),
                                     ("moved", [f"-DVITRINE_TORCH_DIR={moved / 'torch'}"],
                                      moved / "torch")):
            build = folder / name
            run(arguments.cmake, "-G", "Ninja", "-S", arguments.source / "examples/embed", "-B", build,
                f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release", *options,
                env=environment)
            run(arguments.cmake, "--build", build, env=environment)
            program = build / "embed"
            libraries = run("ldd", program, env=environment)
            expect(str(prefix) in libraries, f"{name}: libvitrine is not the installed one:\n{libraries}")
            expect(f"{torch}/lib/libtorch_cpu.so" in libraries,
                   f"{name}: libtorch_cpu is not from {torch}:\n{libraries}")
            expect("not found" not in libraries and "torch_cuda" not in libraries,
                   f"{name}: wrong libraries:\n{libraries}")
            output = run(program, arguments.model, "Once upon a time", env=environment)
            expect(len(output.split()) >= 10, f"{name}: too little text came out: {output!r}")
            print(f"{name}: {output.strip()[:300]}")


if __name__ == "__main__":
    main()
