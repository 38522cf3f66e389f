# SPDX-License-Identifier: Apache-2.0
"""JSON logs, and exports of sealed ones: what a reader can and cannot see in them."""

import json

from tool import MODEL, PROMPT, AuditCase, without_start


class JsonLogs(AuditCase):
    def export(self, name, to):
        self.succeed("audit", "export", name, "--json", "--out", to)
        return json.loads((self.folder / to).read_text())

    def stats(self, name):
        return self.succeed_json("audit", "stats", name, "--json")

    def test_an_export_says_what_was_left_out(self):
        self.generate("run.vtr", "--prompt-logprobs", "--attribution")
        whole = self.stats("run.vtr")
        self.assertNotIn("redacted", self.export("run.vtr", "whole.json")["records"][0])
        for columns in ("prediction", "routing", "norms", "attribution,sampler"):
            copy, log = f"{columns}.vtr", f"{columns}.json"
            self.succeed("audit", "redact", "run.vtr", copy, "--columns", columns, "--positions",
                         "3-30")
            records = self.export(copy, log)["records"]
            marked = [r["position"] for r in records if r.get("redacted")]
            self.assertEqual(marked, [r["position"] for r in records if 3 <= r["position"] <= 30])
            self.assertTrue(self.replay(log).startswith("equal: "), columns)
            text = self.succeed("audit", "diff", log, "run.vtr").stdout.decode()
            self.assertIn("0 different", text)
            self.assertIn(f"{len(marked)} of them lack columns", text)
            self.assertIn(f"{len(marked)} of {len(records)} records lack columns",
                          self.succeed("audit", "show", log).stdout.decode())
            found = self.stats(log)
            for key in ("records", "generated", "scored"):
                self.assertEqual(found[key], whole[key], (columns, key))
        hidden = sum(1 for r in self.export("run.vtr", "whole.json")["records"]
                     if 3 <= r["position"] <= 30 and r["prediction"]["generated"])
        self.assertEqual(self.stats("prediction.json")["generated_readable"],
                         whole["generated"] - hidden)
        self.assertEqual(self.stats("routing.json")["layers"][0]["records_left_out"], 28)
        self.succeed("audit", "redact", "run.vtr", "tokens.vtr", "--columns", "tokens")
        self.export("tokens.vtr", "tokens.json")
        self.fail_with(2, ["tokens.json", "token of position 0", "left out"], "audit", "replay",
                       "tokens.json")

    def test_candidates(self):
        arguments = ("-n", 10, "--n-best", 3, "-s", 4, "--temperature", 1, "--audit-level", "full")
        for name in ("best.json", "best.vtr"):
            out = self.succeed_json("generate", MODEL, "-p", PROMPT, *arguments, "--audit", name,
                                    "--json")
        prompt = self.prompt_tokens()
        self.assertEqual(out["prompt_tokens"], prompt)
        self.export("best.vtr", "copy.json")
        log = (self.folder / "best.json").read_bytes()
        self.assertEqual(without_start((self.folder / "copy.json").read_bytes()),
                         without_start(log))
        self.assertEqual(json.loads(log)["forks"], [
            {"record": prompt - 1 + 10 * i, "sequence": 2 + i, "source": 1, "length": prompt - 1}
            for i in range(3)])
        report = json.loads(self.replay("best.json", "--json"))
        self.assertEqual((report["records_equal"], report["records_not_replayed"]),
                         (prompt + 29, 0))
        self.assertEqual(report["choices"], {"equal": 30, "different": 0})

    def test_runs_of_other_numbers_of_sequences(self):
        arguments = ("generate", MODEL, "-p", PROMPT, "-n", 6, "-s", 4, "--temperature", 1)
        self.succeed(*arguments, "--n-best", 2, "--audit", "two.vtr")
        self.succeed(*arguments, "--n-best", 3, "--audit", "three.vtr")
        prompt = self.prompt_tokens()
        result = self.run_tool("audit", "diff", "two.vtr", "three.vtr")
        self.assertEqual(result.returncode, 1)
        text = result.stdout.decode()
        self.assertIn("two.vtr has 3 sequences with records, three.vtr has 4", text)
        self.assertIn(f"{prompt + 11} records equal", text)
        self.assertIn("0 positions are only in two.vtr, 6 only in three.vtr", text)

    def test_contradictions(self):
        self.generate("run.json")
        log = json.loads((self.folder / "run.json").read_text())
        self.assertIsNone(self.succeed_json("audit", "verify", "run.json", "--json")["problem"])

        def verify(change, code=1):
            edited = json.loads(json.dumps(log))
            change(edited)
            (self.folder / "edited.json").write_text(json.dumps(edited))
            result = self.run_tool("audit", "verify", "edited.json")
            self.assertEqual(result.returncode, code, result)
            return (result.stderr if code == 2 else result.stdout).decode()

        def count(key, value):
            return lambda edited: edited["counts"].update({key: value})

        def drop(index):
            def change(edited):
                del edited["records"][index]
                edited["counts"]["tokens"] -= 1
            return change

        generated = log["counts"]["generated"]
        text = verify(count("generated", generated + 1))
        self.assertTrue(text.startswith("INCONSISTENT: "), text)
        self.assertIn(f"counts {generated + 1} generated and 0 scored", text)
        self.assertIn("counts 40 generated and 1 scored", verify(count("scored", 1)))
        self.assertIn("position 3 where 2 is next", verify(drop(2)))
        self.assertIn("position 1 where 0 is next", verify(drop(0)))
        self.assertIn("position -1 where 5 is next",
                      verify(lambda edited: edited["records"][5].update(position=-1)))
        for value in (1.5, -1, "7", 2**70):
            self.assertIn("counts.generated", verify(count("generated", value), 2))
        fork = {"record": 3, "sequence": 9, "source": 1, "length": 3}
        verify(lambda edited: edited.update(forks=[fork]), 0)
        self.assertIn("sequence 9 shares 4 positions of sequence 1, which has 3",
                      verify(lambda edited: edited.update(forks=[{**fork, "length": 4}])))
        for place in ({"position": 2**63 - 1}, {"position": 1e300}, {"position": -5},
                      {"sequence": -1}, {"token": 2**40}, {"token": 1.5}):
            self.assertIn("a record has", verify(
                lambda edited: edited["records"][5].update(place), 2))
        itself = {"record": 3, "sequence": 1, "source": 1, "length": 3}
        self.assertIn("sequence 1 is a fork of itself",
                      verify(lambda edited: edited.update(forks=[itself]), 2))
        for bad in ({"record": 10**6}, {"record": -1}, {"length": -1}, {"source": None}):
            verify(lambda edited: edited.update(forks=[{**fork, **bad}]), 2)
        verify(lambda edited: edited.update(forks=[fork, {**fork, "record": 2}]), 2)

    def test_statistics_of_nothing(self):
        self.generate("run.json")
        log = json.loads((self.folder / "run.json").read_text())
        log.update(records=[], counts=dict.fromkeys(log["counts"], 0))
        (self.folder / "none.json").write_text(json.dumps(log))
        found = self.stats("none.json")
        self.assertEqual((found["mean_logprob"], found["mean_entropy"]), (None, None))
        self.assertEqual([one["balance"] for one in found["layers"]], [None] * 4)
        self.assertIn("not used", self.succeed("audit", "stats", "none.json").stdout.decode())
