# SPDX-License-Identifier: Apache-2.0
"""generate --hidden-states, and the digest of the logits: what only full logs and replay show."""

import json

from tool import MODEL, PROMPT, AuditCase, without_start


class HiddenStates(AuditCase):
    def test_log_export_and_replay(self):
        hidden = ("--audit-level", "full", "--hidden-states", "0,2,4")
        self.generate("log.json", *hidden, tokens=8)
        self.generate("run.vtr", *hidden, tokens=8)
        self.generate("some.vtr", *hidden, "--hidden-positions", "1-2,5-5", tokens=8)
        self.generate("chosen.vtr", *hidden, "--hidden-positions", "generated", tokens=8)
        self.generate("plain.json", "--audit-level", "full", tokens=8)
        text = (self.folder / "log.json").read_bytes()
        exported = self.succeed("audit", "export", "run.vtr", "--json").stdout
        self.assertEqual(without_start(exported), without_start(text))
        log = json.loads(text)
        self.assertEqual(log["audit"]["hidden_state_layers"], [0, 2, 4])
        plain = json.loads((self.folder / "plain.json").read_text())
        self.assertNotIn("hidden_states", plain["audit"])
        exports = {name: json.loads(self.succeed("audit", "export", name, "--json").stdout)
                   for name in ("some.vtr", "chosen.vtr")}
        for i, record in enumerate(log["records"]):
            states = record["hidden_states"]
            self.assertEqual([state["layer"] for state in states], [0, 2, 4])
            for state in states:
                self.assertEqual(len(state["values"]), log["audit"]["hidden_size"])
            for layer in (0, 2):  # what enters a layer has the norm that is recorded there
                norm = sum(value * value for value in states[layer // 2]["values"]) ** 0.5
                self.assertAlmostEqual(norm / record["layers"][layer]["residual_norm"], 1, places=4)
            kept = {"some.vtr": record["position"] in (1, 2, 5),
                    "chosen.vtr": bool(record["prediction"] and record["prediction"]["generated"])}
            for name, export in exports.items():
                found = export["records"][i]
                self.assertEqual(found.pop("hidden_states", None), states if kept[name] else None)
            record.pop("hidden_states")
            self.assertEqual(record, plain["records"][i])
        for name in ("run.vtr", "some.vtr", "chosen.vtr"):
            self.assertTrue(self.verify(name).startswith("complete: "))
            self.assertIn(b"equal: ", self.succeed("audit", "replay", name).stdout)
        self.assertIn(b"equal: ", self.succeed("audit", "replay", "log.json").stdout)
        self.assertIn(b"0 different", self.succeed("audit", "diff", "run.vtr", "some.vtr").stdout)
        shown = self.succeed("audit", "show", "some.vtr", "--position", 5).stdout.decode()
        self.assertIn("hidden state entering layer 2: ", shown)
        self.assertIn("hidden state leaving the last, layer 4: ", shown)
        shown = self.succeed("audit", "show", "some.vtr", "--position", 6).stdout.decode()
        self.assertNotIn("hidden state", shown)
        # One value changed, and nothing else.
        log = json.loads(text)
        log["records"][3]["hidden_states"][1]["values"][7] += 1
        (self.folder / "log.json").write_text(json.dumps(log))
        result = self.run_tool("audit", "replay", "log.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"position 3, layer 2, hidden state [7]: ", result.stdout)
        self.succeed("audit", "redact", "run.vtr", "out.vtr", "--columns", "hidden_states")
        self.assertTrue(self.verify("out.vtr").startswith("complete, redacted: hidden_states; "))
        self.assertIn(b"equal: ", self.succeed("audit", "replay", "out.vtr").stdout)

    def test_redacted_prompt(self):
        self.generate("run.vtr", "--audit-level", "full", "--hidden-states", "all", "--redact",
                      "prompt", tokens=6)
        self.assertTrue(self.verify().startswith("complete, redacted: tokens, "))
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        # What the prompt's tokens were can be read from their states.
        kept = ["hidden_states" in record for record in log["records"]]
        self.assertEqual(kept, [record["token"] >= 0 for record in log["records"]])
        self.assertEqual((sum(kept), kept[-5:]), (5, [True] * 5))

    def test_refused(self):
        def refuse(words, *options):
            self.fail_with(2, words, "generate", MODEL, "-p", PROMPT, "-n", 2, *options)
        full = ("--audit", "run.vtr", "--audit-level", "full")
        refuse(("--hidden-states 0", "--audit FILE"), "--hidden-states", "0")
        refuse(("--hidden-states 0", "--audit-level full"), "--hidden-states", "0", "--audit",
               "run.vtr")
        for bad in ("9", "-1", "0,,1", "1-2", "x", "0,", "99999999999999999999"):
            refuse(("--hidden-states", bad, "0 to 4"), *full, f"--hidden-states={bad}")
        for bad in ("3", "5-2", "1-2,", "x", "-1-2", "1-2-3", "all,1-2"):
            refuse(("--hidden-positions", "FIRST-LAST"), *full, "--hidden-states", "all",
                   f"--hidden-positions={bad}")
        refuse(("--hidden-positions", "--hidden-states"), *full, "--hidden-positions", "0-3")
        refuse(("--hidden-positions", ".vtr"), "--audit", "run.json", "--audit-level", "full",
               "--hidden-states", "all", "--hidden-positions", "0-3")

    def test_a_changed_logits_digest_is_named(self):
        self.generate("log.json", tokens=4)
        log = json.loads((self.folder / "log.json").read_text())
        for record in log["records"]:
            if record["prediction"] is not None:
                self.assertRegex(record["prediction"]["logits_digest"], "^[0-9a-f]{16}$")
        last = log["records"][-1]["prediction"]
        last["logits_digest"] = f"{int(last['logits_digest'], 16) ^ 1:016x}"
        (self.folder / "log.json").write_text(json.dumps(log))
        result = self.run_tool("audit", "replay", "log.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"digest of the logits: ", result.stdout)
