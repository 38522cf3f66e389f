# SPDX-License-Identifier: Apache-2.0
"""A run of a bundle: its programs, its time, its results. Everything is on the disk as soon as it is
known: results.json is replaced as a whole, the log is flushed line by line."""

import ctypes
import dataclasses
import importlib.util
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tarfile
import time

MAX_LOG_BYTES = 8 << 20
MAX_OUTPUT_BYTES = 4 << 20  # of one program, that is looked at
MAX_LINE = 400  # characters of a line that go into the log


class OutOfTime(Exception):
    """The part's time is over."""


class Skipped(Exception):
    """Cannot run here; the reason in one line."""


class Failed(Exception):
    """A program or a comparison failed; the reason in one line."""


@dataclasses.dataclass
class Finished:
    """A program that ended, or was ended."""
    code: int
    seconds: float
    timed_out: bool
    output: str

    def last_line(self):
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1][:MAX_LINE] if lines else "it printed nothing"


def die_with_parent():
    """A program does not outlive a run that is killed: it would hold the device."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def extract(archive, folder):
    """Unpacks an archive of ours."""
    more = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}  # not in every Python 3.11
    with tarfile.open(archive) as opened:
        opened.extractall(folder, **more)


def torch_folder():
    """The folder of the torch that this Python would import; nothing is imported."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    return pathlib.Path(found.origin).parent


class Session:
    def __init__(self, bundle, out, work, tree):
        self.bundle, self.out, self.tree = bundle, out, tree
        self.facts = json.loads((bundle / "bundle.json").read_text())
        self.work = work
        self.scratch = work / "scratch"
        out.mkdir(parents=True, exist_ok=True)
        self.log_file = open(out / "log.txt", "w", encoding="utf-8")
        self.log_bytes = self.writes = 0
        self.part, self.part_end = None, None
        self.process = None
        self.results = {"bundle": self.facts, "notes": [], "parts": {}, "answers": {},
                        "finished": False}

    # What is written.

    def log(self, line=""):
        if self.log_bytes > MAX_LOG_BYTES:
            return
        text = "\n".join(one[:MAX_LINE] for one in line.split("\n")) + "\n"
        self.log_bytes += len(text.encode())
        if self.log_bytes > MAX_LOG_BYTES:
            text = "the log is full; the rest is left out\n"
        self.log_file.write(text)
        self.log_file.flush()

    def say(self, line):
        """To the log, and to whoever still reads what is printed."""
        self.log(line)
        try:
            print(line, flush=True)
        except OSError:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")

    def note(self, line):
        self.results["notes"].append(line)
        self.say(line)

    def write(self):
        # A name of its own: a signal can come while a file is written, and writes again.
        self.writes += 1
        temporary = self.out / f"results.json.{self.writes}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(self.results, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.out / "results.json")

    def keep(self, **found):
        """Puts what the running part found into the results, at once."""
        self.results["parts"][self.part].update(found)
        self.write()

    def step(self, name, function):
        """One of a part's steps: where it fails the others go on."""
        try:
            function()
            part = self.results["parts"][self.part]
            part["steps_done"] = part.get("steps_done", 0) + 1
        except (Skipped, OutOfTime, Failed) as error:
            kind = {Skipped: "skipped_steps", OutOfTime: "late_steps", Failed: "failed_steps"}[type(error)]
            self.results["parts"][self.part].setdefault(kind, {})[name] = str(error)
            self.say(f"  {name}: {error}")
            self.write()

    def kept(self, part, key, default=None):
        return self.results["parts"].get(part, {}).get(key, default)

    # Time.

    def left(self):
        """Seconds of the part."""
        return float("inf") if self.part_end is None else self.part_end - time.monotonic()

    # Files.

    def unpack(self):
        """The programs and their data, once for each bundle."""
        stamp = self.work / "unpacked"
        name = self.facts["made"] + " " + self.facts["commit"]
        if not stamp.is_file() or stamp.read_text() != name:
            self.work.mkdir(parents=True, exist_ok=True)
            extract(self.bundle / self.facts["payload"], self.work)
            stamp.write_text(name)
        self.scratch.mkdir(exist_ok=True)

    def find(self, path):
        """A file or folder that the bundle has, or the checkout beside it."""
        for root in (self.work, self.bundle, self.tree):
            if (root / path).exists():
                return root / path
        raise Failed(f"{path} is neither in the bundle nor in {self.tree}; run this in a checkout "
                     "or make a bundle without --beside-tree")

    def program(self, name):
        path = self.work / "bin" / name
        if not path.is_file():
            raise Skipped(f"the bundle has no {name}")
        return str(path)

    def test_data(self):
        """The tests' data; the checkpoints of a checkout stand in an archive."""
        if (self.work / "tests/data/oracles").is_dir():
            return self.work / "tests/data"
        folder = self.work / "tests-data"
        if not (folder / "oracles").is_dir():
            folder.mkdir(exist_ok=True)
            tree = self.find("tests/data")
            for part in tree.iterdir():
                link = folder / part.name
                if part.is_dir() and not link.exists():
                    link.symlink_to(part)
            extract(tree / "oracles.tar.xz", folder)
        return folder

    # Programs.

    def environment(self):
        folders = [str(self.work / "lib")]
        torch = torch_folder()
        if torch is not None:
            folders += [str(torch / "lib"), str(torch.parent / "nvidia/cu13/lib")]
        before = os.environ.get("LD_LIBRARY_PATH")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders + ([before] if before else []))}
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        return environment

    def run(self, command, seconds, on_line=None, more_environment=None):
        """Runs a program with its output in the log, for so many seconds or what the part has left.
        `on_line` gets each line; where it gives a number, the program is ended unless another line
        comes within so many seconds (0: now)."""
        limit = min(seconds, self.left())
        if limit < 0.2:
            raise OutOfTime("no time is left for " + pathlib.Path(command[0]).name)
        command = [str(word) for word in command]
        self.log("$ " + " ".join(command))
        start = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            process_group=0, preexec_fn=die_with_parent, cwd=self.scratch,
            env={**self.environment(), **(more_environment or {})})
        output, timed_out = self._read(start + limit, on_line)
        code = self._end(kill=timed_out)
        took = time.monotonic() - start
        self.log(f"= {code} after {took:.1f} s" + (", ended" if timed_out else ""))
        return Finished(code, took, timed_out, output)

    def _read(self, end, on_line):
        """(what the program printed, whether it is to be ended)"""
        kept, size, rest = [], 0, b""
        line_end = float("inf")
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                wait = min(end, line_end) - time.monotonic()
                if wait <= 0:
                    return "".join(kept), True
                if not selector.select(wait):
                    continue
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                if not data and rest:
                    lines, rest = [rest], b""
                for raw in lines:
                    line = raw.decode(errors="replace")
                    self.log(line)
                    if size < MAX_OUTPUT_BYTES:
                        kept.append(line + "\n")
                        size += len(line) + 1
                    more = on_line(line) if on_line else None
                    if more is not None:
                        line_end = time.monotonic() + more
                if not data:
                    return "".join(kept), False

    def _end(self, kill):
        """The exit code. A program that holds a device may take long to die: it is not waited for."""
        process, self.process = self.process, None
        try:
            if kill:
                os.killpg(process.pid, signal.SIGKILL)
            return process.wait(timeout=5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            return process.poll() if process.poll() is not None else -signal.SIGKILL
        finally:
            process.stdout.close()

    def stop(self, why):
        """Ends what runs and writes what is known, in a signal's handler: prints nothing."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.results["notes"].append(why)
        self.write()
        for left in self.out.glob("results.json.*.tmp"):
            left.unlink()

    def vitrine(self, *arguments, seconds):
        """The command line tool; what it printed, or Failed."""
        done = self.run([self.program("vitrine"), *arguments], seconds)
        if done.timed_out:
            raise OutOfTime(f"vitrine {arguments[0]} was ended after {done.seconds:.0f} s")
        if done.code != 0:
            raise Failed(f"vitrine {arguments[0]}: {done.last_line()}")
        return done.output

    def needs_gpu(self):
        if self.facts["emulated"]:
            raise Skipped("needs a GPU, and this bundle has the emulator's library")
