# SPDX-License-Identifier: Apache-2.0
"""The manifest beside a sealed log, checked by the tools of in-toto: generate --seal, audit manifest,
audit verify."""

import base64
import copy
import hashlib
import json
import os
import unittest

from tool import MODEL, AuditCase, file_size_limit

try:
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import STATEMENT_TYPE_URI, Statement
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import Key
except ImportError:
    Envelope = None

NAME = "run.vtr.manifest.json"


@unittest.skipIf(Envelope is None, "no securesystemslib or in-toto-attestation")
class Manifest(AuditCase):
    def load(self, name=NAME):
        return json.loads((self.folder / name).read_text())

    def public_key(self, name="key.pub"):
        value = (self.folder / name).read_text().split()[1]
        return Key.from_dict(value, {"keytype": "ed25519", "scheme": "ed25519",
                                     "keyval": {"public": value}})

    def verified_statement(self, name=NAME, key="key.pub"):
        """By securesystemslib and in-toto-attestation alone."""
        envelope = Envelope.from_dict(self.load(name))
        accepted = envelope.verify([self.public_key(key)], threshold=1)
        self.assertEqual(len(accepted), 1)
        self.assertEqual(envelope.payload_type, "application/vnd.in-toto+json")
        message = json_format.Parse(envelope.payload, statement_pb2.Statement())
        Statement.copy_from_pb(message).validate()
        return message, json.loads(envelope.payload)

    def test_others_tools_accept_it(self):
        self.generate("run.vtr", "--seal", "key", "--prompt-logprobs")
        message, statement = self.verified_statement()
        self.assertEqual(message.type, STATEMENT_TYPE_URI)
        self.assertTrue(message.predicate_type.startswith("urn:uuid:"), message.predicate_type)
        log = (self.folder / "run.vtr").read_bytes()
        self.assertEqual(len(message.subject), 1)
        self.assertEqual(message.subject[0].name, "run.vtr")
        self.assertEqual(dict(message.subject[0].digest),
                         {"sha256": hashlib.sha256(log).hexdigest(),
                          "blake2b": hashlib.blake2b(log).hexdigest()})
        run = statement["predicate"]
        report = json.loads(self.verify("run.vtr", "--json"))
        self.assertEqual(run["counts"], report["counts"])
        self.assertEqual(run["positions"], report["positions"])
        self.assertEqual(run["run"]["stopReason"], report["stop_reason"])
        self.assertEqual(run["log"]["publicKey"], report["public_key"])
        self.assertEqual(run["sampler"]["seed"], "5")
        self.assertEqual(run["sampler"]["options"]["top_k"], "40")
        self.assertLess(run["run"]["started"], run["run"]["closed"])
        for name in ("started", "closed"):
            self.assertRegex(run["run"][name], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
        materials = {one["name"]: one["digest"]["sha256"] for one in run["materials"]}
        for name in ("model.safetensors", "config.json", "tokenizer.json", "vitrine_manifest.json"):
            with open(os.path.join(MODEL, name), "rb") as file:
                self.assertEqual(materials[name], hashlib.file_digest(file, "sha256").hexdigest())

    def test_tampered(self):
        self.generate("run.vtr", "--seal", "key")
        good = self.load()
        self.succeed("audit", "keygen", "other")
        with self.assertRaises(VerificationError):
            Envelope.from_dict(copy.deepcopy(good)).verify([self.public_key("other.pub")], threshold=1)
        statement = json.loads(base64.b64decode(good["payload"]))
        statement["predicate"]["counts"]["tokens"] += 1
        changed = dict(good, payload=base64.b64encode(json.dumps(statement).encode()).decode())
        signature = dict(good["signatures"][0],
                         sig=base64.b64encode(bytes(64)).decode())
        for bad in (changed, dict(good, payloadType="application/json"),
                    dict(good, signatures=[signature]), {}, dict(good, payload="?")):
            (self.folder / NAME).write_text(json.dumps(bad))
            out = self.verify(code=1)
            self.assertIn("complete", out.splitlines()[0])
            lines = [line for line in out.splitlines() if "MANIFEST DOES NOT FIT" in line]
            self.assertEqual(len(lines), 1, out)
            self.assertIn(NAME, lines[0])
            report = json.loads(self.verify("run.vtr", "--json", code=1))
            self.assertEqual(report["manifest"]["fits"], False)
        for bad in (changed, dict(good, signatures=[signature])):
            with self.assertRaises(VerificationError):
                Envelope.from_dict(copy.deepcopy(bad)).verify([self.public_key()], threshold=1)
        # Made again with the key it is what it was.
        self.succeed("audit", "manifest", "run.vtr", "--seal", "key")
        self.assertEqual(self.load(), good)
        self.assertIn(f"manifest {NAME}: signed with the same key", self.verify())

    def test_made_later(self):
        self.generate("run.vtr", "--seal", "key")
        self.assertEqual(self.run_tool("audit", "manifest", "run.vtr", "--seal", "key", "--out",
                                       "-").stdout, (self.folder / NAME).read_bytes())
        (self.folder / NAME).unlink()
        self.assertNotIn("manifest", self.verify())
        self.succeed("audit", "manifest", "run.vtr", "--seal", "key", "--out", "m.json")
        self.assertNotIn(NAME, os.listdir(self.folder))
        self.verified_statement("m.json")
        self.succeed("audit", "keygen", "other")
        self.fail_with(2, ["run.vtr", "expected the log's own"], "audit", "manifest", "run.vtr",
                       "--seal", "other")
        self.fail_with(2, ["nokey"], "audit", "manifest", "run.vtr", "--seal", "nokey")
        self.fail_with(2, ["gone.vtr"], "audit", "manifest", "gone.vtr", "--seal", "key")
        log = (self.folder / "run.vtr").read_bytes()
        (self.folder / "cut.vtr").write_bytes(log[:-20])
        out = self.succeed("audit", "manifest", "cut.vtr", "--seal", "key").stdout
        self.assertIn(b"open", out)
        _, statement = self.verified_statement("cut.vtr.manifest.json")
        self.assertEqual(statement["predicate"]["log"]["seal"], "open")
        self.assertIsNone(statement["predicate"]["run"]["closed"])
        self.assertIn("signed with the same key", self.verify("cut.vtr", code=1))
        (self.folder / "bad.vtr").write_bytes(log[:200] + bytes([log[200] ^ 1]) + log[201:])
        self.fail_with(2, ["bad.vtr", "broken"], "audit", "manifest", "bad.vtr", "--seal", "key")

    def test_of_an_encrypted_log(self):
        public = self.succeed("audit", "keygen", "reader").stdout.decode().split()[0]
        self.generate("run.vtr", "--seal", "key", "--encrypt-for", "reader.pub")
        _, statement = self.verified_statement()
        self.assertEqual(statement["predicate"]["log"]["recipients"], [public])
        self.assertEqual(statement["predicate"]["counts"]["generated"], 40)
        # An open log's counts hang on what its reader can open; the manifest's do not.
        log = (self.folder / "run.vtr").read_bytes()
        (self.folder / "cut.vtr").write_bytes(log[:-20])
        self.succeed("audit", "manifest", "cut.vtr", "--seal", "key")
        for name, code in (("run.vtr", 0), ("cut.vtr", 1)):
            for more in ([], ["--decrypt", "reader"]):
                self.assertIn("signed with the same key", self.verify(name, *more, code=code))

    def test_a_stale_one_goes(self):
        self.generate("run.vtr", "--seal", "key")
        self.generate("run.vtr")
        self.assertNotIn(NAME, os.listdir(self.folder))
        # A run that fails before its log has the name takes nothing away.
        self.generate("run.vtr", "--seal", "key")
        before = (self.folder / NAME).read_bytes()
        self.fail_with(1, ["run.vtr"], "generate", MODEL, "-p", "Once", "--audit", "run.vtr",
                       **file_size_limit(8))
        self.assertEqual((self.folder / NAME).read_bytes(), before)
        self.assertIn("signed with the same key", self.verify())

    def test_where_it_cannot_stand(self):
        (self.folder / NAME).mkdir()
        result = self.run_tool("generate", MODEL, "-p", "Once", "-n", "3", "--seal", "key",
                               "--audit", "run.vtr")
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr, NAME, "folder")
        self.assertIn("MANIFEST DOES NOT FIT", self.verify(code=1))
        (self.folder / NAME).rmdir()
        self.assertIn("complete", self.verify())
