#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of GGUF files against PyPI's `tokenizers` and `sentencepiece`.

    gguf_oracle_test.py TOKENIZE_LINES

TOKENIZE_LINES is the program built from tokenize_lines.cc. Vocabularies are trained here and written
into GGUF files by PyPI's `gguf`; the pre-tokenizer that a name stands for is written out here as its
models' tokenizer.json has it. Exits with 1 on any difference, with 77 (skipped) where an oracle
package is not installed.
"""
import io
import json
import os
import random
import sys
import tempfile
from pathlib import Path

try:
    import gguf
    import numpy as np
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import oracle_test
from oracle_strings import CODE, SENTENCES, strings
from oracle_test import (DEEPSEEK, KIMI, LLAMA3, O200K, QWEN2, QWEN35, byte_level, compare, run, sentence_piece,
                         split, trained)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEKKEN = O200K.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")


def write_vocabulary(path, model, pre, tokens, types, add_more, with_tensor=True):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_feed_forward_length(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    add_more(writer)
    if with_tensor:
        writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_byte_level(path, pre, tokenizer, add_more=lambda writer: None, padding=5):
    """As published converters write a tokenizer.json: padding at the end is marked unused."""
    document = json.loads(tokenizer.to_str())
    added = {token["content"]: token for token in document["added_tokens"]}
    by_id = {id_: token for token, id_ in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens, types = [], []
    for id_ in range(max(by_id) + 1 + padding):
        token = by_id.get(id_)
        tokens.append(f"[PAD{id_}]" if token is None else token)
        kind = added.get(token)
        types.append(UNUSED if token is None else NORMAL if kind is None
                     else CONTROL if kind["special"] else USER_DEFINED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]

    def more(writer):
        writer.add_token_merges(merges)
        add_more(writer)

    write_vocabulary(path, "gpt2", pre, tokens, types, more)


def byte_level_layouts():
    """(pre, tokenizer, what the writer adds)."""
    sequence = pre_tokenizers.Sequence
    nothing = lambda writer: None
    chat = [AddedToken("<|im_start|>", special=True), AddedToken("<tool>", normalized=False)]
    digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2 = byte_level(use_regex=True)
    yield "gpt-2", trained(gpt2), nothing
    yield "qwen2", trained(sequence([split(QWEN2), byte_level()]), normalizers.NFC(), added=chat), nothing
    yield "qwen35", trained(sequence([split(QWEN35), byte_level()]), normalizers.NFC(), added=chat), nothing
    yield "kimi-k2", trained(sequence([split(KIMI), byte_level()]), added=chat), nothing
    yield "minimax-m2", trained(sequence([split(O200K), byte_level()]), added=chat), nothing
    yield "glm4", trained(sequence([split(LLAMA3), byte_level()]), added=chat, model=models.BPE(ignore_merges=True)), nothing
    yield "olmo", trained(gpt2, normalizers.NFC(), added=chat), nothing
    yield "smollm", trained(sequence([digits, gpt2]), added=chat), nothing
    yield "deepseek-v3", trained(sequence(
        [split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()])), nothing
    yield "gpt-4o", trained(sequence([split(O200K), byte_level()])), nothing
    letters = (Path(__file__).parent / "deepseek_letters.txt").read_text().strip()
    yield "deepseek-llm", trained(sequence([
        split(r"[\r\n]"), split(rf"\s?[{letters}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
        split("[一-龥ࠀ-一가-퟿]+"), split(r"\p{N}+"), byte_level()])), nothing
    yield "deepseek-coder", trained(sequence([
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), digits,
        byte_level()])), nothing
    for pre in ("default", None):
        yield pre, trained(sequence([
            split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2), split(r"\p{N}+"), split("[0-9][0-9][0-9]"),
            byte_level()])), nothing
    yield "falcon", trained(sequence([
        split(r"[\p{P}\$\+<=>\^~\|`]+"), split(GPT2), split("[0-9][0-9][0-9]"), byte_level()])), nothing
    bos = "<|begin_of_text|>"
    llama = trained(sequence([split(LLAMA3), byte_level()]), specials=(bos, "<|end_of_text|>"),
                    model=models.BPE(ignore_merges=True))
    template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A $B",
                                             special_tokens=[(bos, 0)])
    llama.post_processor = template
    yield "llama-bpe", llama, lambda writer: writer.add_bos_token_id(0)
    yield "lfm2", llama, lambda writer: writer.add_bos_token_id(0)
    tekken = trained(sequence([split(TEKKEN), byte_level()]), specials=(bos,),
                     model=models.BPE(ignore_merges=True))
    yield "tekken", tekken, lambda writer: (writer.add_bos_token_id(0), writer.add_add_bos_token(False))
    both = trained(gpt2, specials=("<s>", "</s>"))
    both.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    yield "gpt-2", both, lambda writer: (
        writer.add_bos_token_id(0), writer.add_eos_token_id(1), writer.add_add_bos_token(True),
        writer.add_add_eos_token(True))


def write_gemma4(path):
    """Gemma 4's layout: listed merges of characters, what is no token becomes bytes."""
    tokenizer = sentence_piece(
        None, normalizers.Replace(" ", "▁"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        added=[AddedToken("<|turn>", special=True), AddedToken("<|tool_call>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    document = json.loads(tokenizer.to_str())
    added = {token["content"]: token["special"] for token in document["added_tokens"]}
    by_id = {id_: token for token, id_ in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [by_id[id_] for id_ in range(len(by_id))]
    types = [(CONTROL if added[token] else USER_DEFINED) if token in added
             else BYTE if token.startswith("<0x") else NORMAL for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    write_vocabulary(path, "gemma4", None, tokens, types, lambda writer: (
        writer.add_token_merges(merges), writer.add_bos_token_id(1), writer.add_unk_token_id(0),
        writer.add_add_space_prefix(False), writer.add_add_bos_token(True)))
    return tokenizer


def train_sentence_piece(**options):
    stream = io.BytesIO()
    corpus = (SENTENCES + CODE) * 3 + [text.decode("utf-8", "replace") for text in strings(99, 2000, [])]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in corpus for line in text.split("\n") if "\0" not in line),
        model_writer=stream, model_type="bpe", vocab_size=1600, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())


def write_sentence_piece(path, processor, unused, add_more):
    count = processor.vocab_size()
    tokens = [processor.id_to_piece(id_) for id_ in range(count)]
    types = [UNKNOWN if processor.is_unknown(id_) else CONTROL if processor.is_control(id_)
             else BYTE if processor.is_byte(id_) else UNUSED if processor.is_unused(id_) or id_ in unused else NORMAL
             for id_ in range(count)]

    def more(writer):
        writer.add_token_scores([processor.get_score(id_) for id_ in range(count)])
        writer.add_bos_token_id(processor.bos_id())
        writer.add_unk_token_id(processor.unk_id())
        add_more(writer)

    write_vocabulary(path, "llama", "default", tokens, types, more)


def with_unused(processor, seed):
    """The same model with a third of its longer pieces unused, and single characters to mark unused.

    Those keep their ids in llama.cpp and in SentencePiece up to 0.2.2, as if they were normal, which
    they therefore are here; later ones of SentencePiece write them as bytes."""
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(processor.serialized_model_proto())
    chooser = random.Random(seed)
    normal = [(id_, piece) for id_, piece in enumerate(model.pieces) if piece.type == piece.NORMAL]
    longer = [piece for _, piece in normal if len(piece.piece) > 1]
    for piece in chooser.sample(longer, len(longer) // 3):
        piece.type = piece.UNUSED
    characters = [id_ for id_, piece in normal if len(piece.piece) == 1]
    return (sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()),
            set(chooser.sample(characters, len(characters) // 3)))


def compare_sentence_piece(name, program, path, processor, seed, adds_bos):
    texts = [text for text in strings(seed, 20_000, []) if b"\0" not in text and b"<" not in text]
    lines = run(program, path, [], texts)
    for i, raw in enumerate(texts):
        text = raw.decode("utf-8", errors="replace")
        ids = processor.encode(text)
        with_special = ([processor.bos_id()] if adds_bos else []) + ids
        want = [" ".join(map(str, with_special)), " ".join(map(str, ids))]
        for expected, found in zip(want, lines[4 * i: 4 * i + 2]):
            if expected != found:
                raise SystemExit(f"FAIL: {name}: string {i} {raw!r}: expected {expected}, found {found}")
        if bytes.fromhex(lines[4 * i + 3]).decode() != text.replace("▁", " "):
            raise SystemExit(f"FAIL: {name}: string {i} {raw!r}: text comes back as {lines[4 * i + 3]}")
    return len(texts)


def main():
    program = sys.argv[1]
    oracle_test.COUNT = 5000 if os.environ.get("VITRINE_LONG") else 1500
    total = count = 0
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "vocabulary.gguf")
        for pre, tokenizer, add_more in byte_level_layouts():
            write_byte_level(path, pre, tokenizer, add_more)
            total += compare(f"gpt2, {pre}", program, path, tokenizer, 2000 + count)
            count += 1
        total += compare("gemma4", program, path, write_gemma4(path), 2500)
        count += 1
        for options, add_more, adds_bos in [
            ({}, lambda writer: None, True),
            (dict(add_dummy_prefix=False), lambda writer: (
                writer.add_add_space_prefix(False), writer.add_add_bos_token(False)), False),
        ]:
            plain = train_sentence_piece(**options)
            for processor, unused in ((plain, set()), with_unused(plain, count)):
                write_sentence_piece(path, processor, unused, add_more)
                name = f"llama {options}, {len(unused)} characters unused"
                total += compare_sentence_piece(name, program, path, processor, 3000 + count, adds_bos)
                count += 1
    print(f"GGUF tokenizer oracle: {total} strings equal in {count} tokenizers")


if __name__ == "__main__":
    main()
