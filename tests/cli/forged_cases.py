# SPDX-License-Identifier: Apache-2.0
"""vitrine audit replay of logs whose values someone changed, whatever else they left as it was."""

import json

from tool import MODEL, AuditCase

try:
    from forged_log import forge
except ImportError:
    forge = None

# The columns' places in a page of a log with text.
TEXT, PREDICTION, ROUTING, NORMS, DIGESTS, SAMPLER = 3, 4, 5, 6, 7, 8
ID_BYTES = 18  # of a prediction: eleven ids of 13 bits


class Forged(AuditCase):
    def replay_json(self, name, code):
        result = self.run_tool("audit", "replay", name, "--json")
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)

    def test_digests_vouch_for_no_readable_value(self):
        if forge is None:
            self.skipTest("no cryptography")
        self.succeed("generate", MODEL, "-p", "Once upon", "-n", 3, "--seed", 5, "--audit-text",
                     "--audit", "run.vtr")
        log = (self.folder / "run.vtr").read_bytes()
        self.assertTrue(self.replay_json("run.vtr", 0)["equal"])
        half = b"\x00\xb8"  # -0.5
        for block, change, word in (
                (TEXT, lambda row: b"x" * len(row), "text"),
                (PREDICTION, lambda row: row[:1 + ID_BYTES] + half + row[3 + ID_BYTES:],
                 "log-probability"),
                (ROUTING, lambda row: bytes([row[0] ^ 1]) + row[1:], "expert in slot 0"),
                (ROUTING, lambda row: row[:3] + half + row[5:], "weight of expert"),
                (NORMS, lambda row: bytes(2) + row[2:], "residual norm"),
                (NORMS, lambda row: b"\x80\x7f" + row[2:], "residual norm"),  # infinity
                (SAMPLER, lambda row: bytes([row[0] + 1]) + row[1:],
                 "number of tokens that the sampler left"),
                (SAMPLER, lambda row: row[:2] + half, "probability among")):
            (self.folder / "lie.vtr").write_bytes(forge(log, block, 2, change, block == TEXT))
            self.assertTrue(self.verify("lie.vtr").startswith("complete: "))
            report = self.replay_json("lie.vtr", 1)
            self.assertEqual((report["equal"], report["records_different"]), (False, 1), word)
            first = report["first_difference"]
            self.assertEqual(first["position"], 2)
            self.assertTrue(first["value"].startswith(word), first)

    def test_what_is_not_there_is_missed(self):
        if forge is None:
            self.skipTest("no cryptography")
        self.succeed("generate", MODEL, "-p", "Once", "-n", 1, "--audit-text", "--attribution",
                     "--audit", "run.vtr")
        log = (self.folder / "run.vtr").read_bytes()
        for block, word in ((DIGESTS, "lacks the digest at position 0"),
                            (DIGESTS + 1, "lacks the attribution of a prediction that is there")):
            (self.folder / "lie.vtr").write_bytes(forge(log, block, 0, lambda row: bytes(len(row))))
            self.assertIn(word, self.verify("lie.vtr", code=1))
            self.fail_with(2, ["lie.vtr", "BROKEN"], "audit", "export", "lie.vtr", "--json")

    def test_diff_sees_text_and_failures(self):
        self.succeed("generate", MODEL, "-p", "Once upon", "-n", 3, "--seed", 5, "--audit-text",
                     "--audit", "run.vtr")
        log = (self.folder / "run.vtr").read_bytes()
        if forge is not None:
            (self.folder / "lie.vtr").write_bytes(forge(log, TEXT, 2, lambda r: b"x" * len(r), True))
            result = self.run_tool("audit", "diff", "run.vtr", "lie.vtr")
            self.assertEqual(result.returncode, 1)
            self.assertIn(b"position 2: text\n", result.stdout)
        for name, top_k in (("few.vtr", 40), ("many.vtr", 300)):
            self.generate(name, "--temperature", 0.3, "--top-p", 1, "--min-p", 0, "--top-k", top_k,
                          tokens=5)
        self.succeed("audit", "redact", "few.vtr", "less.vtr", "--columns", "sampler")
        text = self.succeed("audit", "diff", "less.vtr", "many.vtr").stdout.decode()
        self.assertIn("equal in every value that both have", text)
        self.assertIn("and for no other column", text)
        self.run_tool("generate", MODEL, "-p", "a", "--choice", "no", "-n", 2, "--ban", 301,
                      "--validate-with", "false", "--audit", "fail.vtr")
        export = self.succeed("audit", "export", "fail.vtr", "--json").stdout
        other = json.loads(export)
        other["constraint_failures"][0]["bytes"] += 1
        (self.folder / "fail.json").write_bytes(export)
        (self.folder / "other.json").write_text(json.dumps(other))
        result = self.run_tool("audit", "diff", "fail.json", "other.json")
        self.assertIn(b"failures of constraints differ", result.stdout)
        self.assertEqual(result.returncode, 1)

    def test_text_and_sampler_of_a_json_log(self):
        self.generate("log.json", tokens=4)
        log = json.loads((self.folder / "log.json").read_text())
        changes = (("text", lambda record: record.update(text="bomb")),
                   ("text", lambda record: record.update(bytes=list(b"bomb"))),
                   ("text", lambda record: record.update(piece="bomb")),
                   ("number of tokens that the sampler left",
                    lambda record: record["prediction"]["sampler"].update(candidates=7000)))
        for word, change in changes:
            lie = json.loads(json.dumps(log))
            change(lie["records"][-1])
            (self.folder / "lie.json").write_text(json.dumps(lie))
            self.assertEqual(self.replay_json("lie.json", 1)["first_difference"]["value"], word)
            if word == "text":
                continue
            result = self.run_tool("audit", "diff", "log.json", "lie.json")
            self.assertEqual(result.returncode, 1)
            self.assertIn(word, result.stdout.decode())

    def test_replay_names_options_that_differ(self):
        self.generate("run.vtr", tokens=2)
        result = self.run_tool("audit", "replay", "run.vtr", "--kv-type", "f16")
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stdout.startswith(b"replayed with kv type f16 (logged: i16)\n"))
        self.assertTrue(self.succeed("audit", "replay", "run.vtr", "--kv-type", "i16").stdout
                        .startswith(b"equal: "))
