# SPDX-License-Identifier: Apache-2.0
"""Fails where the demo builds more than it runs: what Ninja would do for its targets
(`scripts/build --list`) must lie in the folders below."""

import argparse
import pathlib
import re
import subprocess
import sys

# The demo needs nothing of CUDA, Parquet, tests, benches and other examples.
ALLOWED = re.compile(r"(?:kernels/cpu|src/(?!backend_)\w+|examples/cli|CMakeFiles)/")


def outputs(build, targets):
    """Every file that Ninja writes for the targets, relative to the build folder."""
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", *targets],
                              capture_output=True, text=True, check=True).stdout
    return re.findall(r" -o (\S+\.o) ", commands)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    listed = subprocess.run([arguments.source / "scripts/build", "--list"], capture_output=True,
                            text=True, check=True).stdout.split()
    objects = outputs(arguments.build, listed)
    wrong = [name for name in objects if not ALLOWED.match(name)]
    planted = [name for name in outputs(arguments.build, ["kv_test"]) if not ALLOWED.match(name)]
    print(f"{len(objects)} objects for {' '.join(listed)}, {len(wrong)} of other folders")
    print("\n".join(wrong))
    if not planted:
        print("a test's objects were not found: this check sees nothing")
    return 1 if wrong or not objects or not planted else 0


if __name__ == "__main__":
    sys.exit(main())
