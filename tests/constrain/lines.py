# SPDX-License-Identifier: Apache-2.0
"""Drives the program check_lines (its file says what it reads and writes)."""

import json
import subprocess
import sys
import unittest


class Lines:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, encoding="utf-8")

    def ask(self, texts, **request):
        """`texts`: str or bytes. The answer: a dict."""
        request["texts"] = [(t if isinstance(t, bytes) else t.encode("utf-8", "surrogatepass")).hex()
                            for t in texts]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"check_lines ended with {self.process.wait()} on {request}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class LinesTest(unittest.TestCase):
    """Tests with the program that the first argument names, as self.lines."""

    @classmethod
    def setUpClass(cls):
        cls.lines = Lines(sys.argv[1])

    @classmethod
    def tearDownClass(cls):
        cls.lines.close()
