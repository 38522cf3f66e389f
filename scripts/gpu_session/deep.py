# SPDX-License-Identifier: Apache-2.0
"""For a second visit: compute-sanitizer on a model of two layers, and one report of ncu. Each is skipped
in one line where its tool is not there or cannot run."""

import json
import os
import pathlib
import re
import shutil
import sys

from .session import Failed, OutOfTime, Skipped

CANNOT = re.compile(r"(device not supported|LibraryNotLoaded|ERR_NVGPUCTRPERM|failed to initialize"
                    r"|unable to find|no kernels were profiled|not compatible)", re.IGNORECASE)
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards?")


def tool(session, name):
    places = [shutil.which(name), f"/usr/local/cuda/bin/{name}",
              *sorted(map(str, pathlib.Path("/opt/nvidia").glob(f"nsight-compute/*/{name}")))]
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    raise Skipped(f"there is no {name}")


def score(session):
    """A prompt and 24 steps of two layers."""
    path, ids = session.scratch / "two-layers.gguf", session.scratch / "ids.json"
    done = session.run([sys.executable, session.find("bench/fill_gguf.py"),
                        session.find(session.facts["two_layers"]["header"]), path], 30)
    if done.code != 0:
        raise Failed(f"the weights: {done.last_line()}")
    ids.write_text(json.dumps([17 * i % 300 for i in range(40)]))
    return [session.program("vitrine"), "score", path, "--tokens", ids, "--out",
            session.scratch / "score.json", *session.facts["devices"]["fused"]]


def sanitize(session, check):
    done = session.run([tool(session, "compute-sanitizer"), "--tool", check, "--print-limit", "20",
                        *score(session)], session.left())
    found = [line for line in done.output.splitlines() if line.startswith("=========")]
    session.keep(lines=found[:100])
    if done.timed_out:
        raise OutOfTime(f"it was ended after {done.seconds:.0f} s")
    match = ERRORS.search(done.output)
    if match is None:
        raise Skipped(f"it cannot run here: {cause(done)}")
    count = int(match[1] or match[2])
    session.keep(errors=count)
    if count:
        raise Failed(f"{count} errors; the first: {found[1] if len(found) > 1 else ''}")


def score_alone(session):
    """Without a tool: what it would watch runs."""
    done = session.run(score(session), session.left())
    if done.timed_out or done.code != 0:
        raise Failed(f"two layers: {done.last_line()}")


def cause(done):
    for line in done.output.splitlines():
        if CANNOT.search(line):
            return line.strip()[:200]
    return done.last_line()[:200]


def memcheck(session):
    score_alone(session)
    session.step("memcheck", lambda: sanitize(session, "memcheck"))


def racecheck(session):
    session.step("racecheck", lambda: sanitize(session, "racecheck"))


def profile(session):
    """What bounds the kernels of one step: throughput of memory and of the multiprocessors."""
    program = session.program("cuda_products_bench")
    done = session.run([tool(session, "ncu"), "--clock-control", "none", "--section", "SpeedOfLight",
                        "--launch-count", "12", "--csv", "--page", "raw", program, "gate_up W4"],
                       session.left())
    lines = [line for line in done.output.splitlines() if line.startswith('"')]
    session.keep(csv=lines[:60])
    if done.timed_out:
        raise OutOfTime(f"it was ended after {done.seconds:.0f} s")
    if len(lines) < 3:
        raise Skipped(f"it cannot run here: {cause(done)}")
