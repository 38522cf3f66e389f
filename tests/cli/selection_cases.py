# SPDX-License-Identifier: Apache-2.0
"""Logs of models whose routers choose by scores: what every command and export tells of these."""

import array
import json

from tool import ORACLES, AuditCase, write_byte_model


def float32(values):
    return array.array("f", values).tolist()


class Selection(AuditCase):
    def run_model(self, name, log, *more):
        folder = self.folder / name
        if not folder.exists():
            write_byte_model(folder, ORACLES / name)
        self.succeed("generate", name, "-p", "abcdef", "-n", 12, "--seed", 5, "--ignore-end-of-text",
                     "--audit", log, *more)

    def test_every_command_tells_of_them(self):
        for name, router in (("glm4_moe", "sigmoid"), ("ernie4_5_moe", "softmax")):
            with self.subTest(model=name):
                self.run_model(name, "run.vtr", "--audit-level", "full")
                self.run_model(name, "run.json", "--audit-level", "full")
                self.assertTrue(self.verify("run.vtr").startswith("complete"))
                log = self.succeed_json("audit", "export", "run.vtr", "--json")
                written = json.loads((self.folder / "run.json").read_text())
                self.assertEqual(log["records"], written["records"])
                self.assertEqual(log["audit"], written["audit"])
                sparse = [layer["layer"] for layer in log["audit"]["layers"] if layer["top_k"] > 0]
                self.assertTrue(sparse)
                self.assertEqual([layer.get("router") for layer in log["audit"]["layers"]],
                                 [router if layer["top_k"] > 0 else None for layer in log["audit"]["layers"]])
                corrected = 0
                for record in log["records"]:
                    for layer in record["layers"]:
                        if layer["layer"] not in sparse:
                            self.assertNotIn("scores", layer)
                            continue
                        # Level full: the distribution is the scores.
                        self.assertEqual(layer["scores"], [layer["router_probs"][e] for e in layer["experts"]])
                        self.assertEqual(layer["selection_keys"], sorted(layer["selection_keys"], reverse=True))
                        corrected += layer["scores"] != layer["selection_keys"]
                self.assertGreater(corrected, 0)
                for run in ("run.vtr", "run.json"):
                    text = self.succeed("audit", "show", run, "--position", "3").stdout.decode()
                    self.assertEqual(text.count(f"chosen by {router} score + correction"), len(sparse))
                self.succeed("audit", "diff", "run.vtr", "run.json")
                self.replay("run.vtr")

    def test_norms_of_experts(self):
        self.run_model("glm4_moe", "run.vtr", "--expert-norms")
        self.run_model("glm4_moe", "run.json", "--expert-norms")
        self.run_model("glm4_moe", "plain.vtr")
        log = self.succeed_json("audit", "export", "run.vtr", "--json")
        written = json.loads((self.folder / "run.json").read_text())
        sparse = {layer["layer"] for layer in log["audit"]["layers"] if layer["top_k"] > 0}
        for record, full in zip(log["records"], written["records"], strict=True):
            for layer, exact in zip(record["layers"], full["layers"], strict=True):
                self.assertEqual("expert_norms" in layer, layer["layer"] in sparse)
                for norm, value in zip(layer.get("expert_norms", []), exact.get("expert_norms", []),
                                       strict=True):
                    self.assertGreater(value, 0)
                    self.assertAlmostEqual(norm / value, 1, delta=2 ** -8)
        self.succeed("audit", "diff", "run.vtr", "plain.vtr")  # digests are the same
        self.assertTrue(self.verify("run.vtr").startswith("complete"))
        self.replay("run.vtr")
        self.fail_with(2, ["--expert-norms", "counters"], "generate", "glm4_moe", "-p", "a",
                       "--expert-norms", "--audit", "c.vtr", "--audit-level", "counters")

    def test_tables(self):
        try:
            import pyarrow.parquet
        except ImportError:
            self.skipTest("no pyarrow")
        self.run_model("glm4_moe", "run.vtr", "--audit-level", "full")
        log = self.succeed_json("audit", "export", "run.vtr", "--json")
        self.succeed("audit", "export", "run.vtr", "--parquet", "--out", "tables")
        found = pyarrow.parquet.read_table(self.folder / "tables" / "routing.parquet").to_pylist()
        expected = [(record["position"], layer["layer"], slot, score, key)
                    for record in log["records"] for layer in record["layers"]
                    for slot, (score, key) in enumerate(zip(float32(layer.get("scores", [])),
                                                            float32(layer.get("selection_keys", []))))]
        self.assertEqual([(row["position"], row["layer"], row["slot"], row["score"], row["selection_key"])
                          for row in found], expected)
        self.assertEqual({row["router"] for row in found}, {"sigmoid"})
        self.generate("plain.vtr", tokens=3)
        self.succeed("audit", "export", "plain.vtr", "--parquet", "--out", "plain")
        for row in pyarrow.parquet.read_table(self.folder / "plain" / "routing.parquet").to_pylist():
            self.assertEqual((row["router"], row["score"], row["selection_key"]), ("plain", None, None))

    def test_a_plain_router_has_none(self):
        self.generate("run.json", "--audit-level", "full", tokens=3)
        text = (self.folder / "run.json").read_text()
        for word in ('"router"', '"scores"', '"selection_keys"'):
            self.assertNotIn(word, text)

    def test_redacted_with_the_routing(self):
        self.run_model("glm4_moe", "run.vtr")
        self.succeed("audit", "redact", "run.vtr", "less.vtr", "--columns", "routing")
        self.verify("less.vtr")
        for record in self.succeed_json("audit", "export", "less.vtr", "--json")["records"]:
            for layer in record["layers"]:
                for key in ("experts", "weights", "scores", "selection_keys"):
                    self.assertTrue({*layer.get(key, [])} <= {None, -1}, layer)
        text = self.succeed("audit", "show", "less.vtr", "--position", "3").stdout.decode()
        self.assertIn("score + correction left out", text)

    def test_mean_weights_add_up_to_a_layers_one(self):
        """Weights of this model add up to 1.8; `/audit` divides them by their sum."""
        write_byte_model(self.folder / "model", ORACLES / "glm4_moe_lite")
        (self.folder / "roles.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        out = self.succeed("chat", "model", "--chat-template", "roles.jinja", "-n", 12, "-s", 7,
                           stdin=b"abc\n/audit\n").stdout.decode(errors="replace")
        lines = out[out.index(" tokens, mean log-probability"):].splitlines()[2:]
        layers, layer = {}, None
        for line in lines:
            if line[:5].strip():
                layer = int(line[:5])
            _, count, _, weight = line[5:].split()
            used, mass = layers.get(layer, (0, 0.0))
            layers[layer] = used + int(count), mass + int(count) * float(weight)
        self.assertTrue(layers)
        for used, mass in layers.values():
            self.assertAlmostEqual(mass, used / 2, delta=0.0006 * used)  # two experts a token

    def test_bad_json(self):
        self.run_model("glm4_moe", "run.json")
        whole = json.loads((self.folder / "run.json").read_text())
        for words, change in (
                (["router", "tanh"], lambda log: log["audit"]["layers"][-1].update(router="tanh")),
                (["record 1"], lambda log: log["records"][1]["layers"][-1]["scores"].pop()),
                (["record 1"], lambda log: log["records"][1]["layers"][-1].pop("selection_keys")),
                (["record 1"], lambda log: log["records"][1]["layers"][-1].update(scores="many"))):
            log = json.loads(json.dumps(whole))
            change(log)
            (self.folder / "bad.json").write_text(json.dumps(log))
            self.fail_with(2, ["bad.json", *words], "audit", "show", "bad.json")
