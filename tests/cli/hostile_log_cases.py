# SPDX-License-Identifier: Apache-2.0
"""Logs and manifests from strangers, and the places where they stand."""

import json
import os
import random
import subprocess

from tool import MODEL, TIMEOUT, VITRINE, AuditCase


class HostileLogs(AuditCase):
    def test_nobody_waits_for_the_writer_of_a_pipe(self):
        self.generate("run.vtr", tokens=2)
        os.mkfifo(self.folder / "pipe.vtr")
        for command in (["show", "pipe.vtr"], ["redact", "pipe.vtr", "o.vtr", "--columns", "text"],
                        ["export", "pipe.vtr", "--json"]):
            self.fail_with(2, ["pipe.vtr", "file"], "audit", *command)
        result = self.run_tool("audit", "verify", "pipe.vtr")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"no regular file", result.stdout + result.stderr)
        os.mkfifo(self.folder / "run.vtr.manifest.json")
        result = self.run_tool("audit", "verify", "run.vtr")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"no regular file", result.stdout + result.stderr)

    def test_a_log_behind_a_link_has_its_manifest_beside_it(self):
        self.generate("run.vtr", "--seal", "key", tokens=2)
        (self.folder / "link.vtr").symlink_to("run.vtr")
        self.generate("link.vtr", tokens=3)
        self.assertFalse((self.folder / "run.vtr.manifest.json").exists())
        self.verify("run.vtr")
        self.generate("link.vtr", "--seal", "key", tokens=4)
        self.assertTrue((self.folder / "link.vtr").is_symlink())
        for name in ("run.vtr", "link.vtr"):
            self.assertIn("signed with the same key", self.verify(name))
        # What leads nowhere yet leads to the log then.
        (self.folder / "new").mkdir()
        (self.folder / "later.vtr").symlink_to("new/run.vtr")
        self.generate("later.vtr", tokens=2)
        self.assertTrue((self.folder / "later.vtr").is_symlink())
        self.assertIn("complete", self.verify("new/run.vtr"))

    def check_mutations(self, name, text, run, rounds):
        """Whatever is changed of a text is accepted or refused in one line."""
        generator = random.Random(7)
        codes = set()
        for _ in range(rounds):
            changed = bytearray(text)
            for _ in range(generator.randint(1, 3)):
                at = generator.randrange(len(changed))
                kind = generator.randrange(5)
                if kind == 0:
                    changed[at] = generator.randrange(256)
                elif kind == 1:
                    del changed[at:at + generator.randint(1, 40)]
                elif kind == 2:
                    changed[at:at] = generator.choice([b"-", b"1e999", b"null", b"[", b"{}", b'"',
                                                       b"9" * 30])
                elif kind == 3:
                    other = generator.randrange(len(changed))
                    changed[at:at] = changed[other:other + 50]
                else:
                    changed = changed[:at + 1]
            (self.folder / name).write_bytes(changed)
            result = self.run_tool("audit", "verify", run)
            codes.add(result.returncode)
            self.assertIn(result.returncode, (0, 1, 2), (bytes(changed), result.stderr))
            if result.returncode == 2:
                self.assert_one_line(result.stderr)
                self.assertNotIn(b"json.exception", result.stderr)
        return codes

    def test_changed_json_logs(self):
        self.generate("run.json", "--attribution", "--audit-level", "full", tokens=3)
        text = (self.folder / "run.json").read_bytes()
        self.assertIn(2, self.check_mutations("changed.json", text, "changed.json", 60))
        last = len(json.loads(text)["records"]) - 1
        for path, value, word in ((("prediction", "logprob"), "x", '"x"'),
                                  (("prediction", "entropy"), 1e300, "1e+300"),
                                  (("layers",), 7, "another type")):
            changed = json.loads(text)
            at = changed["records"][last]
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            (self.folder / "changed.json").write_text(json.dumps(changed))
            self.fail_with(2, [f"record {last}: ", word], "audit", "verify", "changed.json")

    def test_changed_manifests(self):
        self.generate("run.vtr", "--seal", "key", tokens=2)
        name = "run.vtr.manifest.json"
        text = (self.folder / name).read_bytes()
        codes = self.check_mutations(name, text, "run.vtr", 40)
        self.assertIn(1, codes)

    def test_the_public_half_of_a_key(self):
        self.succeed("audit", "keygen", "key")
        half = (self.folder / "key.pub").read_text()
        (self.folder / "key.pub").unlink()
        self.generate("run.vtr", "--seal", "key", tokens=2)
        self.assertEqual((self.folder / "key.pub").read_text(), half)
        self.succeed("audit", "keygen", "other")
        (self.folder / "key.pub").write_text((self.folder / "other.pub").read_text())
        self.fail_with(2, ["key.pub", "not the public half"], "generate", MODEL, "-p", "Once",
                       "-n", 2, "--audit", "run2.vtr", "--seal", "key")

    def test_redacted_positions(self):
        self.generate("run.vtr", tokens=20)
        redact = ("audit", "redact", "run.vtr")
        self.fail_with(2, ["--positions 900-901", "no record there"], *redact, "o.vtr", "--columns",
                       "tokens", "--positions", "900-901")
        self.fail_with(2, ["ends in .vtr"], *redact, "o.json", "--columns", "tokens")
        out = self.succeed(*redact, "o.vtr", "--columns", "tokens", "--positions", "10-12")
        self.assertIn(b"3 of the tokens are still told", out.stderr)
        self.assertIn(b"--positions 9-11)", out.stderr)
        # Followed, none is; nor where the prompt predicted nothing.
        self.succeed("audit", "redact", "o.vtr", "p.vtr", "--columns", "prediction,digests",
                     "--positions", "9-11")
        told = json.loads(self.succeed("audit", "export", "p.vtr", "--json").stdout)["records"]
        known = [r["position"] + 1 for r in told if r["prediction"]]
        self.assertFalse(set(known) & {10, 11, 12}, known)
        self.assertNotIn({10, 11, 12}, [r["position"] for r in told if r["token"] >= 0])
        out = self.succeed(*redact, "o.vtr", "--columns", "tokens", "--positions", "1-3")
        self.assertNotIn(b"still told", out.stderr)
        out = self.succeed(*redact, "o.vtr", "--columns", "tokens,text")
        self.assertIn(b"20 of the tokens are still told", out.stderr)
        out = self.succeed(*redact, "o.vtr", "--columns", "tokens,text,prediction")
        self.assertNotIn(b"still told", out.stderr)
        out = self.succeed(*redact, "o.vtr", "--columns", "norms", "--positions", "10-12")
        self.assertEqual(out.stderr, b"")

    def test_a_key_whose_public_half_is_a_pipe(self):
        self.succeed("audit", "keygen", "key")
        (self.folder / "key.pub").unlink()
        os.mkfifo(self.folder / "key.pub")
        self.fail_with(2, ["not the public half"], "generate", MODEL, "-p", "Once", "-n", 2,
                       "--audit", "run.vtr", "--seal", "key")

    def test_a_chat_whose_reader_is_gone_has_a_whole_log(self):
        (self.folder / "template.jinja").write_text("{{ messages[-1].content }}")
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [VITRINE, "chat", MODEL, "--chat-template", "template.jinja", "-n", "900",
             "--audit", "run.vtr"], cwd=self.folder, stdin=subprocess.PIPE, stdout=writing,
            stderr=subprocess.PIPE)
        os.close(writing)
        process.stdin.write(b"Once\n" * 20)
        process.stdin.flush()
        os.read(reading, 1)
        os.close(reading)
        _, stderr = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 141, stderr)  # as of SIGPIPE: no news to anybody
        self.assertNotIn(b"standard output", stderr)
        self.assertTrue(self.verify().startswith("complete"))

    def test_a_run_whose_reader_is_gone_has_a_whole_log(self):
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [VITRINE, "generate", MODEL, "-p", "Once", "-n", "2000", "--ignore-end-of-text",
             "--audit", "run.vtr"], cwd=self.folder, stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        _, stderr = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 141, stderr)
        self.assertEqual(stderr, b"")
        self.assertTrue(self.verify().startswith("complete"))
