# SPDX-License-Identifier: Apache-2.0
"""What was delivered is logged, evidence is not overwritten, and the head says when."""

import json
import os
import platform
import shutil
import signal
import subprocess
import time

from tool import MODEL, ORACLES, PROMPT, TRACE, VITRINE, AuditCase

LOGS = ORACLES.parent / "logs"


class Evidence(AuditCase):
    def setUp(self):
        super().setUp()
        self.environment = {k: v for k, v in os.environ.items() if k != "VITRINE_OVERWRITE"}

    def start(self, *arguments):
        return subprocess.Popen([VITRINE, "generate", MODEL, "-p", PROMPT, "-n", "400",
                                 "--ignore-end-of-text", *arguments], cwd=self.folder,
                                env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL)

    def kill_at_the_first_byte(self, *arguments):
        process = self.start(*arguments)
        self.assertEqual(len(process.stdout.read(1)), 1)
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()

    def test_a_killed_run_leaves_its_log(self):
        self.kill_at_the_first_byte("--audit", "run.vtr", "--trace-id", TRACE)
        self.assertTrue(self.verify("run.vtr", code=1).startswith("OPEN: "))
        self.assertIn(TRACE, self.run_tool("audit", "show", "run.vtr").stdout.decode())
        # What was there before is never taken for its log.
        self.generate("run.vtr")
        self.assertTrue(self.verify("run.vtr").startswith("complete"))
        self.kill_at_the_first_byte("--audit", "run.vtr", "--overwrite", "--seed", "7")
        self.assertTrue(self.verify("run.vtr", code=1).startswith("OPEN: "))
        self.assertIn("seed 7", self.run_tool("audit", "show", "run.vtr").stdout.decode())

    def test_a_log_is_not_overwritten(self):
        self.succeed("audit", "keygen", "key")
        for name, more in (("run.vtr", ["--seal", "key"]), ("run.json", [])):
            run = ("generate", MODEL, "-p", PROMPT, "-n", 3, "--audit", name, *more)
            self.succeed(*run, env=self.environment)
            before = {path.name: path.read_bytes() for path in self.folder.iterdir()}
            result = self.run_tool(*run, env=self.environment)
            self.assertEqual(result.returncode, 2)
            self.assert_one_line(result.stderr, name, "--overwrite", "--audit-dir")
            self.assertEqual({path.name: path.read_bytes() for path in self.folder.iterdir()},
                             before)
            self.succeed(*run, "--overwrite", env=self.environment)
            self.assertNotEqual((self.folder / name).read_bytes(), before[name])
        self.verify("run.vtr", "--key", "key.pub")
        # A copy replaces none, either, and a log that is gone leaves its manifest to no other.
        self.generate("other.vtr")
        result = self.run_tool("audit", "redact", "other.vtr", "run.vtr", "--columns", "norms",
                               env=self.environment)
        self.assertEqual(result.returncode, 2)
        (self.folder / "run.vtr").unlink()
        result = self.run_tool("generate", MODEL, "-p", PROMPT, "-n", 3, "--audit", "run.vtr",
                               env=self.environment)
        self.assertEqual(result.returncode, 2)
        self.assert_one_line(result.stderr, "run.vtr.manifest.json")

    def test_a_folder_of_logs(self):
        run = ("generate", MODEL, "-p", PROMPT, "-n", 3, "--audit-dir")
        self.fail_with(2, ["--audit-dir logs", "no folder"], *run, "logs")
        (self.folder / "logs").mkdir()
        for trace in ([], ["--trace-id", TRACE], []):
            self.succeed(*run, "logs", *trace, env=self.environment)
        names = sorted(path.name for path in (self.folder / "logs").iterdir())
        self.assertEqual(len(names), 3)
        for name in names:
            self.assertRegex(name, r"^\d{8}T\d{6}\.\d{9}Z-[0-9a-f]+\.vtr$")
            self.verify(f"logs/{name}")
        self.assertEqual(sum(TRACE in name for name in names), 1)

    def test_the_head_says_when(self):
        before = time.time_ns()
        for name in ("run.vtr", "run.json"):
            self.generate(name, "--audit-host")
            shown = self.succeed("audit", "show", name).stdout.decode()
            log = json.loads(self.succeed("audit", "export", name, "--json").stdout)
            started = log["started"]
            self.assertLessEqual(before, int(started["unix_ns"]))
            self.assertLessEqual(int(started["unix_ns"]), time.time_ns())
            self.assertLessEqual(int(started["monotonic_ns"]), time.clock_gettime_ns(
                time.CLOCK_MONOTONIC))
            self.assertRegex(started["utc"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
            self.assertIn(started["utc"], shown)
            self.assertEqual(log["host_name"], platform.node())
            self.assertIn(platform.node(), shown)
            self.assertTrue(log["engine_build"].startswith("vitrine "))
            self.assertIn(log["engine_build"][:20], shown)
            self.succeed("audit", "export", name, "--html", "--out", "page.html")
            self.assertIn(platform.node(), (self.folder / "page.html").read_text())
        report = json.loads(self.verify("run.vtr", "--json"))
        for key in ("started", "host_name", "engine_build", "model"):
            self.assertTrue(report["head"][key], key)
        self.assertEqual(report["head"]["sampler"]["top_k"], "40")
        self.generate("run.vtr")
        self.assertNotIn("host_name", json.loads(
            self.succeed("audit", "export", "run.vtr", "--json").stdout))

    def test_logs_of_version_6(self):
        """Made by an older version and with an older model: they verify, show and export as they
        did, and are replayed with no other model."""
        for name in ("version6.vtr", "full6.vtr", "counters6.vtr"):
            shutil.copy(LOGS / name, self.folder / name)
            self.assertTrue(self.verify(name).startswith("complete: 8 positions"))
            self.succeed("audit", "stats", name)
        for name in ("version6.vtr", "full6.vtr"):
            log = json.loads(self.succeed("audit", "export", name, "--json", "-m", MODEL).stdout)
            self.assertEqual(len(log["records"]), 8)
            self.assertEqual(log["records"][0]["text"], "The")
            self.assertNotIn(None, [layer["residual_norm"] for record in log["records"]
                                    for layer in record["layers"]])
            self.succeed("audit", "show", name, "-m", MODEL)
            self.fail_with(2, ["another model than the log's", "model.safetensors"], "audit", "replay",
                           name, "--model", MODEL)
            # One that is changed is broken, also in its old form.
            data = bytearray((self.folder / name).read_bytes())
            data[len(data) // 2] ^= 1
            (self.folder / "bad.vtr").write_bytes(data)
            self.assertTrue(self.verify("bad.vtr", code=1).startswith("BROKEN"))

    def test_who_reads_counts(self):
        for name in ("owner", "auditor"):
            self.succeed("audit", "keygen", name)
        self.generate("run.vtr", "--encrypt-for", "owner.pub", "--encrypt-for",
                      "auditor.pub:counters", tokens=100)
        uses = [json.loads(self.succeed("audit", "stats", "run.vtr", "--json", "--decrypt",
                                        key).stdout)["layers"] for key in ("owner", "auditor")]
        self.assertEqual(uses[0], uses[1])
        page = self.succeed("audit", "stats", "run.vtr", "--decrypt", "auditor").stdout.decode()
        self.assertNotIn("without", page)
