# SPDX-License-Identifier: Apache-2.0
"""Installs the library into a fresh prefix, builds examples/embed against it with find_package (once
with the libtorch that the package remembers, once with another place given by VITRINE_TORCH_DIR) and
with pkg-config, and runs what was built on a folder, a GGUF file and a federation file. What is
installed must carry no path of this machine where it looks for libraries."""

import argparse
import os
import pathlib
import re
import shlex
import shutil
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


def check_run_paths(prefix):
    """Every library and program that is installed looks for others beside itself, and nowhere else."""
    binaries = [p for p in sorted(prefix.rglob("*")) if p.is_file() and not p.is_symlink()
                and p.open("rb").read(4) == b"\x7fELF"]
    expect(any(p.name.startswith("libvitrine.so") for p in binaries), f"no library in {binaries}")
    for binary in binaries:
        dynamic = run("readelf", "-d", binary)
        paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
        entries = [entry for path in paths for entry in path.split(":") if entry]
        expect(entries and all(entry.startswith("$ORIGIN") for entry in entries),
               f"{binary}: looks for libraries in {entries}, expected only places beside it")


def check_program(name, program, prefix, torch, models, environment):
    """The program that was built: its libraries, and what it prints of each model."""
    libraries = run("ldd", program, env=environment)
    expect(str(prefix) in libraries, f"{name}: libvitrine is not the installed one:\n{libraries}")
    expect(f"{torch}/lib/libtorch_cpu.so" in libraries,
           f"{name}: libtorch_cpu is not from {torch}:\n{libraries}")
    expect("not found" not in libraries and "torch_cuda" not in libraries,
           f"{name}: wrong libraries:\n{libraries}")
    for kind, (model, prompt) in models.items():
        output = run(program, model, prompt, env=environment)
        text, _, account = output.rpartition("\n\n")
        lines = account.splitlines()
        expect(text.strip() and len(lines) >= 5 and
               all(re.search(r"p = [01]\.\d{3}  experts", line) for line in lines),
               f"{name}: the account of the {kind} is {output!r}")
        print(f"{name}, {kind}: {text.strip()[:200]!r}, {len(lines)} tokens: {lines[0]}")
    for wrong in (models["folder"][0] / "config.json", prefix / "gone"):
        result = subprocess.run([program, wrong, "a"], capture_output=True, text=True, env=environment)
        expect(result.returncode == 2 and result.stderr.startswith("embed: ") and
               "expected" in result.stderr and result.stderr.count("\n") == 1,
               f"{name}: {wrong} ended with {result.returncode}: {result.stderr!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    hidden = ("LD_LIBRARY_PATH", "VITRINE_VENV", "PKG_CONFIG_PATH")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    models = {"folder": (arguments.model, "Once upon a time"),
              "GGUF file": (arguments.source / "tests/data/gguf/dense.gguf", "a b ab a"),
              "federation": (arguments.source / "models/fractalmoe-30m-adapters/federation.json",
                             "Once upon a time")}

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prefix = folder / "prefix"
        run(arguments.cmake, "--install", arguments.build, "--prefix", prefix)
        headers = {p.name for p in (prefix / "include/vitrine").iterdir()}
        expected = {p.name for p in (arguments.source / "include/vitrine").iterdir()} | {"version.h"}
        expect(headers == expected, f"installed headers {sorted(headers)}, expected {sorted(expected)}")
        check_run_paths(prefix)

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
            check_program(name, build / "embed", prefix, torch, models, environment)

        # The prefix may be moved: vitrine.pc goes by its own place.
        other = folder / "another-prefix"
        shutil.copytree(prefix, other, symlinks=True)
        package = next(other.rglob("vitrine.pc")).parent
        for name, variables, torch in (
                ("pkg-config", [], arguments.torch),
                ("pkg-config, moved", [f"--define-variable=torch_libdir={moved / 'torch/lib'}"],
                 moved / "torch")):
            ask = ("pkg-config", *variables)
            where = {**environment, "PKG_CONFIG_PATH": str(package)}
            version = run(*ask, "--modversion", "vitrine", env=where).strip()
            expect(f'"{version}"' in (other / "include/vitrine/version.h").read_text(),
                   f"vitrine.pc is of version {version}")
            flags = shlex.split(run(*ask, "--cflags", "--libs", "vitrine", env=where))
            library_folder = run(*ask, "--variable=libdir", "vitrine", env=where).strip()
            program = folder / f"embed-{len(variables)}"
            run(arguments.compiler, "-std=c++20", "-O1", arguments.source / "examples/embed/main.cc",
                *flags, f"-Wl,-rpath,{library_folder}", "-o", program, env=environment)
            check_program(name, program, other, torch, models, environment)


if __name__ == "__main__":
    main()
