# SPDX-License-Identifier: Apache-2.0
"""The commands of a bundle:

    run-all [--minutes M]     every part within so many minutes, the most valuable first
    run-one NAME              one part again
    run-deep                  what a second visit is for: compute-sanitizer and ncu

Results go to --out: results.json, log.txt and summary.txt. A part that fails or is too slow costs no
other part anything; a run that is killed leaves what it found."""

import argparse
import dataclasses
import datetime
import pathlib
import signal
import subprocess
import sys
import time
import typing

from . import audit, card, deep, federation, large, model, programs, summary
from .session import Failed, OutOfTime, Session, Skipped


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    seconds: float  # in a run of five minutes
    function: typing.Callable
    what: str


PARTS = (
    Part("card", 20, card.run, "the card, its bandwidth and its bf16 rate"),
    Part("model", 20, model.run, "the shipped model beside the CPU's ids and digests"),
    Part("audit", 45, audit.run, "what the recorder costs"),
    Part("tests", 105, programs.run, "the tests for a GPU"),
    Part("large", 85, large.run, "Qwen3-30B-A3B's shape, and its kernels"),
    Part("federation", 8, federation.run, "a joint of three specialists"),
)
DEEP = (
    Part("memcheck", 120, deep.memcheck, "compute-sanitizer memcheck on two layers"),
    Part("racecheck", 120, deep.racecheck, "compute-sanitizer racecheck on two layers"),
    Part("profile", 60, deep.profile, "one report of ncu"),
)
RESERVE = 15  # seconds of five minutes for unpacking and the last words
LEAST = 1.5  # a part with less than this is not begun


def parse_arguments(kind, words):
    parser = argparse.ArgumentParser(prog=f"run-{kind}", description=__doc__.splitlines()[0])
    if kind == "one":
        parser.add_argument("name", choices=[part.name for part in PARTS + DEEP])
    parser.add_argument("--minutes", type=float, default=5 if kind == "all" else 6,
                        help="the time that all of it may take (default: %(default)g)")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results (default: results)")
    parser.add_argument("--work", type=pathlib.Path,
                        help="where the programs are unpacked (default: in the bundle)")
    parser.add_argument("--tree", type=pathlib.Path, default=pathlib.Path.cwd(),
                        help="a checkout, for what the bundle leaves out (default: this folder)")
    parser.add_argument("--commit", help="the commit that the bundle should have")
    arguments = parser.parse_args(words)
    if not 0.05 <= arguments.minutes <= 600:
        parser.error("expected --minutes from 0.05 to 600")
    return arguments


def tree_commit(tree):
    try:
        found = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True,
                               text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def same_commit(a, b):
    """Whether one is the other or begins it."""
    return a.startswith(b) or b.startswith(a)


def check_commit(session, expected):
    """A bundle of another commit says so, and runs."""
    commit, tree = session.facts["commit"], tree_commit(session.tree)
    if expected and not same_commit(commit, expected):
        session.note(f"STALE: the bundle is of commit {commit}, not of {expected[:12]}")
    elif tree is not None and not same_commit(commit, tree):
        session.note(f"STALE: the bundle is of commit {commit}, and {session.tree} is at {tree[:12]}")
    if session.facts["changed"]:
        session.note(f"the bundle has changes that commit {commit} has not")


def run_part(session, part, end):
    """Runs one part until `end`; all that it does wrong is its own."""
    limit = end - time.monotonic()
    found = session.results["parts"][part.name] = {"status": "running", "limit": round(limit, 1)}
    session.part, session.part_end = part.name, end
    session.log(f"\n== {part.name}: {part.what}, {limit:.0f} s")
    start = time.monotonic()
    session.write()
    try:
        if limit < LEAST:
            raise Skipped(f"{max(limit, 0):.1f} s are left; run-one {part.name} runs it alone")
        part.function(session)
        failed, late, skipped = (found.get(f"{kind}_steps", {}) for kind in ("failed", "late", "skipped"))
        found["status"] = ("failed" if failed else "out of time" if late else
                           "skipped" if skipped and not found.get("steps_done") else "ok")
        if failed or late or skipped:
            found["error"] = "; ".join(f"{name}: {why}"
                                       for name, why in {**failed, **late, **skipped}.items())
    except (Skipped, OutOfTime, Failed) as error:
        found["status"] = {Skipped: "skipped", OutOfTime: "out of time", Failed: "failed"}[type(error)]
        found["error"] = str(error)
    except Exception as error:  # pylint: disable=broad-except
        found["status"] = "failed"
        found["error"] = f"{type(error).__name__}: {error}"
    found["seconds"] = round(time.monotonic() - start, 2)
    session.part_end = None
    session.say(f"{part.name}: {found['status']}, {found['seconds']:.1f} s"
                + (f": {found['error']}" if "error" in found else ""))
    session.results["answers"] = summary.answers(session.results)
    session.write()


def run_parts(session, parts, minutes, start):
    """Each part may run until its place in the schedule ends: what one leaves over the next ones
    have, and none takes another's time."""
    scale = (60 * minutes * (1 - RESERVE / 300)) / sum(part.seconds for part in parts)
    begin = time.monotonic()
    last = start + 60 * minutes * (1 - 2 / 300)
    end = begin
    for part in parts:
        end += part.seconds * scale
        run_part(session, part, min(end, last))


def main(kind, bundle, words):
    start = time.monotonic()
    arguments = parse_arguments(kind, words)
    bundle = bundle.resolve()
    out = (arguments.out or pathlib.Path("results")).resolve()
    session = Session(bundle, out, (arguments.work or bundle / "unpacked").resolve(),
                      arguments.tree.resolve())
    parts = {"all": PARTS, "deep": DEEP}.get(kind)
    if parts is None:
        parts = [part for part in PARTS + DEEP if part.name == arguments.name]
    session.results["started"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
    session.results["minutes"] = arguments.minutes

    def stop(number, _frame):
        session.stop(f"ended by signal {number}")
        summary.write(session)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    session.write()
    try:
        check_commit(session, arguments.commit)
        session.unpack()
        session.say(f"unpacked after {time.monotonic() - start:.1f} s")
        run_parts(session, parts, arguments.minutes, start)
    except (OSError, Failed) as error:
        session.note(f"cannot run: {error}")
        session.write()
        return 1
    session.results["finished"] = True
    session.results["seconds"] = round(time.monotonic() - start, 1)
    session.write()
    session.say(summary.write(session))
    return 0 if all(one["status"] in ("ok", "skipped")
                    for one in session.results["parts"].values()) else 1
