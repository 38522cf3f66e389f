# SPDX-License-Identifier: Apache-2.0
"""Calibrations that are killed: the same command goes on behind the last whole layer."""

import hashlib
import json
import os
import signal
import subprocess
import time

from tool import SMALL, VITRINE, CliTest

LAYERS = ".out.tmp-layers"


class ResumedQuantize(CliTest):
    def write_texts(self, texts):
        (self.folder / "s.vcal").write_text(json.dumps({
            "schema": "vitrine-calibration", "schema_version": 1, "tokenizer_sha256": "",
            "manifest": {},
            "texts": [[i * 7 % 200 for i in range(j, j + 40)] for j in range(texts)]}))

    def arguments(self, out, *more):
        return ["quantize", SMALL, out, "--scheme", "int4", "--method", "awq", "--calibration",
                "s.vcal", *more]

    def digests(self, out):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in (self.folder / out).iterdir()}

    def kill_behind_first_layer(self, number=signal.SIGKILL):
        """More text makes a layer take longer, until the signal comes before the end."""
        for attempt in range(8):
            self.write_texts(20 << attempt)
            process = subprocess.Popen([VITRINE, *self.arguments("out")], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            while not (self.folder / LAYERS / "layer-0").exists() and process.poll() is None:
                time.sleep(0.0005)
            process.send_signal(number)
            stderr = process.communicate()[1].decode()
            if process.returncode != 0:
                return process.returncode, stderr
            for path in (self.folder / "out").iterdir():
                path.unlink()
        self.fail("no run was slow enough to be killed")

    def test_a_killed_run_goes_on(self):
        self.assertEqual(self.kill_behind_first_layer()[0], -signal.SIGKILL)
        self.assertIn(LAYERS, os.listdir(self.folder))
        self.succeed(*self.arguments("whole"))
        resumed = self.succeed(*self.arguments("out"))
        self.assert_one_line(resumed.stderr, "quantize: goes on with", "layers", LAYERS)
        self.assertRegex(resumed.stdout.decode(), r"\d+ layers taken from an earlier run")
        self.assertEqual(self.digests("out"), self.digests("whole"))
        self.assertNotIn(LAYERS, os.listdir(self.folder))

    def test_another_command_begins_anew(self):
        self.kill_behind_first_layer()
        other = self.succeed(*self.arguments("out", "--keep-head"))
        self.assert_one_line(other.stderr, LAYERS, "another options; begins anew")
        self.assertNotIn("earlier run", other.stdout.decode())
        self.assertNotIn(LAYERS, os.listdir(self.folder))

    def test_an_interrupted_run_says_what_it_keeps(self):
        code, stderr = self.kill_behind_first_layer(signal.SIGINT)
        self.assertNotEqual(code, 0)
        self.assertIn("kept for the same command", stderr)
        afresh = self.succeed(*self.arguments("out", "--no-resume"))
        self.assertEqual(afresh.stderr, b"")
        self.assertNotIn("earlier run", afresh.stdout.decode())
