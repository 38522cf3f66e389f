# SPDX-License-Identifier: Apache-2.0
"""`vitrine embed`."""

import json

from tool import MODEL, CliTest

TEXTS = ["Once upon a time", "A fox.", "Once upon a time", "h\u00e9 \u4e2d"]


class Embed(CliTest):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "texts"
        self.file.write_text("\n".join(TEXTS) + "\n")

    def rows(self, *arguments):
        return [json.loads(line) for line in
                self.succeed("embed", MODEL, *arguments).stdout.splitlines()]

    def test_lines_of_texts(self):
        rows = self.rows("-f", "texts")
        self.assertEqual([row["index"] for row in rows], [0, 1, 2, 3])
        self.assertEqual(rows[0]["embedding"], rows[2]["embedding"])
        self.assertNotEqual(rows[0]["embedding"], rows[1]["embedding"])
        for text, row in zip(TEXTS, rows):
            self.assertEqual(row["tokens"], len(
                self.succeed_json("tokenize", MODEL, "-p", text, "--json")["ids"]))
            self.assertAlmostEqual(sum(value * value for value in row["embedding"]), 1, places=5)
            # A text alone gives the same vector.
            self.assertEqual(self.rows("-p", text)[0]["embedding"], row["embedding"])
        table = self.succeed("embed", MODEL, "-f", "texts", "--format", "table").stdout.decode()
        self.assertEqual([[float(value) for value in line.split()] for line in table.splitlines()],
                         [row["embedding"] for row in rows])

    def test_poolings(self):
        whole, = self.rows("-p", TEXTS[0], "--pooling", "none", "--no-normalize")
        tokens = whole["embeddings"]
        self.assertEqual(len(tokens), whole["tokens"])
        of = {pooling: self.rows("-p", TEXTS[0], "--pooling", pooling, "--no-normalize")[0]["embedding"]
              for pooling in ("mean", "last", "cls")}
        self.assertEqual((of["cls"], of["last"]), (tokens[0], tokens[-1]))
        for mean, values in zip(of["mean"], zip(*tokens), strict=True):
            self.assertAlmostEqual(mean, sum(values) / len(values), places=5)

    def test_what_is_cut_is_said(self):
        self.fail_with(2, ["texts, line 1", "tokens", "--truncate"], "embed", MODEL, "-f", "texts",
                       "-c", 2)
        result = self.succeed("embed", MODEL, "-f", "texts", "-c", 2, "--truncate")
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual({row["tokens"] for row in rows}, {2})
        self.assertIn("truncated_from", rows[0])
        self.assertIn(b"cut to 2 tokens", result.stderr)

    def test_bad_texts(self):
        for text, words in ((b"a\n\nb\n", ["line 2", "is empty"]), (b"", ["is empty"]),
                            (b"a\nb\xffc\n", ["line 2", "no UTF-8", "0xFF"])):
            self.file.write_bytes(text)
            self.fail_with(2, words, "embed", MODEL, "-f", "texts")
        self.fail_with(2, ["is empty"], "embed", MODEL, "-p", "")
        self.fail_with(2, ["--prompt or --file"], "embed", MODEL)
        self.fail_with(2, ["gone"], "embed", MODEL, "-f", "gone")
