# SPDX-License-Identifier: Apache-2.0
"""Installs the package, once without its backends and once whole, into fresh prefixes.

The build folder itself is found by find_package(vitrine) as well. Of the first package, nothing may
name libtorch: examples/embed is built against it with find_package(vitrine)
and with pkg-config where no torch can be found, and runs on a folder, a GGUF file and a federation
file; the reference path is refused in one line. Of the second, torch_host.cc is built with the
component torch and with vitrine-torch.pc, with the libtorch that the package remembers and with
another place, and runs the reference path. What is installed must carry no path of this machine where
it looks for libraries."""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HOST = pathlib.Path(__file__).resolve().parent / "torch_host.cc"
HOST_PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(torch_host LANGUAGES CXX)
find_package(vitrine REQUIRED COMPONENTS torch)
add_executable(torch_host {HOST})
target_link_libraries(torch_host PRIVATE vitrine::torch)
"""
PROMPT = "Once upon a time"
# What an installed binary must not need. Names of whole libraries: an address in ldd's lines may
# hold "c10".
FOREIGN = r"torch|libc10|not found"


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


def expect_refusal(name, parts, *command, **options):
    """The command ends with 2 and one line that holds the parts."""
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    expect(result.returncode == 2 and result.stderr.count("\n") == 1 and
           all(part in result.stderr for part in parts),
           f"{name}: {command} ended with {result.returncode}: {result.stderr!r}, expected {parts}")


def binaries(prefix):
    """Every library and program that is installed."""
    found = [p for p in sorted(prefix.rglob("*")) if p.is_file() and not p.is_symlink()
             and p.open("rb").read(4) == b"\x7fELF"]
    expect(any(p.name.startswith("libvitrine.so") for p in found), f"no library in {found}")
    return found


def check_run_paths(prefix):
    """Each of them looks for others beside itself, and nowhere else."""
    for binary in binaries(prefix):
        dynamic = run("readelf", "-d", binary)
        paths = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
        entries = [entry for path in paths for entry in path.split(":") if entry]
        expect(entries and all(entry.startswith("$ORIGIN") for entry in entries),
               f"{binary}: looks for libraries in {entries}, expected only places beside it")


def check_without_torch(prefix, environment):
    """No backend is there, nothing asks for libtorch, and nothing of the package looks for it."""
    for binary in binaries(prefix):
        is_backend = re.match(r"libvitrine_(?!http\b)", binary.name)
        expect(not is_backend, f"{binary} is of a backend")
        for listed in (run("readelf", "-d", binary), run("ldd", binary, env=environment)):
            expect(not re.search(FOREIGN, listed), f"{binary} needs:\n{listed}")
    for text in [*prefix.rglob("vitrineTargets*.cmake"), *prefix.rglob("*.pc")]:
        expect("torch" not in text.read_text(), f"{text} speaks of torch")


def check_embed(name, program, prefix, models, environment):
    """What examples/embed links, and what it prints of each model."""
    libraries = run("ldd", program, env=environment)
    expect(str(prefix) in libraries, f"{name}: libvitrine is not the installed one:\n{libraries}")
    expect(not re.search(FOREIGN, libraries), f"{name}: links:\n{libraries}")
    for kind, (model, prompt) in models.items():
        output = run(program, model, prompt, env=environment)
        text, _, account = output.rpartition("\n\n")
        lines = account.splitlines()
        expect(text.strip() and len(lines) >= 5 and
               all(re.search(r"p = [01]\.\d{3}  experts", line) for line in lines),
               f"{name}: the account of the {kind} is {output!r}")
        print(f"{name}, {kind}: {text.strip()[:200]!r}, {len(lines)} tokens: {lines[0]}")
    for wrong in (models["folder"][0] / "config.json", prefix / "gone"):
        expect_refusal(name, ["embed: ", "expected"], program, wrong, "a", env=environment)


def check_codec(program, model, environment):
    """The example's codec continues a text; both lines begin alike, before a block is closed."""
    text = run(program, model, PROMPT, env=environment).rstrip()
    match = re.fullmatch(r"f32, [\d.]+ MB of keys and values: (.*?)"
                         r"\nhadamard_i8, [\d.]+ MB of keys and values: (.*)", text, re.S)
    expect(match and match[1][:20] == match[2][:20], f"examples/kv_codec: {text!r}")


def check_host(name, program, prefix, torch, model, environment):
    """The host with tensors runs both paths, by the installed backend and the libtorch it names."""
    libraries = run("ldd", program, env=environment)
    expect(str(prefix) in libraries, f"{name}: libvitrine is not the installed one:\n{libraries}")
    expect(f"{torch}/lib/libtorch_cpu.so" in libraries,
           f"{name}: libtorch_cpu is not from {torch}:\n{libraries}")
    expect("not found" not in libraries and "torch_cuda" not in libraries,
           f"{name}: wrong libraries:\n{libraries}")
    output = run(program, model, env=environment)
    expect(re.fullmatch(r"fused (\d+) \1\nreference (\d+) \2\n", output), f"{name}: {output!r}")
    print(f"{name}: {output.split()}")


def check_tool(prefix, model, torch, environment, has_backend):
    """The installed command line tool, and whether it has the reference path."""
    tool = prefix / "bin/vitrine"
    generate = (tool, "generate", model, "-p", PROMPT, "-n", 4, "--seed", 7)
    expect(run(*generate, env=environment).strip(), f"{tool}: no text")
    expect_refusal("the tool without libtorch",
                   ["libvitrine_torch.so", "scripts/build all", "--kernels fused"],
                   *generate, "--kernels", "reference", env=environment)
    if has_backend:
        run(*generate, "--kernels", "reference",
            env={**environment, "LD_LIBRARY_PATH": str(torch / "lib")})


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
    models = {"folder": (arguments.model, PROMPT),
              "GGUF file": (arguments.source / "tests/data/gguf/dense.gguf", "a b ab a"),
              "federation": (arguments.source / "models/fractalmoe-30m-adapters/federation.json",
                             PROMPT)}

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # Nobody finds a virtual environment from here.
        alone = {k: v for k, v in os.environ.items() if k not in hidden}
        alone["HOME"] = str(folder / "nowhere")

        def build(source, into, prefix, *options):
            run(arguments.cmake, "-G", "Ninja", "-S", source, "-B", into,
                f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release", *options, env=alone)
            run(arguments.cmake, "--build", into, env=alone)

        def build_by_package(source, program, prefix, name, *variables):
            """Builds with what pkg-config says of a package, and checks that one's version."""
            package = next(prefix.rglob("vitrine.pc")).parent
            where = {**alone, "PKG_CONFIG_PATH": str(package)}
            version = run("pkg-config", "--modversion", name, env=where).strip()
            expect(f'"{version}"' in (prefix / "include/vitrine/version.h").read_text(),
                   f"{name}.pc is of version {version}")
            flags = run("pkg-config", *variables, "--cflags", "--libs", name, env=where)
            libraries = run("pkg-config", "--variable=libdir", "vitrine", env=where).strip()
            run(arguments.compiler, "-std=c++20", "-O1", source, *shlex.split(flags),
                f"-Wl,-rpath,{libraries}", "-o", program, env=alone)

        small = folder / "small"
        run(arguments.cmake, "--install", arguments.build, "--prefix", small, "--component", "vitrine")
        headers = {p.name for p in (small / "include/vitrine").iterdir()}
        expected = {p.name for p in (arguments.source / "include/vitrine").iterdir()} | {"version.h"}
        expect(headers == expected, f"installed headers {sorted(headers)}, expected {sorted(expected)}")
        check_run_paths(small)
        check_without_torch(small, alone)
        check_tool(small, arguments.model, arguments.torch, alone, has_backend=False)
        build(arguments.source / "examples/embed", folder / "embed", small)
        check_embed("find_package", folder / "embed/embed", small, models, alone)
        build(arguments.source / "examples/embed", folder / "embed-of-build", arguments.build)
        check_embed("find_package in the build folder", folder / "embed-of-build/embed",
                    arguments.build, models, alone)
        build(arguments.source / "examples/kv_codec", folder / "kv_codec", small)
        check_codec(folder / "kv_codec/kv_codec", arguments.model, alone)
        # The prefix may be moved: vitrine.pc goes by its own place.
        other = folder / "another-prefix"
        shutil.copytree(small, other, symlinks=True)
        build_by_package(arguments.source / "examples/embed/main.cc", folder / "embed-by-package",
                         other, "vitrine")
        check_embed("pkg-config", folder / "embed-by-package", other, models, alone)
        project = folder / "torch_host"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(HOST_PROJECT)
        result = subprocess.run([arguments.cmake, "-S", project, "-B", folder / "refused",
                                 f"-DCMAKE_PREFIX_PATH={small}"], capture_output=True, text=True)
        expect(result.returncode != 0 and "VITRINE_TORCH=ON" in " ".join(result.stderr.split()),
               f"a package without its component torch gave it: {result.stderr}")

        whole = folder / "whole"
        run(arguments.cmake, "--install", arguments.build, "--prefix", whole)
        expect("libvitrine_torch.so" in {p.name for p in binaries(whole)}, "no torch backend")
        check_run_paths(whole)
        check_tool(whole, arguments.model, arguments.torch, alone, has_backend=True)
        moved = folder / "elsewhere"
        moved.mkdir()
        for entry in (arguments.torch, arguments.torch.parent / "nvidia"):
            (moved / entry.name).symlink_to(entry)
        for name, options, torch in (("remembered", [], arguments.torch),
                                     ("moved", [f"-DVITRINE_TORCH_DIR={moved / 'torch'}"],
                                      moved / "torch")):
            build(project, folder / name, whole, *options)
            check_host(name, folder / name / "torch_host", whole, torch, arguments.model, alone)
        build_by_package(HOST, folder / "host-by-package", whole, "vitrine-torch",
                         f"--define-variable=torch_libdir={moved / 'torch/lib'}")
        check_host("pkg-config, moved", folder / "host-by-package", whole, moved / "torch",
                   arguments.model, alone)


if __name__ == "__main__":
    main()
