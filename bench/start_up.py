# SPDX-License-Identifier: Apache-2.0
"""What a process costs before it does anything: size on the disk, start and peak memory, of one
build or of several by turns.

    start_up.py FOLDER... [--model models/fractalmoe-30m-int4] [--runs 20]

A FOLDER is a build folder or an install prefix. Its size is that of the program and of all shared
libraries that the loader maps for it, but for those of the system's own folders. `start` is
`vitrine --version`, `one token` is `vitrine generate MODEL -p x -n 1`, each a process of its own: the
median of the runs in milliseconds, and the largest resident size."""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

SYSTEM = re.compile(r"^/(?:usr/)?lib(?:32|64)?/")


def program_of(folder):
    for name in ("vitrine", "bin/vitrine"):
        if (pathlib.Path(folder) / name).is_file():
            return pathlib.Path(folder) / name
    sys.exit(f"start_up.py: {folder} has no program vitrine; expected a build folder or a prefix")


def files_of(program):
    """The program and the libraries that are loaded with it, those of the system left out."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    found = {pathlib.Path(path).resolve() for path in re.findall(r"=> (/\S+)", listed)
             if not SYSTEM.match(path)}
    return [program, *sorted(found)]


def run(command):
    """Seconds and peak bytes of one process."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"start_up.py: {command}: {message.decode(errors='replace').strip()}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--model", default="models/fractalmoe-30m-int4")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    commands = {"start": ["--version"],
                "one token": ["generate", arguments.model, "-p", "x", "-n", "1"]}
    programs = [program_of(folder) for folder in arguments.folders]
    found = {(program, name): [] for program in programs for name in commands}
    for turn in range(-1, arguments.runs):  # the first brings the files into the page cache
        for program in programs if turn % 2 == 0 else programs[::-1]:
            for name, words in commands.items():
                result = run([str(program), *words])
                if turn >= 0:
                    found[program, name].append(result)
    for folder, program in zip(arguments.folders, programs):
        files = files_of(program)
        size = sum(path.stat().st_size for path in files)
        print(f"{folder}: {size / 1e6:.1f} MB in {len(files)} files")
        for name in commands:
            seconds, bytes_ = zip(*found[program, name])
            print(f"  {name:9}  {statistics.median(seconds) * 1000:7.1f} ms "
                  f"({min(seconds) * 1000:.1f} to {max(seconds) * 1000:.1f}), "
                  f"{statistics.median(bytes_) / 1e6:.0f} MB at most")


if __name__ == "__main__":
    main()
