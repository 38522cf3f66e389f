# SPDX-License-Identifier: Apache-2.0
"""Qwen3-30B-A3B's shape: the kernels of a layer alone, then `vitrine bench generate` of the whole with
random weights that are drawn here, with bf16 and int8 activations, with the recorder and without."""

import json
import os
import pathlib
import shutil
import sys

from .bench_lines import read_lines
from .session import Failed, OutOfTime

MEMORY_FOLDER = pathlib.Path("/dev/shm")


def run(session):
    for program in ("cuda_products_bench", "cuda_kernels_bench"):
        session.step(program, lambda program=program: kernels(session, program))
    # With experts of zeros the file is there at once, and as many bytes are read: should the time not
    # suffice to draw all weights, there are figures, and where it does, both can be compared.
    for weights, more in (("zero experts", ["--zero-experts"]), ("all drawn", [])):
        session.step(weights, lambda weights=weights, more=more: with_weights(
            session, weights, more, lambda path: [
                session.step(f"{' '.join(run)}, {weights}",
                             lambda run=run: generate(session, path, weights, *run))
                for run in session.facts["large"]["runs"]]))


def kernels(session, program):
    session.needs_gpu()
    done = session.run([session.program(program)], min(30, session.left() * 0.3))
    lines = read_lines(done.output)
    session.keep(**{program: lines})
    if done.timed_out:
        raise OutOfTime(f"it was ended after {len(lines)} lines")
    if done.code != 0 or not lines:
        raise Failed(done.last_line())


def with_weights(session, weights, more, use):
    """Draws the weights into memory, or where that is small onto the disk, and takes them away."""
    facts = session.facts["large"]
    header = session.find(facts["header"])
    needed = facts["bytes"] + (256 << 20)
    remove_left_over(session)
    folders = [folder for folder in (MEMORY_FOLDER, session.scratch)
               if folder.is_dir() and os.access(folder, os.W_OK)
               and shutil.disk_usage(folder).free > needed]
    if not folders:
        raise Failed(f"no place for {needed / 1e9:.1f} GB of weights")
    path = folders[0] / f"vitrine-{os.getpid()}-large.gguf"
    try:
        done = session.run([sys.executable, session.find("bench/fill_gguf.py"), header, path,
                            *more], session.left())
        if done.timed_out:
            raise OutOfTime(f"drawing them was ended after {done.seconds:.0f} s")
        if done.code != 0:
            raise Failed(f"drawing them: {done.last_line()}")
        fills = session.kept("large", "fills", {})
        fills[weights] = {"seconds": round(done.seconds, 2), "folder": str(folders[0])}
        session.keep(fills=fills)
        use(path)
    finally:
        for left in (path, path.with_name(path.name + ".tmp")):
            left.unlink(missing_ok=True)


def remove_left_over(session):
    """Weights of a run that was killed, which would fill the memory."""
    for folder in (MEMORY_FOLDER, session.scratch):
        for path in folder.glob("vitrine-*-large.gguf*"):
            if not pathlib.Path("/proc", path.name.split("-")[1]).exists():
                path.unlink(missing_ok=True)


def generate(session, path, weights, activations, audit):
    facts = session.facts["large"]
    more = ["--goes-on"] if audit == "deferred" else []
    output = session.vitrine(
        "bench", "generate", path, "-p", facts["prompt"], "--step-tokens", facts["prompt"],
        "-n", facts["tokens"], "--batch", ",".join(map(str, facts["batches"])), "--repeat",
        facts["repeat"], "--audit", audit, "--activation-type", activations, "--kv-type", "bf16",
        "--json", *more, *session.facts["devices"]["fused"],
        seconds=session.left() * 0.6)  # one that hangs leaves the others their time
    found = json.loads(output[output.index("{"):])
    runs = session.kept("large", "runs", {})
    name = f"{activations} {audit}" + ("" if weights == "all drawn" else f", {weights}")
    runs[name] = found
    session.keep(runs=runs)
