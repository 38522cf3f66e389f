# SPDX-License-Identifier: Apache-2.0
"""Makes the models and signatures of tests/gates/model_signature_test.cc with PyPI's model-signing,
and holds Vitrine against it.

usage: model_signatures.py make             writes tests/data/model_signing
       model_signatures.py check VITRINE    both sign and check the same models, in both directions

Needs model-signing==1.1.1 and pyopenssl==26.4.0, which the former imports and does not ask for, and
the program openssl. Private keys are made anew each time and not kept.
"""

import base64
import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import model_signing

DATA = pathlib.Path(__file__).parents[1] / "data" / "model_signing"
CURVES = {"p256": "prime256v1", "p384": "secp384r1", "p521": "secp521r1"}
# Names whose order differs between texts and paths, one that is not ASCII, and one that Git has.
FILES = {"config.json": '{"model_type": "olmoe"}\n', "model.safetensors": "weights\n",
         "model/part.bin": "part\n", "notes/a b.txt": "notes\n", "README.md": "read me\n",
         "tokenizer é.json": "{}\n", ".hidden": "\n", "empty": ""}
ONE_FILE = ("tiny.gguf", "GGUF, or nearly\n")


def write_models(folder):
    for name, text in FILES.items():
        path = folder / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / ONE_FILE[0]).write_text(ONE_FILE[1])


def make_key(folder, name):
    """As openssl's manual has it; P-384 keeps the block of parameters before the key."""
    private, public = folder / f"{name}.key.pem", folder / f"{name}.pem"
    plain = [] if name == "p384" else ["-noout"]
    subprocess.run(["openssl", "ecparam", "-name", CURVES[name], "-genkey", *plain, "-out", private],
                   check=True)
    private.chmod(0o600)
    subprocess.run(["openssl", "ec", "-in", private, "-pubout", "-out", public], check=True,
                   stderr=subprocess.DEVNULL)
    return private, public


def hashing(ignored=(), **options):
    config = model_signing.hashing.Config()
    return config.set_ignored_paths(paths=ignored, **options)


def sign(model, signature, private, ignored=()):
    model_signing.signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(
        hashing(ignored)).sign(model, signature)


def verify(model, signature, public, ignored=(), ignores_unsigned=False):
    """Raises ValueError where model-signing refuses."""
    with contextlib.redirect_stdout(io.StringIO()):
        model_signing.verifying.Config().use_elliptic_key_verifier(
            public_key=public).set_hashing_config(hashing(ignored)).set_ignore_unsigned_files(
                ignores_unsigned).verify(model, signature)


def make():
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    write_models(DATA)
    with tempfile.TemporaryDirectory() as scratch:
        for name in CURVES:
            private, public = make_key(pathlib.Path(scratch), name)
            sign(DATA / "model", DATA / f"model.{name}.sig", private)
            if name == "p256":
                sign(DATA / "model", DATA / "ignoring.sig", private, ["README.md", "notes"])
                sign(DATA / ONE_FILE[0], DATA / "tiny.gguf.sig", private)
            shutil.copy(public, DATA / f"{name}.pem")


def statement(signature):
    envelope = json.loads(signature.read_text())["dsseEnvelope"]
    return json.loads(base64.b64decode(envelope["payload"]))


class Check:
    def __init__(self, vitrine):
        self.vitrine = pathlib.Path(vitrine).resolve()
        self.count = 0

    def run(self, *arguments):
        return subprocess.run([self.vitrine, "model", *arguments], capture_output=True, text=True)

    def expect(self, is_right, what):
        self.count += 1
        if not is_right:
            sys.exit(f"FAILED: {what}")

    def accepts(self, model, signature, public, *options):
        result = self.run("verify", model, "--signature", signature, "--key", public, *options)
        self.expect(result.returncode in (0, 2), result.stderr)
        return result.returncode == 0

    @staticmethod
    def they_accept(model, signature, public, **options):
        try:
            verify(model, signature, public, **options)
        except (ValueError, KeyError):
            return False
        return True

    def both(self, model, signature, public, expected, what, options=(), **theirs):
        self.expect(self.accepts(model, signature, public, *options) == expected, f"vitrine: {what}")
        self.expect(self.they_accept(model, signature, public, **theirs) == expected,
                    f"model-signing: {what}")


def check_damage(check, folder, model, signature, public):
    """One change at a time: both refuse it."""
    def changed(what, change, undo, expected=False, **options):
        change()
        check.both(model, signature, public, expected, what, **options)
        undo()
        check.both(model, signature, public, True, f"{what}, undone")

    config, extra = model / "config.json", model / "extra.txt"
    text = config.read_text()
    changed("a changed file", lambda: config.write_text(text + " "), lambda: config.write_text(text))
    changed("a file removed", config.unlink, lambda: config.write_text(text))
    changed("a file added", lambda: extra.write_text("x"), extra.unlink)
    changed("a file renamed", lambda: config.rename(extra), lambda: extra.rename(config))
    changed("a link added", lambda: extra.symlink_to(config), extra.unlink)
    changed("a file added that is ignored", lambda: extra.write_text("x"), extra.unlink, True,
            options=("--ignore-path", "extra.txt"), ignored=["extra.txt"])
    changed("a file added beside", lambda: extra.write_text("x"), extra.unlink, True,
            options=("--ignore-unsigned-files",), ignores_unsigned=True)
    git = model / ".git"
    changed("Git's folder added", lambda: (git.mkdir(), (git / "HEAD").write_text("x")),
            lambda: shutil.rmtree(git), True)
    check.both(folder / "tiny.gguf", signature, public, False, "another model")


def check(vitrine):
    checks = Check(vitrine)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_models(folder)
        keys = {name: make_key(folder, name) for name in CURVES}
        for name, (private, public) in keys.items():
            other = keys["p256" if name != "p256" else "p384"][1]
            for model in (folder / "model", folder / ONE_FILE[0]):
                ours, theirs = folder / "ours.sig", folder / "theirs.sig"
                signed = checks.run("sign", model, "--key", private, "--out", ours)
                checks.expect(signed.returncode == 0, signed.stderr)
                sign(model, theirs, private)
                for signature in (ours, theirs):
                    checks.both(model, signature, public, True, f"{name} {signature.name}")
                    checks.both(model, signature, other, False, f"{name}, another key")
                digests = [statement(path)["subject"][0] for path in (ours, theirs)]
                checks.expect(digests[0] == digests[1], f"subjects {digests}")
                checks.expect(json.loads(ours.read_text())["verificationMaterial"] ==
                              json.loads(theirs.read_text())["verificationMaterial"], "keys' hints")
            # Within the model, where it leaves itself out.
            for ignored in ([], ["notes", "README.md"]):
                model = folder / "model"
                within = model / "model.sig"
                options = [word for path in ignored for word in ("--ignore-path", path)]
                signed = checks.run("sign", model, "--key", private, "--out", within, *options)
                checks.expect(signed.returncode == 0, signed.stderr)
                check_damage(checks, folder, model, within, public)
                within.unlink()
                sign(model, within, private, [*ignored, "model.sig"])
                check_damage(checks, folder, model, within, public)
                within.unlink()
    print(f"{checks.count} checks passed")


if __name__ == "__main__":
    if sys.argv[1:] == ["make"]:
        make()
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        sys.exit(__doc__)
