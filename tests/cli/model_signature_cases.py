# SPDX-License-Identifier: Apache-2.0
"""vitrine model sign and verify; what they accept is for tests/gates/model_signature_test.cc."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from tool import TIMEOUT, VITRINE, CliTest

SIGNED = pathlib.Path(VITRINE).parent / "tests" / "data" / "model_signing"
OPENSSL = shutil.which("openssl")


class ModelSignatures(CliTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(SIGNED, self.folder, dirs_exist_ok=True)
        self.theirs = ("model", "verify", "model", "--signature", "model.p256.sig", "--key",
                       "p256.pem")

    def make_key(self, *more):
        for command in (["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"],
                        ["ec", "-in", "key.pem", "-pubout", "-out", "public.pem"],
                        *more):
            subprocess.run([OPENSSL, *command], cwd=self.folder, check=True, capture_output=True)
        for path in self.folder.glob("*key.pem"):
            path.chmod(0o600)

    def test_others_signature_is_accepted(self):
        text = self.succeed(*self.theirs).stdout.decode()
        self.assertIn("model: as it was signed under the name model\n8 files, digest ", text)
        told = self.succeed_json(*self.theirs, "--json")
        envelope = json.loads((self.folder / "model.p256.sig").read_text())
        self.assertEqual(told["key_sha256"],
                         envelope["verificationMaterial"]["publicKey"]["hint"])
        self.assertEqual(len(told["sha256"]), 8)
        self.succeed("model", "verify", "tiny.gguf", "--signature", "tiny.gguf.sig", "--key",
                     "p256.pem")

    def test_other_files_are_told_in_a_line(self):
        (self.folder / "model" / "more.bin").write_text("x")
        self.fail_with(2, ["model.p256.sig: file 'more.bin' is in model and was not signed"],
                       *self.theirs)
        text = self.succeed(*self.theirs, "--ignore-unsigned-files").stdout.decode()
        self.assertIn("1 not signed: more.bin\n", text)
        self.succeed(*self.theirs, "--ignore-path", "more.bin")
        (self.folder / "model" / "config.json").write_text("{}")
        self.fail_with(2, ["file 'config.json' of model has the SHA-256", "which was signed"],
                       *self.theirs, "--ignore-path", "more.bin")
        self.fail_with(2, ["key file 'gone.pem' is not there"], *self.theirs[:-1], "gone.pem")
        self.fail_with(2, ["gone: is not there"], "model", "verify", "gone", *self.theirs[3:])
        self.fail_with(1, ["gone.sig"], "model", "verify", "model", "--signature", "gone.sig",
                       "--key", "p256.pem")

    @unittest.skipIf(OPENSSL is None, "no openssl")
    def test_a_model_is_signed_and_checked(self):
        self.make_key()
        (self.folder / "model" / "more.bin").write_text("x")
        made = self.succeed_json("model", "sign", "model", "--key", "key.pem", "--out",
                                 "model/model.sig", "--ignore-path", "more.bin", "--json")
        self.assertIn("more.bin", made["ignored"])
        verify = ("model", "verify", "model", "--signature", "model/model.sig", "--key",
                  "public.pem")
        self.assertEqual(self.succeed_json(*verify, "--json"), made)
        self.succeed("model", "sign", "tiny.gguf", "--key", "key.pem", "--out", "tiny.sig")
        self.succeed("model", "verify", "tiny.gguf", "--signature", "tiny.sig", "--key",
                     "public.pem")
        self.fail_with(2, ["config.json: is a file of the model"], "model", "sign", "model", "--key",
                       "key.pem", "--out", "model/config.json")

    @unittest.skipIf(OPENSSL is None, "no openssl")
    def test_keys_are_kept_and_opened(self):
        self.make_key(["ec", "-in", "key.pem", "-aes256", "-passout", "pass:open sesame", "-out",
                       "closed_key.pem"])
        (self.folder / "pass.txt").write_text("open sesame\nno more\n")
        sign = ("model", "sign", "model", "--out", "out.sig", "--key")
        self.fail_with(2, ["'closed_key.pem' is encrypted; expected its passphrase"], *sign,
                       "closed_key.pem")
        self.succeed(*sign, "closed_key.pem", "--passphrase-file", "pass.txt")
        (self.folder / "key.pem").chmod(0o644)
        self.assert_one_line(self.succeed(*sign, "key.pem").stderr, "warning", "chmod 600")
        self.fail_with(2, ["--key key.pem", "--strict"], *sign, "key.pem", "--strict")

    @unittest.skipIf(OPENSSL is None, "no openssl")
    def test_interrupted_it_leaves_nothing(self):
        self.make_key()
        with open(self.folder / "large.gguf", "wb") as file:
            file.truncate(1 << 40)  # no disk holds it, and hours go by before it is read
        before = sorted(os.listdir(self.folder))
        process = subprocess.Popen(
            [VITRINE, "model", "sign", "large.gguf", "--key", "key.pem", "--out", "out.sig"],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        remark = process.stderr.readline()
        self.assertIn(b"reading large.gguf (1.1 TB)", remark)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, stderr = process.communicate(timeout=TIMEOUT)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(process.returncode, 130)
        self.assert_one_line(stderr, "cancelled")
        self.assertEqual(sorted(os.listdir(self.folder)), before)
