# SPDX-License-Identifier: Apache-2.0
"""What the commands say of columns that were left out or are encrypted."""

import json
import re

from tool import MODEL, AuditCase, write_byte_model


class Hidden(AuditCase):
    def out(self, *arguments):
        return self.succeed("audit", *arguments).stdout.decode()

    def page_data(self, name):
        page = self.out("export", name, "--html")
        start = page.index('id="data">') + len('id="data">')
        return json.loads(page[start:page.index("</script>", start)])

    def test_what_was_left_out_is_no_fact(self):
        self.succeed("audit", "keygen", "reader")
        self.generate("run.vtr", tokens=12)
        self.generate("closed.vtr", "--encrypt-for", "reader.pub", tokens=12)
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns",
                     "prediction,routing,norms")
        for name in ("less.vtr", "closed.vtr"):
            shown = self.out("show", name)
            self.assertIn("12 of them chose a token (0 can be read", shown)
            shown = self.out("show", name, "--position", 14)
            self.assertIn("norm left out", shown)
            self.assertIn("no prediction from it can be read", shown)
            self.assertNotIn("nan", shown)
            self.assertIn("can be read", self.out("top", name))
            stats = self.out("stats", name)
            self.assertIn("12 generated", stats)
            self.assertRegex(stats, r"\nlayer 0 +left out or encrypted\n")
            stats = self.succeed_json("audit", "stats", name, "--json")
            self.assertEqual((stats["generated"], stats["generated_readable"],
                              stats["mean_logprob"]), (12, 0, None))
            self.assertEqual({(layer["uses"], layer["balance"]) for layer in stats["layers"]},
                             {(None, None)})
            log = json.loads(self.out("export", name, "--json"))
            self.assertEqual(log["counts"]["generated"], 12)
            page = self.page_data(name)
            self.assertEqual(page["hidden_layers"], [0, 1, 2, 3])
            self.assertIn("which experts worked", page["verdict"]["text"])
            self.assertTrue(all(token.get("hidden") for token in page["tokens"][1:]))
        # What is there is told as before.
        page = self.page_data("run.vtr")
        self.assertEqual(page["hidden_layers"], [])
        self.assertFalse(any("hidden" in token for token in page["tokens"]))
        self.assertIn("12 of them chose a token; stop", self.out("show", "run.vtr"))
        self.assertIn("no prediction was made from it", self.out("show", "run.vtr", "--position", 0))
        self.generate("counters.vtr", "--audit-level", "counters", tokens=3)
        self.succeed("audit", "redact", "counters.vtr", "less.vtr", "--columns", "counters")
        self.assertIn("counters of pages were left out", self.out("stats", "less.vtr"))
        self.assertNotIn("balance 1.000", self.out("stats", "less.vtr"))
        (self.folder / "cut.vtr").write_bytes((self.folder / "run.vtr").read_bytes()[:-40])
        self.assertTrue(self.succeed_json("audit", "stats", "cut.vtr", "--json")["account"]
                        .startswith("OPEN: "))
        self.assertNotIn("account", self.succeed_json("audit", "stats", "run.vtr", "--json"))

    def test_diff_with_a_redacted_copy(self):
        self.generate("run.vtr", tokens=6)
        self.generate("other.vtr", "--temperature", 2, tokens=6)
        for columns in ("prediction", "routing,norms", "tokens,digests", "prediction,digests"):
            self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", columns)
            for pair in (("run.vtr", "less.vtr"), ("less.vtr", "run.vtr")):
                out = self.out("diff", *pair)
                self.assertIn(", 0 different\n", out)
                self.assertIn("lack columns in one of the logs", out)
                has_digests = "digests" not in columns
            self.assertEqual("the digests vouch for tokens" in out, has_digests, out)
            self.assertEqual(self.run_tool("audit", "diff", "less.vtr", "other.vtr").returncode, 1)

    def test_diff_by_position(self):
        self.generate("a.json", tokens=8)
        log = json.loads((self.folder / "a.json").read_text())
        del log["records"][3]
        log["counts"]["tokens"] -= 1
        (self.folder / "b.json").write_text(json.dumps(log))
        result = self.run_tool("audit", "diff", "a.json", "b.json")
        self.assertEqual(result.returncode, 1)
        account, *lines = result.stdout.decode().splitlines()
        self.assertTrue(account.startswith("b.json: INCONSISTENT: sequence 1 "), account)
        self.assertEqual(lines, [
            "first difference: sequence 1, position 3: is only in a.json",
            "12 records equal in every value, 0 different",
            "1 positions are only in a.json, 0 only in b.json"])

    def test_an_export_says_that_it_is_rounded(self):
        self.generate("run.vtr", "--attribution", tokens=5)
        (self.folder / "run.json").write_bytes(
            self.succeed("audit", "export", "run.vtr", "--json").stdout)
        self.assertTrue(json.loads((self.folder / "run.json").read_text())["audit"]["rounded"])
        self.assertTrue(self.out("replay", "run.json").startswith("equal: "))
        self.assertIn(", 0 different", self.out("diff", "run.json", "run.vtr"))

    def test_a_recipient_of_half_a_prediction(self):
        self.succeed("audit", "keygen", "reader")
        self.succeed("audit", "keygen", "all")
        for column in ("attribution", "sampler"):
            self.fail_with(2, [f"'{column}' without 'prediction'"], "generate", MODEL, "-p", "Once",
                           "-n", 2, "--attribution", "--audit", "run.vtr", "--encrypt-for",
                           "all.pub", "--encrypt-for", f"reader.pub:tokens,{column}")

    def test_text_that_turns_around(self):
        self.generate("run.json", tokens=2)
        log = json.loads((self.folder / "run.json").read_text())
        log["model"]["path"] = "gone\u202e"
        log["records"][-1].update(token=8000, piece="a\u2066b\u202ec")
        for record in log["records"]:
            if record["prediction"] is not None:
                record["prediction"]["token"] = 8000
        (self.folder / "run.json").write_text(json.dumps(log))
        shown = self.out("show", "run.json")
        self.assertIn('"a?b?c"', shown)
        self.assertIsNone(re.search("[\u202a-\u202e\u2066-\u2069]", shown))

    def test_characters_of_several_tokens(self):
        write_byte_model(self.folder / "small")
        prompt = "h\u00e9\u4e2d\U0001f600!"
        self.succeed("generate", "small", "-p", prompt, "-n", 3, "--audit", "run.vtr")
        tokens = [one for one in self.page_data("run.vtr")["tokens"] if not one["made"]]
        self.assertEqual([one["text"] for one in tokens],
                         ["h", "\u00e9", "", "\u4e2d", "", "", "\U0001f600", "", "", "", "!"])
        self.assertEqual([one.get("part", False) for one in tokens],
                         [text == "" for text in [one["text"] for one in tokens]])
