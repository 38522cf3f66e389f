# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line tool share: running it, and what a failure must look like."""

import json
import os
import pathlib
import re
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

VITRINE = os.path.abspath(sys.argv[1])
MODEL = os.path.abspath(sys.argv[2])
ORACLES = pathlib.Path(VITRINE).parent / "tests" / "data" / "oracles"
SMALL = str(ORACLES / "qwen3_moe")
PROMPT = "Once upon a time there was"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"  # an OpenTelemetry trace id
TIMEOUT = 300
# An option's twin in the environment of whoever runs the tests is none of theirs.
for name in [name for name in os.environ if name.startswith("VITRINE_")]:
    if name not in ("VITRINE_CPU_ISA", "VITRINE_LONG", "VITRINE_MODELS"):
        del os.environ[name]
# Most tests write one name again and again; those of evidence that stays take it away.
os.environ["VITRINE_OVERWRITE"] = "1"


def without_start(text):
    """A JSON log's text, or its export's, less what two runs cannot share: when each began."""
    less, count = re.subn(rb'"started":\{[^}]*\},\n', b"", text)
    assert count == 1, "one start a log"
    return less


def file_size_limit(size):
    """Options of subprocess.run under which no file grows beyond `size` bytes: a full disk."""

    def limit():
        # As a shell's child has it, whatever this interpreter does with it.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return {"preexec_fn": limit, "restore_signals": False}


def write_byte_model(folder, model=SMALL):
    """A model of 256 tokens, the small one where none is named, with a vocabulary of single bytes."""
    shutil.copytree(model, folder)
    tokenizer = json.loads((pathlib.Path(MODEL) / "tokenizer.json").read_text())
    single = sorted(piece for piece in tokenizer["model"]["vocab"] if len(piece) == 1)
    if len(single) != 256:
        raise ValueError(f"{MODEL} has {len(single)} tokens of one byte, not 256")
    tokenizer["model"].update(vocab={piece: i for i, piece in enumerate(single)}, merges=[])
    tokenizer.update(added_tokens=[], post_processor=None)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_tool(self, *arguments, stdin=b"", **options):
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.run([VITRINE, *map(str, arguments)], input=stdin, stderr=subprocess.PIPE,
                              cwd=self.folder, timeout=TIMEOUT, check=False, **options)

    def start_endless(self, *more):
        """A run that cannot end by itself: its text fills the pipe before its context."""
        process = subprocess.Popen(
            [VITRINE, "generate", MODEL, "-p", PROMPT, "-n", "100000", "--ignore-end-of-text",
             *more], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pipesize=4096, bufsize=0)
        process.stdout.read(1)
        return process

    def succeed(self, *arguments, **options):
        result = self.run_tool(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result

    def succeed_json(self, *arguments, **options):
        return json.loads(self.succeed(*arguments, **options).stdout)

    def on_terminal(self, *arguments, **environment):
        """What the tool writes to a terminal."""
        parent, child = pty.openpty()
        process = subprocess.Popen([VITRINE, *map(str, arguments)], cwd=self.folder, stdout=child,
                                   stderr=subprocess.PIPE,
                                   env={**os.environ, "TERM": "xterm", **environment})
        os.close(child)
        out = b""
        while True:
            try:
                part = os.read(parent, 1 << 16)
            except OSError:  # the other end was closed
                part = b""
            if not part:
                break
            out += part
        process.communicate(timeout=TIMEOUT)
        os.close(parent)
        self.assertEqual(process.returncode, 0)
        return out

    def assert_one_line(self, stderr, *words):
        text = stderr.decode()
        self.assertEqual(text.count("\n"), 1, text)
        self.assertTrue(text.endswith("\n"), text)
        self.assertTrue(text.startswith("vitrine: "), text)
        for word in words:
            self.assertIn(word, text)

    def fail_with(self, code, words, *arguments, **options):
        """The tool fails with this code and one line; the folder is as it was."""
        before = sorted(os.walk(self.folder))
        result = self.run_tool(*arguments, **options)
        self.assertEqual(result.returncode, code, (arguments, result.stderr))
        self.assert_one_line(result.stderr, *words)
        self.assertEqual(sorted(os.walk(self.folder)), before, "something was left behind")
        return result

    def replay(self, name, *more, code=0):
        result = self.run_tool("audit", "replay", name, *more)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode()

    def write_ids(self, ids, name="ids.json"):
        path = self.folder / name
        path.write_text(ids if isinstance(ids, str) else json.dumps(ids))
        return path


class AuditCase(CliTest):
    """Runs with a log."""

    def generate(self, name="run.vtr", *more, tokens=40, model=MODEL):
        return self.succeed("generate", model, "-p", PROMPT, "-n", tokens, "--seed", 5,
                            "--ignore-end-of-text", "--audit", name, *more)

    def verify(self, name="run.vtr", *more, code=0):
        result = self.run_tool("audit", "verify", name, *more)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode()

    def prompt_tokens(self, prompt=PROMPT):
        return len(self.succeed_json("tokenize", MODEL, "-p", prompt, "--json")["ids"])
