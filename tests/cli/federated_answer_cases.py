# SPDX-License-Identifier: Apache-2.0
"""federate with what generate has too: constraints, several answers, log-probabilities, hidden
states; and the replay of what came of it."""

import hashlib
import json
import pathlib
import shutil

import numpy

from federation_cases import ADAPTERS, NAMES, FederationCase
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
        self.fail_with(2, ("as far as is known", "room for 3", "-n"), "federate", path, "-p", PROMPT,
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
        self.assertEqual(text.stdout.decode().splitlines()[0].count("\t"), 4)

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
        # Four layers each, and behind them what leaves the last of each.
        self.assertEqual(log["audit"]["hidden_state_layers"], list(range(10)))
        first = log["records"][0]["hidden_states"]
        self.assertEqual([one["layer"] for one in first], list(range(10)))
        # Layer 0 is entered by the embedding, which no adapter changes.
        self.assertEqual(first[0]["values"], first[4]["values"])
        self.assertNotEqual(first[3]["values"], first[7]["values"])
        # The second specialist is the base: its last is what the base's own log has.
        self.succeed("generate", MODEL, "-p", PROMPT, "-n", 1, "--audit", "base.json", *more, "4")
        base = json.loads((self.folder / "base.json").read_text())["records"][0]["hidden_states"]
        self.assertEqual(first[9]["values"], base[0]["values"])
        self.assertNotEqual(first[8]["values"], base[0]["values"])
        shown = self.succeed("audit", "show", "run.vtr", "--position", 3).stdout.decode()
        self.assertIn("leaving the last layer of science, number 8", shown)
        self.assertIn("leaving the last layer of base, number 9", shown)
        self.assertTrue(self.succeed("audit", "replay", "run.vtr").stdout.startswith(b"equal"))
        self.federate(path, "last.vtr", *more, "4", tokens=3)
        self.assertEqual(self.records("last.vtr")[0]["audit"]["hidden_state_layers"], [8, 9])
        self.assertTrue(self.succeed("audit", "replay", "last.vtr").stdout.startswith(b"equal"))
        self.fail_with(2, ("--hidden-states 5", "0 to 4"), "federate", path, "-p", PROMPT, "-n", 1,
                       "--audit", "x.vtr", *more, "5")


class FederatedReplay(FederationCase):
    def test_replay_is_equal(self):
        path = self.write()
        self.federate(path, "run.vtr")
        self.federate(path, "full.vtr", "--audit-level", "full", "--prompt-logprobs", "-t", 1)
        self.federate(path, "log.json", "--audit-level", "full")
        for name in ("run.vtr", "full.vtr", "log.json"):
            for more in ([], ["--threads", 1], ["--threads", 2]):
                out = self.replay(name, *more)
                self.assertTrue(out.startswith("equal: "), out)
                self.assertNotIn("DIFFERENT", out)
        report = json.loads(self.replay("run.vtr", "--json"))
        self.assertEqual((report["equal"], report["compared"], report["predictions"]),
                         (True, "digests", 40))
        self.assertEqual(report["choices"], {"equal": 40, "different": 0})
        self.assertIsNone(report["runtime_difference"])
        self.assertEqual(pathlib.Path(report["model"]), path)

    def test_forced_routes(self):
        self.federate(self.write(), "run.vtr", "--audit-level", "full", tokens=10)
        report = json.loads(self.replay("run.vtr", "--force-routes", "--json"))
        self.assertTrue(report["equal"])
        self.assertTrue(report["forced_routes"])
        # What a log says that a specialist's layer chose is what runs.
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        layer = log["records"][2]["layers"][6]  # the second specialist's third
        layer["experts"][0] = next(i for i in range(8) if i not in layer["experts"])
        (self.folder / "other.json").write_text(json.dumps(log))
        report = json.loads(self.replay("other.json", "--force-routes", "--json", code=1))
        self.assertEqual(report["first_difference"]["layer"], 6)
        self.assertIn("weight of expert", report["first_difference"]["value"])  # not which one
        report = json.loads(self.replay("other.json", "--json", code=1))
        self.assertEqual((report["first_difference"]["layer"], report["records_different"]), (6, 1))

    def test_every_kind(self):
        two = [{"name": n, "model": MODEL} for n in "ab"]
        mixture = {"kind": "mixture", "weights": [0.25, 0.75]}
        product = {"kind": "product", "weights": [0.5, 0.4, 0.3]}
        for path in (self.write("product.json", product), self.write("two.json", mixture, None, two)):
            self.federate(path, "run.vtr", tokens=12)
            self.assertTrue(self.replay("run.vtr").startswith("equal: "))
            (self.folder / "run.vtr").unlink()

    def test_forks_constraints_and_redactions(self):
        path = self.write()
        self.federate(path, "best.vtr", "--n-best", 3, "--temperature", 1, tokens=8)
        report = json.loads(self.replay("best.vtr", "--json"))
        self.assertTrue(report["equal"])
        self.assertEqual(report["choices"], {"equal": 24, "different": 0})
        self.succeed("federate", path, "-p", PROMPT, "-n", 24, "-s", 3, "--regex", "[a-z ]{20}",
                     "--audit", "held.vtr")
        self.assertTrue(self.replay("held.vtr").startswith("equal: "))
        self.succeed("audit", "redact", "held.vtr", "less.vtr", "--columns", "federation")
        self.assertTrue(self.replay("less.vtr").startswith("equal: "))

    def leave_out(self, path, prefixes):
        """Takes tensors out of a safetensors file."""
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        kept, body = {}, b""
        for name, info in header.items():
            if name.startswith(prefixes):
                continue
            if name != "__metadata__":
                begin, end = info["data_offsets"]
                info["data_offsets"] = [len(body), len(body) + end - begin]
                body += data[8 + size + begin:8 + size + end]
            kept[name] = info
        text = json.dumps(kept).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)

    def test_hidden_states_of_specialists_of_different_depth(self):
        shallow = self.folder / "shallow"
        shutil.copytree(MODEL, shallow)
        config = json.loads((shallow / "config.json").read_text())
        (shallow / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
        self.leave_out(shallow / "model.safetensors", ("model.layers.2.", "model.layers.3."))
        members = [{"name": "shallow", "model": "shallow"}, {"name": "deep", "model": MODEL}]
        for order, layers in ((members, [0, 1, 2, 3, 4, 5, 6, 7]),
                              (members[::-1], [0, 1, 2, 3, 4, 5, 6, 7])):
            path = self.write(combiner={"kind": "mixture", "weights": [0.5, 0.5]}, base=None,
                              specialists=order)
            self.federate(path, "run.vtr", "--audit-level", "full", "--hidden-states", "all",
                          tokens=3)
            log, _ = self.records("run.vtr")
            self.assertEqual(log["audit"]["hidden_state_layers"], layers)
            self.assertTrue(self.replay("run.vtr").startswith("equal: "))
            shown = self.succeed("audit", "show", "run.vtr", "--position", 1).stdout.decode()
            for name in ("shallow", "deep"):
                self.assertRegex(shown, f"leaving the last .*{name}")
            (self.folder / "run.vtr").unlink()

    def test_replay_names_what_differs(self):
        path = self.write()
        self.federate(path, "log.json", tokens=12)
        log = json.loads((self.folder / "log.json").read_text())
        at = next(i for i, one in enumerate(log["records"]) if one["prediction"]) + 2
        share = log["records"][at]["prediction"]["federation"]["specialists"][1]
        share["logprob"] += 1e-9
        (self.folder / "bad.json").write_text(json.dumps(log))
        first = json.loads(self.replay("bad.json", "--json", code=1))["first_difference"]
        self.assertEqual(first["position"], log["records"][at]["position"])
        self.assertEqual(first["value"], "log-probability by specialist science")
        share["logprob"] += 0.01
        (self.folder / "bad.json").write_text(json.dumps(log))
        out = self.run_tool("audit", "diff", "log.json", "bad.json")
        self.assertEqual(out.returncode, 1)
        self.assertIn(b"log-probability by specialist science", out.stdout)
        log["records"][at]["layers"][9]["weights"][0] += 0.25  # of the third specialist
        (self.folder / "bad.json").write_text(json.dumps(log))
        first = json.loads(self.replay("bad.json", "--json", code=1))["first_difference"]
        self.assertEqual((first["position"], first["layer"]), (log["records"][at]["position"], 9))

    def test_bad_input(self):
        path = self.write()
        self.federate(path, "run.vtr", tokens=4)
        # Another federation: other weights, another member, one that is gone, no file at all.
        other = self.write("other.json", {"kind": "mixture", "weights": [0.4, 0.4, 0.2]})
        self.fail_with(2, ("another federation", "federation has SHA-256"), "audit", "replay",
                       "run.vtr", "--model", other)
        swapped = self.write("swapped.json", specialists=[
            {"name": n, "adapter": str(ADAPTERS / m)} for n, m in zip(NAMES, NAMES[::-1])])
        self.fail_with(2, ("another federation", "specialist essays has SHA-256"), "audit",
                       "replay", "run.vtr", "--model", swapped)
        gone = self.write("gone.json", specialists=[
            {"name": n, "adapter": str(ADAPTERS / n) if n != "essays" else "gone"} for n in NAMES])
        self.fail_with(2, ("not there", "essays"), "audit", "replay", "run.vtr", "--model", gone)
        self.fail_with(2, ("is a model",), "audit", "replay", "run.vtr", "--model", MODEL)
        # An adapter whose configuration is another; of a log of an earlier version nothing tells.
        scaled = self.folder / "scaled"
        shutil.copytree(ADAPTERS / "essays", scaled)
        config = json.loads((scaled / "adapter_config.json").read_text())
        (scaled / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1}))
        members = [{"name": n, "adapter": str(ADAPTERS / n)} for n in NAMES[:2]]
        self.federate(path, "log.json", tokens=4)
        self.write(path.name, specialists=members + [{"name": "essays", "adapter": str(scaled)}])
        log = json.loads((self.folder / "log.json").read_text())
        hashes = log["model"]["sha256"]
        hashes["federation"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (self.folder / "other.json").write_text(json.dumps(log))
        self.fail_with(2, ("another federation", "specialist essays: all files has"),
                       "audit", "replay", "other.json", "--model", path)
        self.write(path.name)
        for name in list(hashes):
            if name.startswith("specialist ") and ": " in name:
                del hashes[name]
        hashes["federation"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (self.folder / "old.json").write_text(json.dumps(log))
        self.assertTrue(self.replay("old.json").startswith("equal: "))
        moved = self.folder / "moved"
        moved.mkdir()
        shutil.move(path, moved / "federation.json")
        self.fail_with(2, ("federation file", "not there", "--model"), "audit", "replay", "run.vtr")
        self.assertTrue(self.replay("run.vtr", "--model", moved / "federation.json")
                        .startswith("equal: "))


class FederatedFit(FederationCase):
    def texts(self, size=4000):
        texts = []
        for name in NAMES:
            text = (ADAPTERS / "eval" / f"{name}.txt").read_bytes()[:size].decode(errors="ignore")
            texts.append(self.folder / f"{name}.txt")
            texts[-1].write_text(text)
        return texts

    def test_a_product_is_fitted(self):
        path = self.write(combiner={"kind": "product", "weights": [1, 1, 1]})
        fit = self.succeed_json("federate", "fit", path, *self.texts(), "--out", "fitted.json",
                                "--window", 64, "--held-out", 0.2, "--json")
        train, held_out = (fit["log_likelihood"][part] for part in ("train", "held_out"))
        self.assertGreater(train["after"], train["before"])
        self.assertGreater(train["after"], max(train["specialists"].values()))
        self.assertGreater(held_out["after"], held_out["before"])
        self.assertEqual(fit["one_window_in"], 1)
        written = json.loads((self.folder / "fitted.json").read_text())
        self.assertEqual(written["combiner"]["kind"], "product")
        weights = written["combiner"]["weights"]
        # The likelihood is what the fitted federation itself says, and there is none better beside it.
        def score(weights):
            scored = self.write("scored.json", {"kind": "product", "weights": weights})
            return self.succeed_json("federate", "score", scored, *self.texts(), "--window", 64,
                                     "--json")["all"]
        tokens = train["tokens"] + held_out["tokens"]
        both = (train["tokens"] * train["after"] + held_out["tokens"] * held_out["after"]) / tokens
        scored = score(weights)
        self.assertEqual(scored["tokens"], tokens)
        self.assertAlmostEqual(scored["log_likelihood"], both, 5)
        self.federate(self.folder / "fitted.json", "run.json", tokens=20)
        log, predictions = self.records("run.json")
        self.check(log["audit"]["federation"], predictions)

    def test_a_longer_text_is_fitted_in_parts(self):
        path = self.write()
        fit = self.succeed_json("federate", "fit", path, *self.texts(8000), "--out", "fitted.json",
                                "--combiner", "product", "--window", 32, "--memory", 60,
                                "--held-out", 0.25, "--json")
        self.assertGreater(fit["one_window_in"], 1)
        tokens = sum(fit["log_likelihood"][part]["tokens"] for part in ("train", "held_out"))
        self.assertLessEqual(tokens * 3 * 8192 * 4, 70 << 20)
        text = self.succeed("federate", "fit", path, *self.texts(3000), "--out", "fitted.json",
                            "--combiner", "product", "--window", 32).stdout.decode()
        self.assertIn("perplexity of what was held out", text)
        self.assertNotIn("best fixed", text)
        self.fail_with(2, ("too few", "--memory"), "federate", "fit", path, *self.texts(3000),
                       "--out", "x.json", "--combiner", "product", "--memory", 1)

    def test_numbers_that_are_none(self):
        damaged = self.folder / "damaged"
        shutil.copytree(ADAPTERS / "science", damaged)
        weights = damaged / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + b"\xc0\x7f\xc0\x7f")  # NaN
        path = self.write(specialists=[{"name": "whole", "adapter": str(ADAPTERS / "essays")},
                                       {"name": "damaged", "adapter": "damaged"}],
                          combiner={"kind": "mixture", "weights": [0.5, 0.5]})
        words = ("specialist 'damaged'", "essays.txt", "log-probability nan")
        texts = self.texts(1500)[::-1]
        for kind in ("mixture", "gate", "product"):
            self.fail_with(2, words, "federate", "fit", path, *texts, "--out", "fitted.json",
                           "--combiner", kind, "--window", 64)
            self.assertFalse((self.folder / "fitted.json").exists())
        self.fail_with(2, words, "federate", "score", path, *texts)

    def test_windows_are_held_out_over_all_texts(self):
        text = (ADAPTERS / "eval" / "essays.txt").read_text()[:120]
        texts = [self.folder / f"{i}.txt" for i in range(10)]
        for one in texts:
            one.write_text(text)
        for kind in ("mixture", "product"):
            for share, windows in ((0.1, 1), (0.4, 4), (0.45, 5)):
                fit = self.succeed_json("federate", "fit", self.write(), *texts, "--out", "f.json",
                                        "--held-out", share, "--combiner", kind, "--json")
                train, held_out = (fit["log_likelihood"][part]["tokens"]
                                   for part in ("train", "held_out"))
                self.assertEqual(held_out * 10, (train + held_out) * windows, (kind, share))

    def test_a_gate_is_fitted_again(self):
        arguments = (*self.texts(3000), "--combiner", "gate", "--window", 64, "--json")
        first = self.succeed_json("federate", "fit", self.write(), *arguments, "--out", "gate.json")
        again = self.succeed_json("federate", "fit", "gate.json", *arguments, "--out", "again.json")
        for part in ("train", "held_out"):
            self.assertAlmostEqual(again["log_likelihood"][part]["before"],
                                   first["log_likelihood"][part]["after"], 6)

    def test_texts_of_one_name(self):
        for name in "ab":
            (self.folder / name).mkdir()
            (self.folder / name / "x.txt").write_text(f"In the beginning of {name}.")
        path = self.write()
        scored = self.succeed_json("federate", "score", path, "a/x.txt", "b/x.txt", "--json")
        self.assertEqual(list(scored["texts"]), ["a/x.txt", "b/x.txt"])
        self.fail_with(2, ("a/x.txt", "twice"), "federate", "score", path, "a/x.txt", "a/x.txt")

    def test_names_do_not_reach_the_terminal_raw(self):
        path = self.write(specialists=[{"name": "\x1b[31mred\nline", "adapter": str(ADAPTERS / n)}
                                       if n == "essays" else
                                       {"name": "\u00e9" * 9, "adapter": str(ADAPTERS / n)}
                                       for n in NAMES[1:]],
                          combiner={"kind": "mixture", "weights": [0.5, 0.5]})
        texts = self.texts(1500)
        for arguments in (("inspect", path), ("federate", "score", path, *texts),
                          ("federate", "fit", path, *texts, "--out", "f.json", "--window", 64)):
            shown = self.succeed(*arguments).stdout.decode()
            self.assertIn("?[31mred", shown)
            self.assertNotIn("\x1b", shown)
            self.assertIn("\u00e9" * 5, shown)
