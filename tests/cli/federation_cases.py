# SPDX-License-Identifier: Apache-2.0
"""federate, federate fit, federate score, inspect of a federation file, and what its logs say."""

import hashlib
import json
import os
import pathlib
import re
import shutil

import numpy

from tool import MODEL, PROMPT, CliTest

ADAPTERS = pathlib.Path(__file__).resolve().parents[2] / "models" / "fractalmoe-30m-adapters"
NAMES = ["scripture", "science", "essays"]


class FederationCase(CliTest):
    def write(self, name="federation.json", combiner=None, base=MODEL, specialists=None, **more):
        members = specialists or [{"name": n, "adapter": str(ADAPTERS / n)} for n in NAMES]
        spec = {"federation": 1, "base": base, "specialists": members,
                "combiner": combiner or {"kind": "mixture", "weights": [0.5, 0.3, 0.2]}, **more}
        if base is None:
            del spec["base"]
        path = self.folder / name
        path.write_text(json.dumps(spec))
        return path

    def federate(self, path, log, *more, tokens=40):
        return self.succeed("federate", path, "-p", PROMPT, "-n", tokens, "--seed", 5,
                            "--ignore-end-of-text", "--audit", log, *more)

    def records(self, log):
        text = (self.folder / log).read_text() if log.endswith(".json") else \
            self.succeed("audit", "export", log, "--json").stdout
        parsed = json.loads(text)
        return parsed, [r["prediction"] for r in parsed["records"] if r["prediction"]]

    def check(self, head, predictions):
        """The joint, from the exported parts alone, in double."""
        is_term = head["shares"] == "term"
        worst = 0.0
        for prediction in predictions:
            parts = prediction["federation"]
            logprobs, weights, shares = (
                numpy.array([one[key] for one in parts["specialists"]], dtype=numpy.float64)
                for key in ("logprob", "weight", "share"))
            if is_term:
                joint = float(weights @ logprobs) - parts["log_normaliser"]
                numpy.testing.assert_allclose(shares, weights * logprobs, rtol=1e-12)
            else:
                joint = float(numpy.logaddexp.reduce(numpy.log(weights) + logprobs))
                numpy.testing.assert_allclose(shares, numpy.exp(numpy.log(weights) + logprobs - joint),
                                              rtol=1e-9, atol=1e-12)
                self.assertAlmostEqual(float(shares.sum()), 1.0, places=9)
            difference = abs(joint - parts["joint"]) / max(1.0, abs(parts["joint"]))
            worst = max(worst, difference)
            self.assertLess(abs(parts["residual"]), 1e-9)
            # The distribution that was sampled is the one that is accounted for.
            self.assertLess(abs(prediction["logprob"] - parts["joint"]), 1e-5)
        self.assertLessEqual(worst, 3e-7)


class Federation(FederationCase):
    def test_a_thousand_tokens_reconcile(self):
        path = self.write()
        self.federate(path, "run.json", tokens=1000)
        log, predictions = self.records("run.json")
        self.assertEqual(log["audit"]["federation"]["specialists"], NAMES)
        self.assertEqual(len(predictions), 1000)
        self.check(log["audit"]["federation"], predictions)

    def test_every_kind_of_log_says_the_same(self):
        path = self.write(combiner={"kind": "product", "weights": [0.5, 0.4, 0.3]})
        self.federate(path, "run.json", "--prompt-logprobs")
        self.federate(path, "run.vtr", "--prompt-logprobs", "--seal", "key")
        log, predictions = self.records("run.json")
        sealed, sealed_predictions = self.records("run.vtr")
        self.check(log["audit"]["federation"], predictions)
        self.assertEqual(log["audit"]["federation"], sealed["audit"]["federation"])
        self.assertEqual([p["federation"] for p in predictions],
                         [p["federation"] for p in sealed_predictions])
        self.assertIn(b"complete", self.succeed("audit", "verify", "run.vtr", "--key",
                                                "key.pub").stdout)
        self.assertIn("specialist scripture", sealed["model"]["sha256"])
        # Four layers of each specialist, in turn.
        self.assertEqual([one["layer"] for one in log["audit"]["layers"]], list(range(12)))
        shown = self.succeed("audit", "show", "run.vtr").stdout.decode()
        self.assertIn("combiner  product of 3 specialists", shown)
        self.assertIn("mean term", shown)
        one = self.succeed("audit", "show", "run.vtr", "--position", 9).stdout.decode()
        self.assertIn("-log Z", one)
        page = self.succeed("audit", "export", "run.vtr", "--html").stdout.decode()
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        self.assertEqual([one[0] for one in data["federation"]["specialists"]], NAMES)
        self.assertTrue(any("shares" in token for token in data["tokens"]))
        self.assertIn(b"to the last bit", self.succeed("audit", "replay", "run.vtr").stdout)
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "federation")
        _, without = self.records("less.vtr")
        self.assertFalse(any("federation" in p for p in without))
        shown = self.succeed("audit", "show", "less.vtr").stdout.decode()
        self.assertIn("product of 3 specialists; their shares were left out", shown)
        self.assertNotIn("mean term", shown)
        self.assertIn("leading expert", shown)
        self.assertNotIn("coloured by", shown)
        page = self.succeed("audit", "export", "less.vtr", "--html").stdout.decode()
        self.assertFalse(json.loads(page.split('id="data">')[1].split("</script>")[0])
                         ["federation"]["told"])
        self.succeed("audit", "redact", "run.vtr", "some.vtr", "--columns", "federation",
                     "--positions", "9-10")
        self.assertIn("shares of 2 predictions were left out",
                      self.succeed("audit", "show", "some.vtr").stdout.decode())

    def test_tokens_have_the_colour_of_their_leading_specialist(self):
        self.federate(self.write(), "run.vtr")
        _, predictions = self.records("run.vtr")
        shown = self.on_terminal("audit", "show", "run.vtr", "-n", 0, NO_COLOR="").decode()
        colours, leaders = {}, []
        for line in shown.splitlines():
            found = re.search(r"(\x1b\[\d+m)(\w+) *\x1b\[0m mean share", line)
            if found:
                colours[found[1]] = found[2]
            found = re.match(r" *\d+ (\x1b\[\d+m)\S.* p=.* scripture (\d+)% science (\d+)% essays (\d+)%",
                             line)
            if found:
                leaders.append(colours[found[1]])
                shares = predictions[len(leaders) - 1]["federation"]["specialists"]
                self.assertEqual([round(100 * one["share"]) for one in shares],
                                 [int(found[i]) for i in (2, 3, 4)])
        self.assertEqual(sorted(colours.values()), sorted(NAMES))
        self.assertEqual(leaders, [
            max(zip(p["federation"]["specialists"], NAMES), key=lambda one: one[0]["share"])[1]
            for p in predictions])
        self.assertGreater(len(set(leaders)), 1)

    def test_behind_a_symbolic_link(self):
        """Where a folder is reached by another name, its ".." is that of the folder itself."""
        place = self.folder / "deep" / "federations"
        place.mkdir(parents=True)
        (self.folder / "deep" / "model").symlink_to(MODEL)
        (self.folder / "short").symlink_to(place)
        members = [{"name": n, "adapter": str(ADAPTERS / n)} for n in NAMES]
        self.write("deep/federations/f.json", base="../model", specialists=members)
        self.assertIn(b"scripture", self.succeed("inspect", "short/f.json").stdout)
        (self.folder / "text.txt").write_text("Once upon a time there was a king. " * 200)
        self.succeed("federate", "fit", "short/f.json", "text.txt", "--out", "short/fitted.json")
        for path in ("short/fitted.json", "deep/federations/fitted.json"):
            self.assertIn(b"scripture", self.succeed("inspect", path).stdout)
        (self.folder / "deep" / "model").unlink()
        self.fail_with(2, ["the base is 'short/../model', which is not there"], "inspect",
                       "short/f.json")

    def test_the_leading_specialist_of_a_product_has_a_weight(self):
        path = self.write(combiner={"kind": "product", "weights": [1, 0, 0]})
        self.federate(path, "run.vtr")
        shown = self.succeed("audit", "show", "run.vtr").stdout.decode()
        self.assertEqual(re.findall(r"leads (\d+) of", shown), ["40", "0", "0"])

    def test_parquet(self):
        try:
            import pyarrow.parquet
        except ImportError:
            self.skipTest("no pyarrow")
        self.federate(self.write(), "run.vtr", "--attribution")
        result = self.run_tool("audit", "export", "run.vtr", "--parquet", "--out", "tables")
        if b"Parquet needs" in result.stderr:
            self.skipTest("built without Parquet")
        self.assertEqual(result.returncode, 0, result.stderr)
        table = pyarrow.parquet.read_table(self.folder / "tables" / "federation.parquet").to_pydict()
        _, predictions = self.records("run.vtr")
        self.assertEqual(len(table["share"]), 3 * len(predictions))
        self.assertEqual(table["specialist"][:3], NAMES)
        self.assertEqual(table["share"][:3],
                         [one["share"] for one in predictions[0]["federation"]["specialists"]])
        self.assertEqual(table["joint"][0], predictions[0]["federation"]["joint"])
        terms = pyarrow.parquet.read_table(self.folder / "tables" / "attribution.parquet").to_pydict()
        expected = [(name, term["part"], numpy.float32(term["value"]))
                    for p in predictions
                    for name, one in zip(NAMES, p["federation"]["specialists"])
                    for term in one["attribution"]["terms"] +
                    [{"part": "rounding", "value": one["attribution"]["rounding"]}]]
        self.assertEqual(list(zip(terms["specialist"], terms["part"], terms["value"])), expected)

    def check_sums(self, predictions, digits=5):
        """Each specialist's logit is its terms and the rounding; the runner-up is the joint's."""
        for prediction in predictions:
            others = [one["token"] for one in prediction["top_logprobs"]
                      if one["token"] != prediction["token"]]
            for one in prediction["federation"]["specialists"]:
                own = one["attribution"]
                for side, key in ((own, "value"), (own["runner_up"], "runner_up")):
                    total = sum(term[key] for term in own["terms"]) + side["rounding"]
                    self.assertAlmostEqual(total, side["logit"], digits)
                self.assertEqual(own["runner_up"]["token"], others[0])
                self.assertEqual([term["part"] for term in own["terms"]][:2],
                                 ["embedding", "attention"])

    def test_attribution(self):
        path = self.write(combiner={"kind": "product", "weights": [0.5, 0.4, 0.3]})
        self.federate(path, "plain.vtr", "--prompt-logprobs")
        self.federate(path, "run.json", "--prompt-logprobs", "--attribution")
        self.federate(path, "run.vtr", "--prompt-logprobs", "--attribution")
        log, predictions = self.records("run.json")
        _, sealed = self.records("run.vtr")
        _, plain = self.records("plain.vtr")
        self.check_sums(predictions)
        self.check_sums(sealed, 1)  # binary16 terms
        self.assertEqual([p["token"] for p in predictions], [p["token"] for p in plain])
        self.check(log["audit"]["federation"], predictions)
        for prediction, short in zip(predictions, sealed):
            parts = prediction["federation"]
            joint = -parts["log_normaliser"]
            layers = []
            for one, other in zip(parts["specialists"], short["federation"]["specialists"]):
                terms = one["attribution"]["terms"]
                layers.append({term["layer"] for term in terms if "layer" in term})
                log_sum_exp = one["attribution"]["logit"] - one["logprob"]
                joint += one["weight"] * (sum(term["value"] for term in terms) +
                                          one["attribution"]["rounding"] - log_sum_exp)
                numpy.testing.assert_allclose(
                    [term["value"] for term in other["attribution"]["terms"]],
                    [term["value"] for term in terms], rtol=2**-11, atol=1e-7)
            # The numbers that layers have in the log: four of each specialist, in turn.
            self.assertEqual(layers, [set(range(4 * i, 4 * i + 4)) for i in range(3)])
            self.assertAlmostEqual(joint, parts["joint"], 4)
        self.assertIn(b"complete", self.succeed("audit", "verify", "run.vtr").stdout)
        shown = self.succeed("audit", "show", "run.vtr", "--position", 9).stdout.decode()
        for words in ("by scripture as a sum", "by essays as a sum", "less its log-sum-exp",
                      "0.5000 times that in the joint", "layer 11 attention"):
            self.assertIn(words, shown)
        self.assertIn("one expert's term", self.succeed("audit", "top", "run.vtr").stdout.decode())
        count = 3 * sum(p["generated"] for p in predictions)
        self.assertIn(f"rounding of {count} attributed logits",
                      self.succeed("audit", "stats", "run.vtr").stdout.decode())
        self.succeed("audit", "diff", "run.json", "run.vtr")
        self.assertIn(b"to the last bit", self.succeed("audit", "replay", "run.vtr").stdout)
        self.succeed("audit", "replay", "run.json")
        # A term that was not what the run had: the rerun finds it.
        changed = json.loads((self.folder / "run.json").read_text())
        prediction = [r["prediction"] for r in changed["records"] if r["prediction"]][7]
        prediction["federation"]["specialists"][1]["attribution"]["terms"][3]["runner_up"] += 0.125
        (self.folder / "changed.json").write_text(json.dumps(changed))
        result = self.run_tool("audit", "replay", "changed.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"by specialist science", result.stdout)
        page = self.succeed("audit", "export", "run.vtr", "--html").stdout.decode()
        data = json.loads(page.split('id="data">')[1].split("</script>")[0])
        made = [token for token in data["tokens"] if token["made"]]
        self.assertEqual({len(token["sums"]) for token in made}, {3})
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "attribution")
        _, without = self.records("less.vtr")
        self.assertFalse(any("attribution" in one for p in without
                             for one in p["federation"]["specialists"]))
        self.succeed("audit", "redact", "run.vtr", "least.vtr", "--columns", "federation")
        _, without = self.records("least.vtr")
        self.check_sums(without, 1)
        for name in ("less.vtr", "least.vtr"):
            self.succeed("audit", "show", name, "--position", 9)
            self.assertIn(b"equal", self.succeed("audit", "replay", name).stdout)

    def test_attribution_goes_with_other_options(self):
        path = self.write(combiner={"kind": "mixture", "weights": [0.5, 0.3, 0.2]})
        self.federate(path, "run.vtr", "--attribution", "--regex", "[a-z ]{10,60}[.]", tokens=24)
        self.federate(path, "best.vtr", "--attribution", "--n-best", 3, "--audit-level", "full",
                      tokens=12)
        for log in ("run.vtr", "best.vtr"):
            self.assertIn(b"complete", self.succeed("audit", "verify", log).stdout)
            self.assertIn(b"to the last bit", self.succeed("audit", "replay", log).stdout)
            _, predictions = self.records(log)
            self.check_sums(predictions, 1)
        self.assertIn("its share of the joint", self.succeed(
            "audit", "show", "run.vtr", "--position", 12).stdout.decode())

    def test_one_token_one_result(self):
        path = self.write()
        runs = [self.succeed_json("federate", path, "-p", PROMPT, "-n", 30, "--seed", 3, "--json",
                                  *more)["tokens"]
                for more in ((), ("-t", "1"), ("--audit-mode", "none"), ("--audit", "x.vtr"),
                             ("--audit", "y.vtr", "--attribution"))]
        self.assertEqual(runs, [runs[0]] * len(runs))
        greedy = self.succeed_json("federate", path, "-p", PROMPT, "-n", 8, "--temperature", 0,
                                   "--json", "--prompt-logprobs")
        self.assertEqual(len(greedy["tokens"]), 8)

    def test_inspect(self):
        text = self.succeed("inspect", self.write()).stdout.decode()
        for word in ("mixture", "scripture", "weight 0.5000", "the base is read once for all"):
            self.assertIn(word, text)
        seen = self.succeed_json("inspect", self.folder / "federation.json", "--json")
        self.assertEqual([one["name"] for one in seen["specialists"]], NAMES)
        self.assertGreater(seen["memory"]["weight_bytes"], 20e6)

    def test_fit_and_score(self):
        texts = []
        for name in NAMES:  # the beginning of each, cut between characters
            text = (ADAPTERS / "eval" / f"{name}.txt").read_bytes()[:6000].decode(errors="ignore")
            texts.append(self.folder / f"{name}.txt")
            texts[-1].write_text(text)
        path = self.write(specialists=[{"name": n, "adapter": str(ADAPTERS / n)} for n in NAMES] +
                          [{"name": "base"}], combiner={"kind": "mixture", "weights": [0.25] * 4})
        for kind in ("mixture", "gate"):
            fit = self.succeed_json("federate", "fit", path, *texts, "--out", f"{kind}.json",
                                    "--combiner", kind, "--window", 64, "--held-out", 0.2, "--json")
            train, held_out = (fit["log_likelihood"][part] for part in ("train", "held_out"))
            self.assertGreater(train["after"], train["before"])
            self.assertGreater(held_out["after"], max(held_out["specialists"].values()))
            self.assertEqual([one["file"] for one in fit["data"]], [t.name for t in texts])
            written = json.loads((self.folder / f"{kind}.json").read_text())
            self.assertEqual(written["combiner"]["kind"], kind)
            self.assertEqual(len(written["fit"]["members"]), 4)
            scores = self.succeed_json("federate", "score", f"{kind}.json", *texts, "--window", 64,
                                       "--json")
            shares = {name: {s: scores["texts"][f"{name}.txt"]["specialists"][s]["share"]
                             for s in NAMES} for name in NAMES}
            for name in NAMES:  # on each domain its own specialist has more than elsewhere
                for other in NAMES:
                    if other != name:
                        self.assertGreater(shares[name][name], shares[other][name])
        self.federate(self.folder / "gate.json", "run.json", tokens=20)
        log, predictions = self.records("run.json")
        self.check(log["audit"]["federation"], predictions)
        # A gate that was fitted for others.
        gate = json.loads((self.folder / "gate.json").read_text())
        gate["specialists"][:2] = gate["specialists"][1::-1]
        (self.folder / "swapped.json").write_text(json.dumps(gate))
        self.fail_with(2, ("fitted for other members",), "federate", "swapped.json", "-p", PROMPT)
        # The same weights, scaled otherwise, and a file of an earlier version.
        scaled = self.folder / "scaled"
        shutil.copytree(ADAPTERS / "essays", scaled)
        config = json.loads((scaled / "adapter_config.json").read_text())
        (scaled / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1}))
        gate = json.loads((self.folder / "gate.json").read_text())
        gate["specialists"][2]["adapter"] = "scaled"
        (self.folder / "scaled.json").write_text(json.dumps(gate))
        self.fail_with(2, ("fitted for other members", "'essays'"), "federate", "scaled.json", "-p",
                       PROMPT)
        gate["combiner"]["members"] = [
            hashlib.sha256((ADAPTERS / name / "adapter_model.safetensors").read_bytes()).hexdigest()
            for name in NAMES] + [gate["combiner"]["members"][3]]
        (self.folder / "old.json").write_text(json.dumps(gate))
        self.fail_with(2, ("earlier version", "federate fit"), "federate", "old.json", "-p", PROMPT)

    def test_outputs_leave_the_members_whole(self):
        adapter = self.folder / "essays"
        shutil.copytree(ADAPTERS / "essays", adapter)
        two = {"kind": "mixture", "weights": [0.5, 0.5]}
        path = self.write("own.json", two, specialists=[
            {"name": "essays", "adapter": str(adapter)}, {"name": "b"}])
        config = adapter / "adapter_config.json"
        (self.folder / "link").symlink_to(adapter / "adapter_model.safetensors")
        (self.folder / "text.txt").write_text("Once upon a time. " * 2000)
        before = {file: file.read_bytes() for file in
                  (config, adapter / "adapter_model.safetensors", path, self.folder / "text.txt")}
        for output in (config, self.folder / "link"):
            for option in ("--audit", "--audit-stream"):
                self.fail_with(2, ["would replace", "essays"], "federate", path, "-p", PROMPT,
                               "-n", 1, option, output)
        for output in (config, self.folder / "link", path, "text.txt"):
            self.fail_with(2, ["would replace"], "federate", "fit", path, "text.txt", "--out",
                           output)
        self.assertEqual(before, {file: file.read_bytes() for file in before})

    def test_bad_input(self):
        def refuse(words, path, *more):
            self.fail_with(2, words, "federate", path, "-p", PROMPT, "-n", 1, *more)
        good = self.write()
        refuse(("sum to 1.1", "expected 1"),
               self.write("bad.json", {"kind": "mixture", "weights": [0.5, 0.4, 0.2]}))
        refuse(("not there", "gone"), self.write("bad.json", specialists=[
            {"name": "a", "adapter": "gone"}, {"name": "b"}],
            combiner={"kind": "mixture", "weights": [0.5, 0.5]}))
        refuse(("attribution", "fused"), good, "--attribution", "--kernels", "reference")
        self.fail_with(2, ("'gone.json' is not there",), "federate", "gone.json", "-p", PROMPT)
        self.fail_with(2, ("--prompt",), "federate", good)
        self.fail_with(2, ("MODEL",), "federate")
        two = {"kind": "mixture", "weights": [0.5, 0.5]}
        # The same model, another tokenizer.
        other = self.folder / "other"
        other.mkdir()
        for name in os.listdir(MODEL):
            source = pathlib.Path(MODEL) / name
            if source.is_file() and name != "tokenizer.json":
                (other / name).symlink_to(source.resolve())
        text = (pathlib.Path(MODEL) / "tokenizer.json").read_text()
        (other / "tokenizer.json").write_text(text + "\n")
        refuse(("another tokenizer", "'b'"), self.write("bad.json", two, None, [
            {"name": "a", "model": MODEL}, {"name": "b", "model": str(other)}]))
        # An adapter of another rank, and one for experts.
        adapter = self.folder / "adapter"
        shutil.copytree(ADAPTERS / "science", adapter)
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 16}))
        bad = self.write("bad.json", two, specialists=[{"name": "a", "adapter": str(adapter)},
                                                       {"name": "b"}])
        refuse(("[16, 512]", "rank 16"), bad)
        (adapter / "adapter_config.json").write_text(
            json.dumps({**config, "alora_invocation_tokens": [5, 6]}))
        refuse(("alora_invocation_tokens", "every token"), bad)
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        weights = adapter / "adapter_model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole.replace(b"self_attn.q_proj", b"block_mlp.q_proj"))
        refuse(("cannot change",), bad)
        weights.write_bytes(whole[:-5])
        refuse(("adapter_model.safetensors",), bad)
        self.fail_with(2, ("too few",), "federate", "fit",
                       self.write("product.json", {"kind": "product", "weights": [1, 1, 1]}), good,
                       "--out", "x.json")
        self.fail_with(2, ("too few",), "federate", "fit", good, good, "--out", "x.json")
        self.fail_with(2, ("not a file",), "federate", "score", good, "gone.txt")
