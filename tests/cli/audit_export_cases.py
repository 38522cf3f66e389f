# SPDX-License-Identifier: Apache-2.0
"""vitrine audit export: tables."""

import array
import json
import os
import shutil

from tool import MODEL, TRACE, VITRINE, AuditCase, file_size_limit


def float32(values):
    """What a reader of doubles makes of the shortest digits, rounded to float32."""
    return array.array("f", values).tolist()


class AuditExport(AuditCase):
    def test_parquet(self):
        try:
            import pyarrow.parquet
        except ImportError:
            self.skipTest("no pyarrow")
        self.generate("run.vtr", "--attribution", "--audit-level", "full", "--prompt-logprobs",
                      "--hidden-states", "1,4", "--hidden-positions", "3-4,20-22", "--trace-id", TRACE)
        log = json.loads(self.succeed("audit", "export", "run.vtr", "--json").stdout)
        self.assertEqual(log["trace_id"], TRACE)
        self.succeed("audit", "export", "run.vtr", "--parquet", "--out", "tables")
        self.assertEqual(sorted(os.listdir(self.folder / "tables")),
                         ["attribution.parquet", "hidden.parquet", "logprobs.parquet",
                          "routing.parquet", "tokens.parquet"])
        read = {name: pyarrow.parquet.read_table(self.folder / "tables" / f"{name}.parquet")
                for name in ("tokens", "routing", "attribution", "logprobs", "hidden")}
        for table in read.values():
            self.assertEqual(table.schema.metadata[b"vitrine.schema"], b"vitrine.parquet/2")
            self.assertTrue(table.schema.metadata[b"vitrine.account"].startswith(b"complete: "))
            self.assertEqual(table.schema.metadata[b"vitrine.trace_id"].decode(), TRACE)
            self.assertIn(b"vitrine.sha256.model.safetensors", table.schema.metadata)
        tokens, routing, terms, logprobs, hidden = (read[name].to_pylist() for name in read)
        predicted = {(row["sequence"], row["position"]): row for row in logprobs}
        self.assertEqual(len(predicted), sum(r["prediction"] is not None for r in log["records"]))
        self.assertEqual(hidden, [
            {"sequence": record["sequence"], "position": record["position"], "layer": state["layer"],
             "values": float32(state["values"])}
            for record in log["records"] for state in record.get("hidden_states", ())])
        self.assertEqual(sorted({row["position"] for row in hidden}), [3, 4, 20, 21, 22])
        self.assertEqual(len(tokens), len(log["records"]))
        expected_routing, expected_terms = [], []
        for row, record in zip(tokens, log["records"]):
            place = (record["sequence"], record["position"])
            self.assertEqual((row["sequence"], row["position"], row["token_id"]),
                             (*place, record["token"]))
            for norm, layer in zip(row["residual_norms"], record["layers"], strict=True):
                self.assertAlmostEqual(norm / layer["residual_norm"], 1, places=6)
            self.assertEqual(row["routed_experts"], [one["experts"] for one in record["layers"]])
            for found, layer in zip(row["routed_weights"], record["layers"], strict=True):
                for weight, expected in zip(found, layer["weights"], strict=True):
                    self.assertAlmostEqual(weight, expected, places=6)
            for layer in record["layers"]:
                for slot, (expert, weight) in enumerate(zip(layer["experts"], layer["weights"])):
                    expected_routing.append((*place, layer["layer"], slot, expert, weight))
            prediction = record["prediction"]
            if prediction is None:
                self.assertNotIn(place, predicted)
                continue
            row = predicted[place]
            self.assertEqual((row["token_id"], row["generated"]),
                             (prediction["token"], prediction["generated"]))
            self.assertAlmostEqual(row["logprob"], prediction["logprob"], places=6)
            self.assertAlmostEqual(row["entropy"], prediction["entropy"], places=5)
            self.assertEqual(row["bytes"].decode(errors="replace"), row["token"])
            for one, other in zip(row["top_logprobs"], prediction["top_logprobs"], strict=True):
                self.assertAlmostEqual(one["logprob"], other["logprob"], places=5)
            self.assertEqual([one["token_id"] for one in row["top_logprobs"]],
                             [one["token"] for one in prediction["top_logprobs"]])
            attribution = prediction["attribution"]
            for term in attribution["terms"]:
                expected_terms.append((*place, term["part"], term.get("layer"), term.get("expert"),
                                       term["value"], term["runner_up"]))
            expected_terms.append((*place, "rounding", None, None, attribution["rounding"],
                                   attribution["runner_up"]["rounding"]))
        found = [(r["sequence"], r["position"], r["layer"], r["slot"], r["expert"], r["weight"])
                 for r in routing]
        self.assertEqual([r[:5] for r in found], [r[:5] for r in expected_routing])
        for one, other in zip(found, expected_routing):
            self.assertAlmostEqual(one[5], other[5], places=6)
        found = [(r["sequence"], r["position"], r["part"], r["layer"], r["expert"], r["value"],
                  r["runner_up_value"]) for r in terms]
        self.assertEqual([r[:5] for r in found], [r[:5] for r in expected_terms])
        for one, other in zip(found, expected_terms):
            self.assertAlmostEqual(one[5], other[5], places=5)
            self.assertAlmostEqual(one[6], other[6], places=5)
        text = "".join(row["token"] for row in logprobs if row["generated"])
        self.assertIn(text.encode()[:20], self.generate("again.vtr").stdout)

        self.generate("plain.json")
        self.succeed("audit", "export", "plain.json", "--parquet", "--out", "plain")
        self.assertEqual(sorted(os.listdir(self.folder / "plain")),
                         ["logprobs.parquet", "routing.parquet", "tokens.parquet"])
        self.fail_with(2, ["--out"], "audit", "export", "run.vtr", "--parquet")
        self.fail_with(2, ["tables", "empty"], "audit", "export", "run.vtr", "--parquet",
                       "--out", "tables")
        self.fail_with(1, ["gone"], "audit", "export", "run.vtr", "--parquet", "--out", "gone/t")
        self.fail_with(1, ["t/tokens.parquet", "File too large"], "audit", "export", "run.vtr", "--parquet", "--out", "t",
                       **file_size_limit(1000))

    def test_parquet_without_its_library(self):
        """A copy of the library alone: one line that says what is missing."""
        library = os.path.join(os.path.dirname(VITRINE), "libvitrine.so.0.1")
        (self.folder / "lib").mkdir()
        shutil.copy(library, self.folder / "lib")
        self.generate("run.vtr")
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.folder / "lib")}
        self.fail_with(2, ["libvitrine_parquet.so", "scripts/build all"], "audit", "export", "run.vtr",
                       "--parquet", "--out", "t", env=environment)

    def test_an_export_has_one_format(self):
        self.generate("run.vtr", tokens=2)
        self.fail_with(2, ["one format"], "audit", "export", "run.vtr")
        self.fail_with(2, ["one format"], "audit", "export", "run.vtr", "--html", "--json")
