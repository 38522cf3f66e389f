# SPDX-License-Identifier: Apache-2.0
"""What a refused or mistaken command leaves as it was: logs, streams, keys and what it reads."""

import hashlib
import json
import os
import shutil

from tool import MODEL, AuditCase


class Refusals(AuditCase):
    def contents(self):
        return {name: (self.folder / name).read_bytes() for name in sorted(os.listdir(self.folder))}

    def refuse(self, words, *arguments):
        """One line, exit code 2, and every file as it was."""
        before = self.contents()
        self.fail_with(2, words, *arguments)
        self.assertEqual(self.contents(), before)

    def test_a_refused_run_leaves_the_log_that_was_there(self):
        self.generate("run.vtr", "--seal", "key", "--audit-stream", "run.pb", tokens=2)
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "text")
        run = ("generate", MODEL, "-p", "Once", "--audit", "run.vtr", "--audit-stream", "run.pb")
        self.refuse(["on the reference path"], *run, "-n", 2, "--attribution", "--kernels",
                    "reference")
        self.refuse(["room for 1"], *run, "-n", 1, "--regex", "abcdefghijklm")
        # Nor is there a key that nothing was sealed with.
        self.refuse(["'bogus'"], "generate", MODEL, "-p", "Once", "-n", 1, "--audit", "new.vtr",
                    "--seal", "new", "--redact", "bogus")
        self.assertIn("signed with the same key", self.verify())

    def test_an_output_that_is_a_file_of_the_model(self):
        model = self.folder / "model"
        shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("eval", "calibration"))
        (self.folder / "link").symlink_to(model / "model.safetensors")
        self.succeed("generate", model, "-p", "Once", "-n", 1, "--audit", model / "run.vtr",
                     "--seal", "key")
        before = {name: (model / name).read_bytes() for name in os.listdir(model)}
        for output in ("link", model / "config.json", model / "tokenizer.json"):
            for option in ("--audit", "--audit-stream"):
                self.fail_with(2, ["a file of MODEL", "would replace"], "generate", model, "-p",
                               "Once", "-n", 1, option, output)
            self.fail_with(2, ["would replace"], "audit", "export", model / "run.vtr", "--html",
                           "--out", output)
        self.fail_with(2, ["public half"], "audit", "manifest", model / "run.vtr", "--seal", "key",
                       "--out", "key.pub")
        self.assertEqual(before, {name: (model / name).read_bytes() for name in before})

    def test_top_of_what_the_log_does_not_have(self):
        self.generate("run.vtr", tokens=2)
        self.refuse(["no layer 9"], "audit", "top", "run.vtr", "--expert", "9:3")
        self.refuse(["experts 0 to 7"], "audit", "top", "run.vtr", "--expert", "3:8")
        self.generate("counters.vtr", "--audit-level", "counters", tokens=2)
        self.refuse(["level counters"], "audit", "top", "counters.vtr")

    def test_many_sampler_options_fit_into_the_head(self):
        self.generate("run.vtr", *(word for id in range(900) for word in
                                   ("--logit-bias", f"{id}=0.5")), tokens=2)
        self.assertTrue(self.verify().startswith("complete"))

    def test_an_output_that_is_an_input(self):
        self.generate("run.vtr", "--seal", "key", tokens=2)
        self.succeed("audit", "keygen", "reader")
        os.symlink("run.vtr", self.folder / "link.vtr")
        for out in ("run.vtr", "./run.vtr", self.folder / "run.vtr", "link.vtr"):
            for arguments in (("export", "run.vtr", "--json", "--out", out),
                              ("export", "run.vtr", "--html", "--out", out),
                              ("redact", "run.vtr", out, "--columns", "text"),
                              ("manifest", "run.vtr", "--seal", "key", "--out", out)):
                self.refuse(["the same file"], "audit", *arguments)
        self.refuse(["--decrypt", "same file"], "audit", "export", "run.vtr", "--json", "--decrypt",
                    "reader", "--out", "reader")
        self.refuse(["--seal", "same file"], "audit", "manifest", "run.vtr", "--seal", "key", "--out",
                    "key")
        (self.folder / "s.json").write_text('{"type": "object"}')
        os.rename(self.folder / "key", self.folder / "key.vtr")
        for more in (("--audit", "new.vtr", "--audit-stream", "new.vtr"),
                     ("--audit", "key.vtr", "--seal", "key.vtr"),
                     ("--audit", "run.vtr", "--seal", "key.vtr", "--audit-stream",
                      "run.vtr.manifest.json"),
                     ("--audit", "run.vtr", "--audit-stream", "./run.vtr"),
                     ("--audit", "s.json", "--json-schema", "s.json")):
            self.refuse(["the same file"], "generate", MODEL, "-p", "Once", "-n", 2, *more)

    def test_bytes_behind_the_end(self):
        self.generate("run.vtr", tokens=2)
        with open(self.folder / "run.vtr", "ab") as log:
            log.write(b"more")
        self.refuse(["bytes after its end"], "audit", "redact", "run.vtr", "less.vtr", "--columns",
                    "text")

    def test_a_broken_logs_page(self):
        self.generate("run.vtr", tokens=2)
        log = bytearray((self.folder / "run.vtr").read_bytes())
        log[len(log) // 2] ^= 4
        (self.folder / "bad.vtr").write_bytes(log)
        result = self.run_tool("audit", "export", "bad.vtr", "--html", "--out", "bad.html")
        self.assertEqual(result.returncode, 2)
        self.assert_one_line(result.stderr, "bad.vtr: BROKEN: ")
        self.assertIn("BROKEN", (self.folder / "bad.html").read_text())

    def test_the_text_of_a_constraint(self):
        self.succeed("audit", "keygen", "reader")
        secret = "the patient is Ann Lee"
        run = ("generate", MODEL, "-p", "Once", "-n", 40, "--audit")
        for kind, spelt in (("--choice", json.dumps([secret])), ("--regex", secret)):
            self.succeed(*run, "open.vtr", kind, secret)
            self.assertIn(secret.encode(), (self.folder / "open.vtr").read_bytes())
            for more in (("--encrypt-for", "reader.pub"), ("--redact", "text"),
                         ("--redact", "tokens,digests"), ("--redact", "constraint")):
                self.succeed(*run, "run.vtr", kind, secret, *more)
                self.assertNotIn(secret.encode(), (self.folder / "run.vtr").read_bytes(), more)
                log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
                self.assertEqual(log["constraint"]["sha256"],
                                 hashlib.sha256(spelt.encode()).hexdigest())
            # What is in the head cannot be taken out later: that is said.
            redact = ("audit", "redact", "open.vtr", "less.vtr", "--columns")
            said = self.succeed(*redact, "tokens,prediction").stderr
            self.assertEqual(said.count(b"\n"), 2, said)
            self.assertIn(b"still finds the text by routing,norms;", said)
            self.assertIn(b"SHA-256", said)
            self.assertEqual(self.succeed(*redact, "norms").stderr, b"")
