# SPDX-License-Identifier: Apache-2.0
"""What the audit commands say of a log, and the codes that scripts go by."""

import json
import os
import re
import signal
import time

from tool import MODEL, PROMPT, TIMEOUT, AuditCase


class Reports(AuditCase):
    def show(self, name, *more, code=0):
        result = self.run_tool("audit", "show", name, *more)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode()

    def test_show_exits_as_verify_does(self):
        self.generate("run.vtr")
        log = (self.folder / "run.vtr").read_bytes()
        changed = bytearray(log)
        changed[len(log) // 2] ^= 4
        for name, data, word in (("run.vtr", log, "complete: "), ("cut.vtr", log[:-40], "OPEN: "),
                                 ("bad.vtr", changed, "BROKEN: ")):
            (self.folder / name).write_bytes(data)
            code = 0 if word == "complete: " else 1
            for out in (self.verify(name, code=code), self.show(name, code=code)):
                self.assertTrue(out.startswith(word), out)
        self.show("cut.vtr", "--position", 3, code=1)
        self.succeed("audit", "export", "cut.vtr", "--json", "--out", "cut.json")
        self.verify("cut.json", code=1)
        self.show("cut.json", code=1)

    def test_a_log_that_lacks_columns_says_which(self):
        self.generate("run.vtr", "--audit-text")
        self.assertTrue(self.verify().startswith("complete: "))
        cases = (("text", (), "text"), ("routing,norms", (), "routing, norms"),
                 ("digests", ("--positions", "3-4"), "digests"))
        for columns, more, names in cases:
            self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", columns, *more)
            first = f"complete, redacted: {names}; "
            for out in (self.verify("less.vtr"), self.show("less.vtr"),
                        self.succeed("audit", "top", "less.vtr").stdout.decode()):
                self.assertTrue(out.startswith(first), out)
            report = json.loads(self.verify("less.vtr", "--json"))
            self.assertEqual(", ".join(report["redacted_columns"]), names)
            self.assertIn("vitrine: less.vtr: " + first,
                          self.succeed("audit", "export", "less.vtr", "--json").stderr.decode())
            page = self.succeed("audit", "export", "less.vtr", "--html").stdout.decode()
            self.assertIn(first, page)

    def test_what_scripts_require(self):
        self.generate("run.vtr", "--audit-text", "--seal", "key")
        require = ("--require-unredacted", "--require", "tokens,text,prediction")
        self.assertNotIn("MISSING", self.verify("run.vtr", *require))
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "text,routing",
                     "--positions", "3-3")
        self.verify("less.vtr")
        for more, missing in ((("--require-unredacted",), ["text (left out)", "routing (left out)"]),
                              (("--require", "text"), ["text (left out)"]),
                              (("--require", "tokens,attribution"),
                               ["attribution (never in the log)"])):
            out = self.verify("less.vtr", *more, code=1)
            self.assertIn("MISSING: " + ", ".join(missing) + "\n", out)
            found = json.loads(self.verify("less.vtr", "--json", *more, code=1))["missing"]
            self.assertEqual([f"{name} ({why})" for name, why in found.items()], missing)
        self.verify("less.vtr", "--require", "tokens,prediction")
        self.succeed("audit", "keygen", "owner")
        self.generate("closed.vtr", "--encrypt-for", "owner.pub")
        self.verify("closed.vtr")
        out = self.verify("closed.vtr", "--require", "tokens", code=1)
        self.assertIn("MISSING: tokens (encrypted and not opened)\n", out)
        self.assertIn("prediction (encrypted and not opened)",
                      self.verify("closed.vtr", "--require-unredacted", code=1))
        self.verify("closed.vtr", *require[:1], "--decrypt", "owner")
        self.fail_with(2, ["--require", "colour"], "audit", "verify", "run.vtr", "--require",
                       "colour")
        # A JSON log tells records, not columns.
        self.succeed("audit", "export", "less.vtr", "--json", "--out", "less.json")
        self.verify("less.json")
        self.assertIn("MISSING: 1 of ", self.verify("less.json", "--require-unredacted", code=1))
        self.fail_with(2, ["--require", "less.json"], "audit", "verify", "less.json", "--require",
                       "text")

    def test_text_of_the_log_where_there_is_no_tokenizer(self):
        os.symlink(MODEL, self.folder / "model")
        for name, more in (("text.vtr", ["--audit-text"]), ("ids.vtr", [])):
            self.succeed("generate", "model", "-p", PROMPT, "-n", 20, "--seed", 5, "--audit", name,
                         *more)
        known = json.loads(self.succeed("audit", "export", "text.vtr", "--json").stdout)["records"]
        os.unlink(self.folder / "model")
        result = self.succeed("audit", "export", "text.vtr", "--json")
        self.assert_one_line(result.stderr, "text.vtr", "model", "pieces that the log stores")
        for found, record in zip(json.loads(result.stdout)["records"], known, strict=True):
            self.assertEqual((found["piece"], "text" in found), (record["piece"], False))
        result = self.succeed("audit", "export", "ids.vtr", "--json")
        self.assert_one_line(result.stderr, "ids.vtr", "--audit-text", "ids alone")
        self.assertNotIn("piece", json.loads(result.stdout)["records"][0])
        try:
            import pyarrow.parquet
        except ImportError:
            return
        for name, words in (("text.vtr", "pieces that the log stores"), ("ids.vtr", "ids alone")):
            result = self.succeed("audit", "export", name, "--parquet", "--out", name[:-4])
            self.assert_one_line(result.stderr, words)
        table = pyarrow.parquet.read_table(self.folder / "text" / "tokens.parquet")
        self.assertEqual(table["token"].to_pylist(), [record["piece"] for record in known])
        self.assertIn(b"no tokenizer", table.schema.metadata[b"vitrine.text"])
        table = pyarrow.parquet.read_table(self.folder / "ids" / "tokens.parquet")
        self.assertEqual(set(table["token"].to_pylist()), {None})

    def test_a_key_that_others_can_read(self):
        self.succeed("audit", "keygen", "key")
        self.generate("run.vtr", "--seal", "key", "--encrypt-for", "key.pub")
        commands = [("audit", name, "run.vtr", "--decrypt", "key")
                    for name in ("verify", "show", "top", "stats", "replay")]
        commands += [("audit", "export", "run.vtr", "--json", "--decrypt", "key"),
                     ("audit", "diff", "run.vtr", "run.vtr", "--decrypt", "key"),
                     ("audit", "manifest", "run.vtr", "--out", "-", "--seal", "key"),
                     ("generate", MODEL, "-p", PROMPT, "-n", 2, "--audit", "new.vtr", "--seal",
                      "key")]
        for command in commands:
            self.assertNotIn(b"chmod", self.succeed(*command, "--strict").stderr)
        for mode in (0o640, 0o604, 0o620):
            os.chmod(self.folder / "key", mode)
            for command in commands[:: 1 if mode == 0o640 else 8]:
                stderr = self.succeed(*command).stderr.decode()
                self.assertEqual(stderr.count("chmod 600"), 1, (command, stderr))
                self.assertIn("'key'", stderr)
                self.fail_with(2, ["key", "chmod 600", "--strict"], *command, "--strict")

    def test_what_a_killed_run_leaves_goes_with_the_next(self):
        process = self.start_endless("--audit", "run.json")
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
        left = [name for name in os.listdir(self.folder) if name.startswith(".vitrine-")]
        self.assertEqual(left, [f".vitrine-{process.pid}-0.tmp"])
        self.generate("young.json", tokens=2)
        self.assertIn(left[0], os.listdir(self.folder), "another machine's run may be as young")
        old = time.time() - 3600
        os.utime(self.folder / left[0], (old, old))
        self.generate("next.json", tokens=2)
        self.assertEqual(sorted(os.listdir(self.folder)), ["next.json", "young.json"])

    def test_differences_are_counted_by_kind(self):
        self.generate("a.json")
        log = json.loads((self.folder / "a.json").read_text())
        for position in (3, 5):
            log["records"][position]["layers"][1]["weights"][0] += 0.25
        log["records"][5]["prediction"] = log["records"][20]["prediction"]
        log["records"][7]["layers"][0]["residual_norm"] *= 2
        (self.folder / "b.json").write_text(json.dumps(log))
        result = self.run_tool("audit", "diff", "a.json", "b.json")
        self.assertEqual(result.returncode, 1)
        lines = result.stdout.decode().splitlines()
        self.assertTrue(lines[0].startswith("first difference: sequence 1, position 3: layer 1, "),
                        lines)
        self.assertIn("3 different", lines[1])
        kinds = dict(re.findall(r"([a-z' -]+?) (\d+)(?:, |$)",
                                lines[2].removeprefix("of these differ in ")))
        self.assertEqual({name: int(count) for name, count in kinds.items()},
                         {"routing": 2, "norm": 1, "predicted token": 1, "log-probability": 1,
                          "entropy": 1, "logits": 1, "alternatives": 1, "sampler": 1})

    def test_other_settings_are_said_first(self):
        self.generate("a.vtr")
        self.succeed("generate", MODEL, "-p", PROMPT, "-n", 12, "--seed", 2**60 + 1, "--audit",
                     "b.vtr", "--temperature", 0.5, "--kv-type", "bf16")
        text = self.run_tool("audit", "diff", "a.vtr", "b.vtr").stdout.decode()
        first = text.splitlines()[0]
        self.assertTrue(first.startswith(f"made with other settings: seed 5 and {2**60 + 1}; "))
        self.assertRegex(first, r"temperature [0-9.]+ and 0\.5\b")
        self.assertIn("kv_type", first)
        self.assertNotIn("SHA-256", first)
        # The same run, in either form, was made with the same.
        self.succeed("audit", "export", "b.vtr", "--json", "--out", "b.json")
        self.assertNotIn(b"other settings", self.succeed("audit", "diff", "b.vtr", "b.json").stdout)


class Numbers(AuditCase):
    def test_seeds_survive_readers_of_doubles(self):
        large = 2**64 - 1
        for seed, expected in ((7, 7), (2**53 - 1, 2**53 - 1), (2**53, str(2**53)),
                               (large, str(large))):
            arguments = ("generate", MODEL, "-p", PROMPT, "-n", 4, "--temperature", 1, "--seed",
                         seed)
            out = self.succeed_json(*arguments, "--json", "--audit", "run.json")
            self.assertEqual(out["seed"], expected)
            lines = self.succeed(*arguments, "--json-lines", "--audit", "run.vtr").stdout
            self.assertEqual(json.loads(lines.splitlines()[0])["seed"], expected)
            exported = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
            log = json.loads((self.folder / "run.json").read_text())
            self.assertEqual((log["seed"], exported["seed"]), (expected, expected))
            # Either form is read back, all 64 bits of it.
            for form in (seed, str(seed)):
                (self.folder / "again.json").write_text(json.dumps({**log, "seed": form}))
                self.assertIn(f"seed {seed}\n",
                              self.succeed("audit", "show", "again.json").stdout.decode())
                self.assertIn("seed choose the same", self.replay("again.json"))
        for wrong in (-1, 1.5, "", "7 ", "-7", str(2**64), [7], None):
            (self.folder / "wrong.json").write_text(json.dumps({**log, "seed": wrong}))
            self.fail_with(2, ["wrong.json", "seed is"], "audit", "show", "wrong.json")
        drawn = [self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 1, "--json")["seed"]
                 for _ in range(12)]
        self.assertTrue(all(isinstance(seed, int) and seed < 2**53 for seed in drawn), drawn)

    def test_text_and_bytes_of_tokens(self):
        prompt = "Een café: 漢字 😀"
        for name in ("run.vtr", "run.json"):
            self.succeed("generate", MODEL, "-p", prompt, "-n", 6, "--seed", 5, "--audit", name)
        log = json.loads((self.folder / "run.json").read_text())
        exported = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        told = [[(one["token"], one["text"], one["bytes"], one["piece"])
                 for one in of["records"]] for of in (log, exported)]
        self.assertEqual(*told)
        read = b"".join(bytes(one["bytes"]) for one in log["records"])
        self.assertTrue(read.decode(errors="replace").startswith(prompt), read)
        for record in log["records"]:
            for one in [record, record["prediction"] or record,
                        *(record["prediction"] or {}).get("top_logprobs", ())]:
                self.assertEqual(one["text"], bytes(one["bytes"]).decode(errors="replace"))
        broken = [one for one in log["records"] if "\ufffd" in one["text"]]
        self.assertTrue(broken, "no token was a part of a character")
        spaced = [one for one in log["records"] if one["text"].startswith(" ")]
        self.assertTrue(spaced)
        for one in spaced:
            self.assertTrue(one["piece"].startswith("\u0120"), one)

        # Logs from before there was a piece have it as the text.
        def as_before(value):
            if isinstance(value, list):
                return [as_before(one) for one in value]
            if not isinstance(value, dict):
                return value
            old = {key: as_before(one) for key, one in value.items()
                   if key not in ("bytes", "piece")}
            return {**old, "text": value["piece"]} if "piece" in value else old

        (self.folder / "old.json").write_text(json.dumps(as_before(log)))
        self.assertIn(b"0 different", self.succeed("audit", "diff", "old.json", "run.json").stdout)
        gone = as_before(log)
        gone["model"]["path"] = "gone"
        (self.folder / "gone.json").write_text(json.dumps(gone))
        self.assertIn('"\u0120', self.succeed("audit", "show", "gone.json").stdout.decode())
