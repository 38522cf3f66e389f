"""federate with what generate has too: constraints, several answers, log-probabilities, hidden
states."""

import json

import numpy

from federation_cases import ADAPTERS, FederationCase
from tool import MODEL, PROMPT

SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 99}}}


class FederatedAnswers(FederationCase):
    def generate(self, path, *more):
        return self.succeed_json("federate", path, "-p", PROMPT, "--json", "-s", "3", *more)

    def test_constraints(self):
        (self.folder / "schema.json").write_text(json.dumps(SCHEMA))
        (self.folder / "words.gbnf").write_text('root ::= "a " ("cat" | "dog")\n')
        path = self.write()
        for temperature in ("0", "1.5"):
            more = ("-n", "24", "--temperature", temperature)
            value = json.loads(self.generate(path, "--json-schema", "schema.json", *more)["text"])
            self.assertEqual(set(value), {"name", "age"})
            text = self.generate(path, "--regex", "[a-z]{3}-[0-9]{2,5}", *more)["text"]
            self.assertRegex(text, r"\A[a-z]{3}-[0-9]{2,5}\Z")
            run = self.generate(path, "--grammar", "words.gbnf", *more)
            self.assertIn(run["text"], ("a cat", "a dog"))
            self.assertEqual(run["reason"], "complete")
        self.assertIsInstance(json.loads(self.generate(path, "--json-object", "-n", 24)["text"]),
                              dict)
        self.fail_with(2, ("known to fit into", "room for 3", "-n"), "federate", path, "-p", PROMPT,
                       "--json-schema", "schema.json", "-n", 3)
        self.fail_with(2, ("--max-retries",), "federate", path, "-p", PROMPT, "--regex", "a",
                       "--max-retries", 2)

    def test_a_constrained_run_reconciles(self):
        pattern = "([a-z]{1,9} ){150,}[a-z]+"
        for combiner in (None, {"kind": "product", "weights": [0.5, 0.4, 0.3]}):
            path = self.write(combiner=combiner)
            counts = self.generate(path, "--regex", pattern, "-n", 700, "--temperature", "1.2",
                                   "--audit", "run.json")["constraint"]
            self.assertTrue(counts["is_complete"])
            self.assertGreater(counts["rejections"], 0)
            log, predictions = self.records("run.json")
            self.check(log["audit"]["federation"], predictions)
            self.assertEqual(log["constraint"]["kind"], "regex")
            decisions = [prediction["constraint"] for prediction in predictions]
            self.assertEqual(len(decisions), counts["masks"])
            self.assertEqual(sum(one["first_ruled_out"] for one in decisions),
                             counts["rejections"])
            self.assertTrue(all(0 <= one["removed"] <= 1 for one in decisions))

    def test_deadlocks_and_retries(self):
        # No text of the model has this letter.
        run = self.run_tool("federate", self.write(), "-p", PROMPT, "-n", 12, "-s", 3, "--regex",
                            "a\N{BLACK CHESS KNIGHT}?b", "--on-deadlock", "validate-retry",
                            "--max-retries", 2, "--json")
        self.assertIn(run.returncode, (0, 1), run.stderr)
        self.assertIn("constraint", json.loads(run.stdout))

    def test_several_answers(self):
        path = self.write()
        run = self.generate(path, "--n-best", 3, "--logprobs", 2, "-n", 12, "--temperature", 1,
                            "--audit", "run.vtr", "--audit-level", "full")
        self.assertEqual(sorted(one["branch"] for one in run["candidates"]), [0, 1, 2])
        totals = [one["logprob"] for one in run["candidates"]]
        self.assertEqual(totals, sorted(totals, reverse=True))
        for one in run["candidates"]:
            self.assertAlmostEqual(sum(t["logprob"] for t in one["logprobs"]), one["logprob"], 6)
            self.assertTrue(all(len(t["best"]) == 2 for t in one["logprobs"]))
        alone = self.generate(path, "-n", 12, "--temperature", 1)
        first = next(one for one in run["candidates"] if one["branch"] == 0)
        self.assertEqual(first["tokens"], alone["tokens"])
        self.assertIn(b"complete", self.succeed("audit", "verify", "run.vtr").stdout)
        log, predictions = self.records("run.vtr")
        self.check(log["audit"]["federation"], predictions)
        # Each of a constrained run is what the constraint asks for.
        run = self.generate(path, "--choice", "a cat", "--choice", "a dog", "--n-best", 3,
                            "--temperature", 1.5, "-n", 12)
        self.assertLessEqual({one["text"] for one in run["candidates"]}, {"a cat", "a dog"})
        text = self.succeed("federate", path, "-p", PROMPT, "-n", 4, "-s", 3, "--logprobs", 2)
        self.assertEqual(text.stdout.decode().strip().splitlines()[-1].count("\t"), 4)

    def test_logprobs_are_the_joints(self):
        path = self.write()
        run = self.generate(path, "-n", 20, "--logprobs", 1, "--ignore-end-of-text", "--audit",
                            "run.json")
        _, predictions = self.records("run.json")
        joints = [one["federation"]["joint"] for one in predictions]
        numpy.testing.assert_allclose([one["logprob"] for one in run["logprobs"]], joints,
                                      rtol=0, atol=5e-6)

    def test_hidden_states(self):
        path = self.write(specialists=[{"name": "science", "adapter": str(ADAPTERS / "science")},
                                       {"name": "base"}],
                          combiner={"kind": "mixture", "weights": [0.5, 0.5]})
        more = ("--audit-level", "full", "--hidden-states")
        self.federate(path, "run.vtr", *more, "all", tokens=6)
        log, _ = self.records("run.vtr")
        self.assertEqual(log["audit"]["hidden_state_layers"], list(range(8)))
        first = log["records"][0]["hidden_states"]
        self.assertEqual([one["layer"] for one in first], list(range(8)))
        # Layer 0 is entered by the embedding, which no adapter changes.
        self.assertEqual(first[0]["values"], first[4]["values"])
        self.assertNotEqual(first[3]["values"], first[7]["values"])
        self.fail_with(2, ("--hidden-states 4", "0 to 3"), "federate", path, "-p", PROMPT, "-n", 1,
                       "--audit", "x.vtr", *more, "4")
