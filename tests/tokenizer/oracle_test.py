#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our tokenizer with PyPI's `tokenizers` on 4,000 seeded strings per tokenizer, in a long run
20,000.

    oracle_test.py TOKENIZE_LINES TOKENIZER_JSON

TOKENIZE_LINES is the program built from tokenize_lines.cc, TOKENIZER_JSON the shipped model's. Small
tokenizers in the layouts of published models are trained here. Compared are the ids with and without
special tokens, the decoded text with and without them, decoding of random ids, and (inside the
program) streaming decode. Exits with 1 on any difference.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from oracle_strings import CODE, SENTENCES, strings

COUNT = 20_000 if os.environ.get("VITRINE_LONG") else 4_000
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([  # of Kimi K2's tokenization_kimi.py
    r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
ODD = r"\b\w+\b|^[\s&&[^\n]]+|[^\W\d]+$|\h{2,3}?|[[a-c]\P{L}&&\S]|(?<=\d),(?=\d)|\R|\p{^Nd}\Z|[^\p{Cn}\p{Co}]"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(add_prefix_space=False, use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def trained(pre_tokenizer, normalizer=None, specials=("<|endoftext|>",), added=(), model=None, vocab_size=1500):
    tokenizer = Tokenizer(model or models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=list(specials), show_progress=False
    )
    corpus = (SENTENCES + CODE) * 3
    corpus += [s.decode("utf-8", "replace") for s in strings(99, 2000, [])]
    tokenizer.train_from_iterator(corpus, trainer)
    if added:
        tokenizer.add_tokens(list(added))
    return tokenizer


def sentence_piece(pre_tokenizer, normalizer, decoder, num_bytes=256, fuse_unk=True, added=()):
    """Characters with byte fallback, as converted SentencePiece models; fewer bytes leave unknown ones."""
    base = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalizer is not None:
        base.normalizer = normalizer
    if pre_tokenizer is not None:
        base.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=900, limit_alphabet=90, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    base.train_from_iterator((SENTENCES[:8] + CODE) * 3, trainer)
    trained_model = json.loads(base.to_str())["model"]
    vocab = trained_model["vocab"]
    for byte in range(num_bytes):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    merges = [tuple(merge) for merge in trained_model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=True)
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(list(added))
    return tokenizer


def sentence_piece_layouts():
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    llama = sentence_piece(None, spaces, decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)]))
    llama.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    yield "llama2", llama
    # Half of the bytes: a byte's token overtakes an unknown one that waits.
    for fuse in (False, True):
        bare = normalizers.Replace(" ", "▁")
        yield f"half the bytes (fuse_unk={fuse})", sentence_piece(None, bare, decoders.Sequence(steps), 195, fuse)
    added = [AddedToken("<|user|>", normalized=False), AddedToken("qu", normalized=True)]
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            pre = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut)
            yield f"metaspace {scheme} (split={cut})", sentence_piece(
                pre, normalizers.NFC(), decoders.Metaspace(prepend_scheme=scheme), added=added
            )
    digits = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Metaspace(replacement="_", prepend_scheme="first"),
    ])  # fmt: skip
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement="_"), decoders.Fuse()])
    yield "digits, metaspace", sentence_piece(digits, None, decoder, added=added)


def layouts():
    """(name, tokenizer) in the layouts of published models, and some that try every option."""
    sequence = pre_tokenizers.Sequence
    chat = [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    yield "gpt2", trained(byte_level(use_regex=True))
    yield "gpt2-prefix", trained(byte_level(add_prefix_space=True, use_regex=True))

    qwen = trained(sequence([split(QWEN2), byte_level()]), normalizers.NFC(), added=chat)
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "qwen2/qwen3", qwen

    llama = trained(
        sequence([split(LLAMA3), byte_level()]),
        specials=("<|begin_of_text|>", "<|end_of_text|>"),
        model=models.BPE(ignore_merges=True),
    )
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[("<|begin_of_text|>", 0)]
    )
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    yield "llama3", llama

    deepseek = sequence([split(r"\p{N}{1,3}"), split(r"[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()])
    yield "deepseek", trained(deepseek, added=[AddedToken("<｜User｜>", normalized=False), AddedToken("<think>")])

    spaces = [AddedToken(" " * n, normalized=True) for n in range(2, 25)]
    olmo = trained(byte_level(use_regex=True), normalizers.NFC(), added=spaces + [AddedToken("<|pad|>", special=True)])
    olmo.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B", special_tokens=[("<|endoftext|>", 0)]
    )
    yield "olmo/gpt-neox", olmo

    granite = sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)])
    yield "granite/starcoder", trained(granite, added=[AddedToken("<fim_prefix>", special=True)])
    yield "cl100k", trained(sequence([split(CL100K, "removed", True), byte_level()]))
    yield "o200k", trained(sequence([split(O200K), byte_level()]))
    yield "kimi", trained(sequence([split(KIMI), byte_level()]))
    yield "odd-regex", trained(sequence([split(ODD), byte_level()]))

    normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s{2,}"), " "),
        normalizers.Replace(".", "。"), normalizers.Strip(left=False, right=True), normalizers.Prepend("▁"),
    ])  # fmt: skip
    added = [
        AddedToken("Straße", normalized=True, single_word=True), AddedToken("[MASK]", lstrip=True, rstrip=True, special=True),
        AddedToken("der", normalized=True, rstrip=True), AddedToken("qu", single_word=True, normalized=False),
        AddedToken("[MASK] x", lstrip=True, normalized=False), AddedToken("\u3000", lstrip=True, normalized=False),
    ]  # fmt: skip
    words = sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(), byte_level(),
    ])  # fmt: skip
    yield "words", trained(words, normalizer, added=added)
    nfkd = normalizers.Sequence([normalizers.NFKD(), normalizers.Strip(left=True, right=False)])
    yield "nfkd", trained(sequence([pre_tokenizers.WhitespaceSplit(), byte_level(True)]), nfkd, added=added[:2])

    # No ByteLevel, so that characters are unknown: fused and not, and a decoder of several steps.
    # (Where both ends of one token are stripped the reference panics, so only starts are.)
    merged = sequence([
        split(r"[aeiou]", "merged_with_previous"), split(" ", "merged_with_next"), pre_tokenizers.Punctuation("removed"),
    ])  # fmt: skip
    for fuse in (False, True):
        model = models.BPE(unk_token="<unk>", fuse_unk=fuse)
        unknown = trained(merged, normalizers.NFD(), specials=("<unk>",), model=model)
        unknown.decoder = decoders.Sequence([
            decoders.Replace(Regex("[0-9]"), "#"), decoders.Strip("e", 1, 0), decoders.Fuse(),
        ])  # fmt: skip
        yield f"unknown (fuse_unk={fuse})", unknown
    plain = trained(split(r"\d+|\s", "contiguous"), specials=("<s>", "</s>"))
    plain.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0), decoders.Replace("a", "aa")])
    yield "behind a fuse", plain
    bare = Tokenizer(models.BPE(vocab={"a": 0, "b": 3, "ab": 7, "aba": 5}, merges=[("a", "b"), ("ab", "a")]))
    yield "no decoder", bare


    yield from sentence_piece_layouts()
    yield "qwen35", trained(sequence([split(QWEN35), byte_level()]), normalizers.NFC(), added=chat)


def run(program, path, arguments, payloads):
    data = b"".join(struct.pack("<I", len(p)) + p for p in payloads)
    result = subprocess.run([program, path, *arguments], input=data, capture_output=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"FAIL: {program} {path}: {result.stderr.decode().strip()}")
    return result.stdout.decode().split("\n")[:-1]


def compare(name, program, path, tokenizer, seed):
    """Number of strings compared; exits on the first difference."""
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    texts = strings(seed, COUNT, specials)
    lines = run(program, path, [], texts)
    assert len(lines) == 4 * len(texts), (name, len(lines))
    for i, raw in enumerate(texts):
        text = raw.decode("utf-8", errors="replace")
        ids = tokenizer.encode(text).ids
        expected = [
            " ".join(map(str, ids)),
            " ".join(map(str, tokenizer.encode(text, add_special_tokens=False).ids)),
            decode(tokenizer, ids, False).encode().hex(),
            decode(tokenizer, ids, True).encode().hex(),
        ]
        for what, want, got in zip(("ids", "ids without", "text", "text without"), expected, lines[4 * i : 4 * i + 4]):
            if want != got:
                raise SystemExit(f"FAIL: {name}: string {i} {raw!r}: {what}: expected {want}, found {got}")

    rng = random.Random(seed)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    arrays = [[rng.randrange(size) for _ in range(rng.randrange(12))] for _ in range(2000)]
    lines = run(program, path, ["--ids"], [struct.pack(f"<{len(a)}i", *a) for a in arrays])
    for i, array in enumerate(arrays):
        for skip in (False, True):
            want, got = decode(tokenizer, array, skip).encode().hex(), lines[2 * i + skip]
            if want != got:
                raise SystemExit(f"FAIL: {name}: ids {array}: expected {want}, found {got}")
    return len(texts)


def decode(tokenizer, ids, skip):
    return tokenizer.decode(ids, skip_special_tokens=skip)


def main():
    program, model = sys.argv[1:3]
    total = compare("shipped model", program, model, Tokenizer.from_file(model), 1)
    count = 1
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in layouts():
            path = str(Path(folder) / "tokenizer.json")
            tokenizer.save(path)
            total += compare(name, program, path, Tokenizer.from_file(path), 1000 + count)
            count += 1
    print(f"tokenizer oracle: {total} strings equal to PyPI's tokenizers in {count} tokenizers")


if __name__ == "__main__":
    main()
