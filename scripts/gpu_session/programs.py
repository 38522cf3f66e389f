# SPDX-License-Identifier: Apache-2.0
"""The test programs for a GPU, test by test: a test that crashes, hangs or leaves the device in a
fault is one failure, and the rest runs in a new process."""

import re

from .session import Failed, OutOfTime, Skipped

TEST_SECONDS = 30  # for a test; the bundle's facts can name others
MAX_PROCESSES = 25  # of one program
MAX_FAILURE_LINES = 40
# After these every CUDA call of a process fails.
FAULT = re.compile(r"illegal (memory|address|instruction)|misaligned address|unspecified launch|"
                   r"device-side assert|launch (timed out|failure)|uncorrectable|hardware stack error"
                   r"|invalid program counter|cudaErrorUnknown|unknown error", re.IGNORECASE)
# As tests/support/float_bits.h spells it; a single value has no index.
DIFFERENT = re.compile(r"(?:element (?P<index>\d+): )?(?P<a>[^\s(]+) \((?P<a_bits>0x[0-9a-f]{8})\) and "
                       r"(?P<b>[^\s(]+) \((?P<b_bits>0x[0-9a-f]{8})\)")
TOLD = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)")


def run(session):
    for index, test in enumerate(session.facts["tests"]):
        session.step(test["program"], lambda test=test, index=index: run_program(session, test, index))


def list_tests(session, program, test_filter):
    done = session.run([program, "--gtest_list_tests", "--gtest_filter=" + test_filter], 20,
                       more_environment=places(session))
    names, suite = [], ""
    for line in done.output.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    if done.code != 0 or not names:
        raise Failed(f"it lists no tests: {done.last_line()}")
    return names


def places(session):
    return {"VITRINE_TEST_DATA": str(session.test_data()),
            "VITRINE_TEST_MODEL": str(session.find(session.facts["model"]))}


class Reader:
    """Follows what a program prints."""

    def __init__(self, test_seconds):
        self.test_seconds = test_seconds
        self.current, self.lines, self.ended = None, [], {}
        self.is_faulty = False

    def line(self, line):
        told = TOLD.match(line)
        if told is None or (told[1] != "RUN" and told[2] != self.current):
            if self.current is not None and len(self.lines) < MAX_FAILURE_LINES:
                self.lines.append(line[:300])
            return None
        if told[1] == "RUN":
            self.current, self.lines = told[2], []
            return self.test_seconds
        if told[1] == "FAILED":
            self.fail(self.lines)
            if any(FAULT.search(one) for one in self.lines):
                self.is_faulty = True
                return 0
        else:
            self.ended[self.current] = {"OK": "passed", "SKIPPED": "skipped"}[told[1]]
        self.current = None
        return self.test_seconds

    def fail(self, lines):
        self.ended[self.current] = failure(lines)
        self.current = None


def failure(lines):
    """What is known of a failed test: the first value that differs, its index and both bits."""
    found = {"lines": lines}
    for line in lines:
        match = DIFFERENT.search(line)
        if match:
            found["first_difference"] = {"index": int(match["index"]) if match["index"] else None,
                                         "values": [match["a"], match["b"]],
                                         "bits": [match["a_bits"], match["b_bits"]]}
            break
    return found


def run_program(session, test, index):
    program = session.program(test["program"])
    names = left = list_tests(session, program, test.get("filter", "*"))
    ended, faults = {}, []
    test_seconds = test.get("seconds", TEST_SECONDS)
    # A little more than its share: what it leaves over the programs behind it have.
    share = min(1.0, 1.3 / (len(session.facts["tests"]) - index))
    later = session.left() * (1 - share)
    for _ in range(MAX_PROCESSES):
        if not left:
            break
        reader = Reader(test_seconds)
        seconds = session.left() - later
        if seconds < 1:
            break
        done = session.run([program, "--gtest_color=no", "--gtest_filter=" + ":".join(left)], seconds,
                           on_line=reader.line, more_environment=places(session))
        out_of_time = done.timed_out and session.left() - later < 1
        if reader.current is not None and not out_of_time:
            why = (f"it did not end within {test_seconds} s" if done.timed_out
                   else f"the program ended with {done.code} in it")
            reader.fail(reader.lines + [why])
        if reader.is_faulty or done.timed_out or done.code not in (0, 1, 77):
            faults += [name for name, how in reader.ended.items() if isinstance(how, dict)][-1:]
        ended.update(reader.ended)
        keep(session, test["program"], names, ended, faults, done)
        left = [name for name in left if name not in ended]
        if out_of_time or (not reader.ended and reader.current is None):
            break
    report(session, test["program"], names, ended)


def keep(session, program, names, ended, faults, done):
    all_of = session.kept("tests", "programs", {})
    how = list(ended.values())
    all_of[program] = {
        "tests": len(names), "passed": how.count("passed"), "skipped": how.count("skipped"),
        "failed": {name: how for name, how in ended.items() if isinstance(how, dict)},
        "new_process_after": faults,
        "not_run": [name for name in names if name not in ended],
        "last_line": done.last_line()}
    session.keep(programs=all_of)


def report(session, program, names, ended):
    found = session.kept("tests", "programs", {}).get(program)
    if found is None:
        raise OutOfTime("no time was left for it")
    if found["failed"]:
        name, how = next(iter(found["failed"].items()))
        first = how.get("first_difference") or (how["lines"] or [""])[-1]
        raise Failed(f"{len(found['failed'])} of {len(names)} tests failed, first {name}: {first}")
    if found["not_run"]:
        raise OutOfTime(f"{len(ended)} of {len(names)} tests ran; last: {found['last_line']}")
    if found["skipped"] == len(names):
        raise Skipped(f"all {len(names)} tests were skipped")
