# SPDX-License-Identifier: Apache-2.0
"""generate --encrypt-for and --redact, audit --decrypt, encrypted Parquet tables."""

import base64
import json
import os
import pathlib
import secrets
import subprocess

from tool import MODEL, PROMPT, TRACE, VITRINE, AuditCase

RECOVER = pathlib.Path(VITRINE).parent / "tests" / "recover_tokens"


class Privacy(AuditCase):
    def setUp(self):
        super().setUp()
        for name in ("owner", "auditor", "stranger"):
            self.succeed("audit", "keygen", name)

    def export(self, *arguments):
        return json.loads(self.succeed("audit", "export", *arguments, "--json").stdout)["records"]

    def test_encrypted_for_two(self):
        self.generate("open.vtr", "--audit-text", "--attribution")
        self.generate("run.vtr", "--audit-text", "--attribution", "--seal", "key", "--encrypt-for",
                      "owner.pub", "--encrypt-for", "auditor.pub:counters")
        everything = self.export("open.vtr")
        self.assertEqual(self.export("run.vtr", "--decrypt", "owner"), everything)
        less = self.export("run.vtr", "--decrypt", "auditor")
        self.assertEqual({record["token"] for record in less}, {-1})
        self.assertEqual({record["prediction"] for record in less}, {None})
        self.assertEqual({tuple(layer["experts"]) for record in less
                          for layer in record["layers"]}, {(-1, -1)})
        for key, words in (([], "were not opened"), (["--decrypt", "auditor"], "were not opened"),
                           (["--decrypt", "owner"], "for 2 recipients\n")):
            out = self.verify("run.vtr", "--key", "key.pub", *key)
            self.assertTrue(out.startswith("complete: "), out)
            self.assertIn(words, out)
        report = json.loads(self.verify("run.vtr", "--json"))
        self.assertEqual((report["recipients"], report["closed_groups"]), (2, 10))
        for command in ("show", "stats"):
            self.assertIn("encrypted", self.succeed("audit", command, "run.vtr").stdout.decode())
            self.assertNotIn("encrypted", self.succeed("audit", command, "run.vtr", "--decrypt",
                                                       "owner").stdout.decode())
        self.succeed("audit", "top", "run.vtr", "--decrypt", "owner")
        self.succeed("audit", "export", "run.vtr", "--html", "--decrypt", "owner", "--out", "p.html")
        self.assertIn(b"0 different", self.succeed("audit", "diff", "run.vtr", "run.vtr",
                                                   "--decrypt", "owner").stdout)
        self.succeed("audit", "replay", "run.vtr", "--decrypt", "owner")
        self.fail_with(2, ["position 0", "--decrypt"], "audit", "replay", "run.vtr")
        for command in ("verify", "show", "top", "stats", "replay"):
            self.fail_with(2, ["run.vtr", "recipient"], "audit", command, "run.vtr", "--decrypt",
                           "stranger")
        self.fail_with(2, ["owner.pub", "other half"], "audit", "show", "run.vtr", "--decrypt",
                       "owner.pub")

    def test_redacting_an_encrypted_log(self):
        self.generate("run.vtr", "--seal", "key", "--encrypt-for", "owner.pub")
        self.fail_with(2, ["tokens", "encrypted"], "audit", "redact", "run.vtr", "o.vtr",
                       "--columns", "tokens", "--positions", "0-3")
        self.succeed("audit", "redact", "run.vtr", "o.vtr", "--columns", "tokens")
        self.assertIn("complete", self.verify("o.vtr", "--key", "key.pub", "--decrypt", "owner"))
        result = self.succeed("audit", "redact", "run.vtr", "o.vtr", "--columns", "tokens",
                              "--positions", "0-3", "--decrypt", "owner")
        self.assertIn(b"in the clear", result.stderr)
        self.assertIn(b"whoever has the model still finds the text", result.stderr)
        self.assertIn("complete", self.verify("o.vtr", "--key", "key.pub"))
        tokens = [record["token"] for record in self.export("o.vtr")]
        self.assertEqual(tokens[:4], [-1] * 4)
        self.assertNotIn(-1, tokens[4:])

    def test_redacted_at_capture(self):
        self.generate("open.vtr", "--audit-text", "--prompt-logprobs")
        everything = self.export("open.vtr")
        prompt = next(i for i, record in enumerate(everything)
                      if record["prediction"]["generated"]) + 1
        self.generate("run.vtr", "--audit-text", "--prompt-logprobs", "--redact", "prompt,norms")
        self.assertIn("left out", self.verify("run.vtr"))
        for i, (less, more) in enumerate(zip(self.export("run.vtr"), everything)):
            more["redacted"] = True
            for layer in more["layers"][0 if i < prompt else 1:]:  # the first one's is the token's
                layer["residual_norm"] = None
            if i < prompt:
                more.update(token=-1, text="", bytes=[], piece="")
                for layer in more["layers"]:
                    layer["experts"] = [-1] * len(layer["experts"])
                    layer["weights"] = [None] * len(layer["weights"])
            if i < prompt - 1:
                more["prediction"] = None
            less.setdefault("text", "")
            self.assertEqual(less, more)
        # Not even compressed: without the prompt's words the file is another.
        self.generate("less.vtr", "--redact", "tokens,digests,prediction,routing")
        self.assertLess((self.folder / "less.vtr").stat().st_size,
                        (self.folder / "run.vtr").stat().st_size)

    def attack(self, name, *key):
        result = subprocess.run([RECOVER, name, MODEL, "open.vtr", *key], cwd=self.folder,
                                capture_output=True, text=True, check=True)
        return json.loads(result.stdout)

    def test_a_dictionary_of_tokens(self):
        """Every token of the vocabulary is tried at every position that is withheld."""
        for level in ("standard", "full"):
            self.generate("open.vtr", "--audit-level", level, tokens=5)
            num_tokens = len(self.export("open.vtr"))
            prompt = self.prompt_tokens()
            # The attack works where routes and norms are shown without the tokens.
            result = self.succeed("audit", "redact", "open.vtr", f"{level}-bad.vtr", "--columns",
                                  "tokens,text,prediction")
            self.assert_one_line(result.stderr, "whoever has the model", "routing,norms")
            bad = self.attack(f"{level}-bad.vtr")
            self.assertEqual((bad["hidden"], bad["recovered_by_the_model"]),
                             (num_tokens, num_tokens))
            # Nothing is recovered without running the model: what is of the embedding alone went
            # with the tokens.
            self.assertEqual(bad["recovered_without_it"], 0)
            # A recipient of counts, and nobody in particular.
            self.generate("run.vtr", "--audit-level", level, "--encrypt-for", "owner.pub",
                          "--encrypt-for", "auditor.pub:counters", tokens=5)
            for key in ([], ["auditor"]):
                found = self.attack("run.vtr", *key)
                self.assertEqual(found["hidden"], num_tokens)
                self.assertEqual((found["with_something_shown"], found["recovered_by_the_model"],
                                  found["recovered_without_it"]), (0, 0, 0))
            # A prompt that was never written. Behind its last token stands the answer, whose
            # numbers hang on the whole prompt: as long as that is unknown they tell nothing.
            self.generate("prompt.vtr", "--audit-level", level, "--redact", "prompt", tokens=5)
            found = self.attack("prompt.vtr")
            self.assertEqual((found["hidden"], found["recovered_without_it"]), (prompt, 0))
            self.assertLessEqual(found["recovered_by_the_model"], found["most_probable_is_right"])

    def test_what_is_refused(self):
        run = ("generate", MODEL, "-p", PROMPT, "-n", 2, "--audit")
        self.fail_with(2, ["--encrypt-for", ".vtr"], *run, "run.json", "--encrypt-for", "owner.pub")
        self.fail_with(2, ["--redact", ".vtr"], *run, "run.json", "--redact", "prompt")
        self.fail_with(2, ["'colour'", "tokens"], *run, "run.vtr", "--redact", "colour")
        self.fail_with(2, ["'colour'", "tokens"], *run, "run.vtr", "--encrypt-for",
                       "owner.pub:colour")
        self.fail_with(2, ["gone.pub"], *run, "run.vtr", "--encrypt-for", "gone.pub")
        self.fail_with(2, ["owner", "other half"], *run, "run.vtr", "--encrypt-for", "owner")
        self.fail_with(2, ["nobody", "'tokens'"], *run, "run.vtr", "--encrypt-for",
                       "auditor.pub:counters")
        # Whoever has the model would find the tokens by them.
        for columns in ("routing,norms", "norms", "digests", "routing,prediction"):
            self.fail_with(2, ["without 'tokens'", "'counters'"], *run, "run.vtr",
                           "--encrypt-for", "owner.pub", "--encrypt-for", f"auditor.pub:{columns}")
        for option in ("--attribution", "--prompt-logprobs", "--audit-text"):
            self.fail_with(2, [option, "counters", "standard"], *run, "run.vtr", option,
                           "--audit-level", "counters")
        for trace in ("0" * 32, "12", "G" * 32):
            self.fail_with(2, ["--trace-id", "32"], *run, "run.vtr", "--trace-id", trace)
        self.generate("run.vtr", "--trace-id", TRACE)
        self.assertIn(TRACE, self.succeed("audit", "show", "run.vtr").stdout.decode())

    def test_replay_takes_the_engines_options(self):
        for frequencies in ("f32", "bf16"):
            for name in ("run.vtr", "run.json"):
                self.generate(name, "--rope-frequencies", frequencies)
                self.succeed("audit", "replay", name)
        replay = self.run_tool("audit", "replay", "run.vtr", "--rope-frequencies", "f32")
        self.assertEqual(replay.returncode, 1, "other frequencies, other bits")
        for kv_type in ("f16", "bf16", "i16"):
            for kernels in ("fused", "reference"):
                self.generate("run.vtr", "--kv-type", kv_type, "--kernels", kernels)
                self.succeed("audit", "replay", "run.vtr")
        replay = self.run_tool("audit", "replay", "run.vtr", "--kv-type", "f32")
        self.assertEqual(replay.returncode, 1, "another cache, other bits")
        # What nobody asked for is in the log, too; an older log that names none had floats.
        for given, named, equal in (((), "i16", 1), (("--kv-type", "f32"), "f32", 0)):
            self.generate("run.json", *given)
            log = json.loads((self.folder / "run.json").read_text())
            self.assertEqual(log["runtime"]["options"].pop("kv_type"), named)
            (self.folder / "older.json").write_text(json.dumps(log))
            self.assertEqual(self.run_tool("audit", "replay", "older.json").returncode, equal, named)
            self.succeed("audit", "replay", "run.json")
        # A log of a later version has a value that is not taken for the default.
        self.generate("run.json")
        for name, known in (("kv_type", "bf16, f16, f32, i16"), ("activation_type", "int8, bf16, fp8"),
                            ("rope_frequencies", "f32, bf16")):
            log = json.loads((self.folder / "run.json").read_text())
            log["runtime"]["options"][name] = "f8"
            (self.folder / "later.json").write_text(json.dumps(log))
            self.fail_with(2, ["later.json", f"{name} 'f8'", known], "audit", "replay",
                           "later.json")

    def test_encrypted_tables(self):
        try:
            import pyarrow.parquet as parquet
            import pyarrow.parquet.encryption as encryption
        except ImportError:
            self.skipTest("no pyarrow")
        keys = {name: secrets.token_bytes(size) for name, size in (("footer", 32), ("text", 16))}
        for name, key in keys.items():
            (self.folder / name).write_text(key.hex() + "\n")
        self.generate("run.vtr", "--attribution")
        self.succeed("audit", "export", "run.vtr", "--parquet", "--out", "plain")
        self.succeed("audit", "export", "run.vtr", "--parquet", "--out", "one", "--parquet-key",
                     "footer")
        self.succeed("audit", "export", "run.vtr", "--parquet", "--out", "two", "--parquet-key",
                     "footer", "--parquet-text-key", "text")

        class Kms(encryption.KmsClient):
            def __init__(self, _):
                super().__init__()

            def wrap_key(self, key, name):
                raise NotImplementedError

            def unwrap_key(self, wrapped, name):
                return keys[name]

        factory = encryption.CryptoFactory(Kms)
        for name in sorted(os.listdir(self.folder / "plain")):
            want = parquet.read_table(self.folder / "plain" / name)
            with self.assertRaises(OSError):
                parquet.read_table(self.folder / "one" / name)
            footer = encryption.create_decryption_properties(keys["footer"])
            self.assertEqual(parquet.read_table(self.folder / "one" / name,
                                                decryption_properties=footer), want)
            whole = factory.file_decryption_properties(encryption.KmsConnectionConfig())
            self.assertEqual(parquet.read_table(self.folder / "two" / name,
                                                decryption_properties=whole), want)
        columns = ["sequence", "position", "layer", "slot"]
        routes = parquet.read_table(
            self.folder / "two" / "routing.parquet", columns=columns,
            decryption_properties=encryption.create_decryption_properties(keys["footer"]))
        self.assertEqual(
            routes, parquet.read_table(self.folder / "plain" / "routing.parquet", columns=columns))
        # What the first key alone opens, column by column.
        opened = set()
        for name in sorted(os.listdir(self.folder / "plain")):
            for column in parquet.read_schema(self.folder / "plain" / name).names:
                try:
                    parquet.read_table(
                        self.folder / "two" / name, columns=[column],
                        decryption_properties=encryption.create_decryption_properties(
                            keys["footer"]))
                    opened.add(column)
                except OSError:
                    pass
        self.assertEqual(opened, {
            "sequence", "position", "generated", "layer", "slot", "router", "part", "constraint_limited",
            "constraint_attempt", "constraint_mask_us"})
        # An AES key that openssl would make, and no other.
        for text in ("", "ab", "zz" * 16, "0" * 31, base64.b64encode(keys["footer"]).decode()):
            (self.folder / "bad").write_text(text)
            self.fail_with(2, ["bad", "hexadecimal"], "audit", "export", "run.vtr", "--parquet",
                           "--out", "t", "--parquet-key", "bad")
        self.fail_with(2, ["both"], "audit", "export", "run.vtr", "--parquet", "--out", "t",
                       "--parquet-text-key", "text")
        self.fail_with(2, ["--parquet"], "audit", "export", "run.vtr", "--json", "--parquet-key",
                       "footer")
