# SPDX-License-Identifier: Apache-2.0
"""vitrine audit, and generate --audit run.vtr."""

import json
import os
import signal
import stat
import subprocess
import time

from tool import (MODEL, PROMPT, SMALL, TIMEOUT, VITRINE, AuditCase, file_size_limit,
                  without_start)


class Audit(AuditCase):
    def test_complete_and_sealed(self):
        result = self.generate("run.vtr", "--seal", "key", "--durable")
        self.assertIn(b"log run.vtr (", result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), 
                         ["key", "key.pub", "run.vtr", "run.vtr.manifest.json"])
        self.assertEqual(stat.S_IMODE((self.folder / "key").stat().st_mode), 0o600)
        out = self.verify("run.vtr", "--key", "key.pub")
        self.assertTrue(out.startswith("complete: "), out)
        self.assertIn("sealed with the given key", out)
        self.assertIn("vouches only for itself", self.verify())
        report = json.loads(self.verify("run.vtr", "--json"))
        self.assertEqual((report["seal"], report["is_key_given"]), ("complete", False))
        self.assertEqual(report["positions"]["captured"], report["positions"]["total"])
        self.assertEqual(report["counts"]["generated"], 40)
        # The same key again, another key, and a key of the log's own.
        self.generate("again.vtr", "--seal", "key")
        self.verify("again.vtr", "--key", "key.pub")
        self.succeed("audit", "keygen", "other")
        self.assertTrue(self.verify("run.vtr", "--key", "other.pub", code=1).startswith("BROKEN"))
        self.generate("own.vtr")
        self.assertIn("a key of its own", self.verify("own.vtr"))

    def test_records_that_take_too_much_memory(self):
        self.generate("run.vtr", "--attribution")
        commands = (["show", "run.vtr"], ["top", "run.vtr"], ["stats", "run.vtr"],
                    ["diff", "run.vtr", "run.vtr"], ["replay", "run.vtr"],
                    ["export", "run.vtr", "--html", "--out", "page.html"],
                    ["export", "run.vtr", "--parquet", "--out", "tables"])
        for command in commands:
            refused = self.run_tool("audit", *command, "--max-memory", "16KiB")
            self.assertEqual(refused.returncode, 2, command)
            self.assertRegex(refused.stderr, rb"^vitrine: run\.vtr: its records take more than 1 MiB of "
                                             rb"memory, at page \d+; expected fewer, [^\n]*\n$")
            self.succeed("audit", *command, "--max-memory", "64MiB")
        negative = self.run_tool("audit", "show", "run.vtr", "--max-memory", "-1")
        self.assertIn(b"expected a size above 0", negative.stderr)

    def test_json_export_is_the_json_log(self):
        self.generate("run.vtr", "--audit-level", "full", "--prompt-logprobs")
        self.generate("log.json", "--audit-level", "full", "--prompt-logprobs")
        log = without_start((self.folder / "log.json").read_bytes())
        exported = self.succeed("audit", "export", "run.vtr", "--json").stdout
        self.assertEqual(without_start(exported), log)
        self.succeed("audit", "export", "run.vtr", "--json", "--out", "out.json")
        self.assertEqual((self.folder / "out.json").read_bytes(), exported)
        self.assertIn(b"0 different", self.succeed("audit", "diff", "run.vtr", "log.json").stdout)

    def test_attribution(self):
        self.generate("plain.json")
        self.generate("log.json", "--attribution", "--audit-level", "full")
        self.generate("full.vtr", "--attribution", "--audit-level", "full")
        self.generate("run.vtr", "--attribution", "--audit-text")
        log = json.loads((self.folder / "log.json").read_text())
        plain = json.loads((self.folder / "plain.json").read_text())
        exported = self.succeed("audit", "export", "full.vtr", "--json").stdout
        self.assertEqual(without_start(exported),
                         without_start((self.folder / "log.json").read_bytes()))
        self.assertIn("complete", self.verify("run.vtr"))
        rounded = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        for record, other, half in zip(log["records"], plain["records"], rounded["records"]):
            if record["prediction"] is None:
                continue
            self.assertNotIn("attribution", other["prediction"])
            attribution = record["prediction"].pop("attribution")
            self.assertEqual(record["prediction"], other["prediction"], "another result")
            terms = attribution["terms"]
            total = sum(term["value"] for term in terms) + attribution["rounding"]
            self.assertAlmostEqual(total, attribution["logit"], delta=1e-4)
            best = [one["token"] for one in record["prediction"]["top_logprobs"][:2]]
            chosen = record["prediction"]["token"]
            self.assertEqual(attribution["runner_up"]["token"],
                             best[1] if best[0] == chosen else best[0])
            experts = [term["expert"] for term in terms if term["part"] == "expert"]
            self.assertEqual(experts, [e for layer in record["layers"] for e in layer["experts"]])
            for term, short in zip(terms, half["prediction"]["attribution"]["terms"]):
                self.assertAlmostEqual(term["value"], short["value"],
                                       delta=1e-6 + abs(term["value"]) / 2048)
        position = rounded["records"][-1]["position"]
        for run in ("run.vtr", "log.json"):
            shown = self.succeed("audit", "show", run, "--position", position).stdout.decode()
            for word in ("as a sum", "layer 3 attention", "layer 0 expert", "rounding"):
                self.assertIn(word, shown)
            self.assertIn("term", self.succeed("audit", "top", run).stdout.decode())

    def test_redact(self):
        self.generate("run.vtr", "--seal", "key", "--attribution", "--audit-text")
        for columns in ("tokens,text", "prediction", "attribution", "routing", "norms,digests"):
            out = self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", columns)
            self.assertIn(b"complete", out.stdout)
            self.assertIn("left out", self.verify("less.vtr", "--key", "key.pub"))
            self.assertLess((self.folder / "less.vtr").stat().st_size,
                            (self.folder / "run.vtr").stat().st_size)
            self.succeed("audit", "show", "less.vtr")
            self.succeed("audit", "export", "less.vtr", "--html", "--out", "less.html")
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "tokens,text,prediction",
                     "--positions", "0-9")
        records = json.loads(self.succeed("audit", "export", "less.vtr", "--json").stdout)["records"]
        whole = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)["records"]
        for less, more in zip(records, whole):
            if less["position"] < 10:
                self.assertEqual((less["token"], less["prediction"]), (-1, None))
                more["layers"][0]["residual_norm"] = None  # the token's own
                self.assertEqual(less["layers"], more["layers"])
            else:
                self.assertEqual(less, more)
        self.fail_with(2, ["colour"], "audit", "redact", "run.vtr", "o.vtr", "--columns", "colour")
        self.fail_with(2, ["9-1"], "audit", "redact", "run.vtr", "o.vtr", "--columns", "text",
                       "--positions", "9-1")
        self.fail_with(2, ["gone.vtr"], "audit", "redact", "gone.vtr", "o.vtr", "--columns", "text")

    def test_standard_is_rounded(self):
        self.generate("run.vtr")
        self.generate("log.json")
        got = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        want = json.loads((self.folder / "log.json").read_text())
        self.assertTrue(got["audit"].pop("rounded"))
        for log in (got, want):
            del log["started"]
        self.assertEqual({k: v for k, v in got.items() if k != "records"},
                         {k: v for k, v in want.items() if k != "records"})

        for record in want["records"]:  # at this level it is only within the record's digest
            if record["prediction"] is not None:
                self.assertRegex(record["prediction"].pop("logits_digest"), "^[0-9a-f]{16}$")

        def compare(a, b, path=""):
            self.assertEqual(type(a), type(b), path)
            if isinstance(a, dict):
                self.assertEqual(list(a), list(b), path)
                for key in a:
                    compare(a[key], b[key], f"{path}.{key}")
            elif isinstance(a, list):
                self.assertEqual(len(a), len(b), path)
                for i, (x, y) in enumerate(zip(a, b)):
                    compare(x, y, f"{path}[{i}]")
            elif isinstance(a, float):
                bits = 8 if path.endswith("residual_norm") else 11
                self.assertLessEqual(abs(a - b), max(abs(b) * 2.0**-bits, 2.0**-25), path)
            else:
                self.assertEqual(a, b, path)

        compare(got["records"], want["records"])

    def test_rounding_of_attributed_logits(self):
        self.generate("run.vtr", "--attribution", tokens=60)
        self.generate("log.json", "--attribution", tokens=60)
        records = json.loads((self.folder / "log.json").read_text())["records"]
        found = [record["prediction"]["attribution"] for record in records if record["prediction"]]
        absolute = sorted(abs(one["rounding"]) for one in found)
        relative = sorted(abs(one["rounding"]) / max(abs(term["value"]) for term in one["terms"])
                          for one in found)
        for name, places in (("log.json", 6), ("run.vtr", 3)):  # binary16 terms
            rounding = self.succeed_json("audit", "stats", name, "--json")["rounding"]
            self.assertEqual(rounding["tokens"], 60)
            for key, values in (("logit", absolute), ("of_largest_term", relative)):
                for quantile, index in (("median", 29), ("p95", 56), ("max", 59)):
                    self.assertAlmostEqual(rounding[key][quantile], values[index], places=places)
            text = self.succeed("audit", "stats", name).stdout
            self.assertIn(b"rounding of 60 attributed logits: median ", text)
        self.generate("plain.vtr")
        self.assertNotIn("rounding", self.succeed_json("audit", "stats", "plain.vtr", "--json"))

    def test_levels(self):
        self.generate("c.vtr", "--audit-level", "counters", tokens=100)
        self.assertIn("counted", self.verify("c.vtr"))
        self.assertLess((self.folder / "c.vtr").stat().st_size, 6000)
        self.generate("s.vtr", tokens=100)
        counters, standard = (self.succeed_json("audit", "stats", name, "--json")
                              for name in ("c.vtr", "s.vtr"))
        self.assertEqual(counters["layers"], standard["layers"])
        self.assertEqual(counters["records"], 0)
        self.assertIn(b"audit stats", self.succeed("audit", "show", "c.vtr").stdout)
        self.fail_with(2, ["counters"], "audit", "export", "c.vtr", "--json")
        self.fail_with(2, ["counters"], "audit", "export", "c.vtr", "--parquet", "--out", "tables")
        self.fail_with(2, ["counters", "c.vtr"], "audit", "diff", "s.vtr", "c.vtr")

    def test_one_text_whatever_the_log(self):
        arguments = ("generate", MODEL, "-p", PROMPT, "-n", 24, "--seed", 42, "--json")
        tokens = self.succeed_json(*arguments)["tokens"]
        for more in (["--audit-level", "counters"], ["--audit-level", "full"], ["--audit-text"],
                     ["--audit-when-behind", "spill"], ["--audit-when-behind", "drop"],
                     ["--audit-on-error", "degrade"]):
            out = self.succeed_json(*arguments, "--audit", "run.vtr", *more)
            self.assertEqual(out["tokens"], tokens, more)
            self.verify()

    def test_text_is_left_out_unless_asked_for(self):
        self.generate("run.vtr")
        self.generate("text.vtr", "--audit-text")
        self.assertGreater((self.folder / "text.vtr").stat().st_size,
                           (self.folder / "run.vtr").stat().st_size)
        self.verify("text.vtr")
        # Where the model is gone, ids are all that is left of the one, and words of the other.
        os.symlink(MODEL, self.folder / "model")
        for more in ([], ["--audit-text"]):
            self.succeed("generate", "model", "-p", PROMPT, "-n", 30, "--seed", 5, "--audit",
                         f"gone{len(more)}.vtr", *more)
        os.unlink(self.folder / "model")
        self.assertRegex(self.succeed("audit", "show", "gone0.vtr").stdout, rb"\n +\d+ #\d+ ")
        self.assertNotIn(b"\xc4\xa0", self.succeed("audit", "show", "gone0.vtr").stdout)
        self.assertIn(b'"\xc4\xa0', self.succeed("audit", "show", "gone1.vtr").stdout)

    def test_show(self):
        self.generate("run.vtr", "--seal", "key")
        self.generate("log.json")
        for name, first in (("run.vtr", "complete: "), ("log.json", "not sealed")):
            out = self.succeed("audit", "show", name, "-n", 5).stdout.decode()
            self.assertTrue(out.startswith(first), out)
            for word in ("qwen3_moe", "L0:", "35 more", "stop: length"):
                self.assertIn(word, out)
            out = self.succeed("audit", "show", name, "--position", 7).stdout.decode()
            self.assertEqual(out.count("\n    "), 10, out)
            self.assertIn("chose", out)
            out = self.succeed("audit", "top", name, "-n", 4).stdout.decode()
            self.assertEqual(len(out.splitlines()), 6, out)
            shares = [float(line.split("%")[0]) for line in out.splitlines()[2:]]
            self.assertEqual(shares, sorted(shares, reverse=True))
            out = self.succeed("audit", "top", name, "--expert", "2:3").stdout.decode()
            self.assertTrue(all("L2:3" in line for line in out.splitlines()[2:]), out)
            self.assertIn("layer 3", self.succeed("audit", "stats", name).stdout.decode())
        self.fail_with(2, ["--position 9999"], "audit", "show", "run.vtr", "--position", 9999)
        self.fail_with(2, ["--expert"], "audit", "top", "run.vtr", "--expert", "two")

    def test_show_in_colour(self):
        self.generate()
        show = ("audit", "show", "run.vtr")
        self.assertIn(b"\x1b[3", self.on_terminal(*show, NO_COLOR=""))
        self.assertNotIn(b"\x1b[", self.on_terminal(*show, NO_COLOR="1"))
        self.assertNotIn(b"\x1b[", self.on_terminal(*show, TERM="dumb"))
        self.assertNotIn(b"\x1b[", self.succeed(*show).stdout)

    def test_diff(self):
        self.generate("a.vtr")
        self.generate("b.vtr", "--threads", 1)
        out = self.succeed("audit", "diff", "a.vtr", "b.vtr").stdout
        self.assertIn(b"to the last bit (digests), 0 different", out)
        self.succeed("generate", MODEL, "-p", PROMPT, "-n", 40, "--seed", 6, "--audit", "c.vtr",
                     "--ignore-end-of-text")
        result = self.run_tool("audit", "diff", "a.vtr", "c.vtr")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"first difference: sequence 1, position", result.stdout)

    def test_a_cut_and_an_edit(self):
        self.generate("run.vtr", "--seal", "key", tokens=60)
        log = (self.folder / "run.vtr").read_bytes()
        (self.folder / "cut.vtr").write_bytes(log[:-40])
        out = self.verify("cut.vtr", "--key", "key.pub", code=1)
        self.assertTrue(out.startswith("OPEN: "), out)
        show = self.run_tool("audit", "show", "cut.vtr").stdout.decode()
        self.assertTrue(show.startswith("OPEN: "), show)
        changed = bytearray(log)
        changed[len(log) // 2] ^= 4
        (self.folder / "bad.vtr").write_bytes(changed)
        out = self.verify("bad.vtr", code=1)
        self.assertTrue(out.startswith("BROKEN: "), out)
        self.assertIn("record 1 at byte ", out)
        show = self.run_tool("audit", "show", "bad.vtr").stdout.decode()
        self.assertTrue(show.startswith("BROKEN: "), show)
        report = json.loads(self.verify("bad.vtr", "--json", code=1))
        self.assertEqual((report["seal"], report["record"]), ("broken", 1))
        self.fail_with(2, ["bad.vtr", "byte"], "audit", "export", "bad.vtr", "--json", "--out", "x")
        self.fail_with(2, ["bad.vtr", "BROKEN"], "audit", "export", "bad.vtr", "--parquet", "--out",
                       "x")
        self.assertFalse((self.folder / "x").exists())
        result = self.run_tool("audit", "diff", "run.vtr", "cut.vtr")
        self.assertTrue(result.stdout.startswith(b"cut.vtr: OPEN: "), result.stdout)
        result = self.run_tool("audit", "diff", "bad.vtr", "cut.vtr")
        self.assertRegex(result.stdout.decode(), "^bad.vtr: BROKEN: .*\ncut.vtr: OPEN: ")
        for form in ("--html", "--parquet"):
            result = self.run_tool("audit", "export", "cut.vtr", form, "--out", "out" + form)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_one_line(result.stderr, "cut.vtr: OPEN: ")
        (self.folder / "cut.json").write_bytes(
            self.succeed("audit", "export", "cut.vtr", "--json").stdout)
        self.assertTrue(self.run_tool("audit", "show", "cut.json").stdout.startswith(b"OPEN: "))
        (self.folder / "no.vtr").write_bytes(b"no log")
        self.fail_with(2, ["no.vtr"], "audit", "show", "no.vtr")
        self.assertTrue(self.verify("no.vtr", code=1).startswith("BROKEN: "))

    def records_so_far(self):
        if not (self.folder / "run.vtr").exists():
            return 0
        return len(json.loads(
            self.succeed("audit", "export", "run.vtr", "--json").stdout)["records"])

    def test_a_killed_run_is_open(self):
        process = self.start_endless("--audit", "run.vtr")
        deadline = time.monotonic() + TIMEOUT
        while self.records_so_far() <= 100:  # the page is closed after a second
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT)
        out = self.verify(code=1)
        self.assertTrue(out.startswith("OPEN: "), out)
        self.assertGreater(self.records_so_far(), 100)

    def test_cancelled_is_complete(self):
        process = self.start_endless("--audit", "run.vtr")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130)
        report = json.loads(self.verify("run.vtr", "--json"))
        self.assertEqual(report["stop_reason"], "cancelled")

    def test_full_disk(self):
        generate = ("generate", MODEL, "-p", PROMPT, "-n", 12000, "--ignore-end-of-text",
                    "--audit", "run.vtr")
        # The model's context is shorter than a page, so the page that fails is the last one.
        result = self.run_tool(*generate, **file_size_limit(4000))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assert_one_line(result.stderr, "run.vtr")
        self.assertTrue(self.verify(code=1).startswith("OPEN: "))
        result = self.run_tool(*generate, "--audit-on-error", "degrade", **file_size_limit(4000))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"INCOMPLETE", result.stderr)
        show = self.run_tool("audit", "show", "run.vtr").stdout.decode()
        self.assertRegex(show.splitlines()[0], "^(INCOMPLETE|OPEN): ")

    def test_deep_json_is_no_log(self):
        deep = "[" * 200000 + "]" * 200000
        for text in (deep, '{"schema": "vitrine.audit/1", "sampler": %s}' % deep):
            (self.folder / "deep.json").write_text(text)
            self.fail_with(2, ["deep.json", "nested"], "audit", "show", "deep.json")

    def test_mistakes(self):
        self.fail_with(2, [], "audit")
        self.fail_with(2, ["gone.vtr"], "audit", "show", "gone.vtr")
        self.fail_with(2, ["gone.vtr"], "audit", "verify", "gone.vtr")
        self.fail_with(2, ["--seal", ".vtr"], "generate", MODEL, "-p", "x", "--seal", "key")
        self.fail_with(2, ["counters", ".vtr"], "generate", MODEL, "-p", "x", "--audit", "a.json",
                       "--audit-level", "counters")
        self.fail_with(2, ["--durable"], "generate", MODEL, "-p", "x", "--audit", "a.json",
                       "--durable")
        (self.folder / "key").write_text("no key")
        self.fail_with(2, ["key", "vitrine"], "generate", MODEL, "-p", PROMPT, "-n", 3, "--audit",
                       "a.vtr", "--seal", "key")
        self.fail_with(2, ["already there"], "audit", "keygen", "key")
        self.fail_with(1, ["missing"], "audit", "keygen", "missing/key")
        self.fail_with(1, ["missing/a.vtr"], "generate", MODEL, "-p", PROMPT, "-n", 3, "--audit",
                       "missing/a.vtr")
        (self.folder / "log.json").write_text("{}")
        self.fail_with(2, ["log.json"], "audit", "show", "log.json")
        self.fail_with(2, ["--json"], "audit", "export", "log.json")
        self.generate()
        self.fail_with(2, ["key"], "audit", "verify", "run.vtr", "--key", "key")
        self.fail_with(2, ["--model"], "audit", "show", "run.vtr", "--model", SMALL)
