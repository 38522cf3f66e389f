"""Writes the GGUF files of this folder with PyPI's `gguf`: small, whole, of every kind that the reader
knows. They are the seeds of tests/checkpoint/fuzz_gguf.cc.

    make_seeds.py [FOLDER]
"""

import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

RANDOM = np.random.default_rng(1)
HIDDEN, ROWS, VOCABULARY = 32, 32, 40


def tensor(*shape):
    return RANDOM.normal(0, 0.2, shape).astype(np.float32)


def config(writer, head_dim=16):
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_feed_forward_length(ROWS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)


def sentence_piece(writer):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in (10, 65)), "▁", "a", "b", "▁a", "ab"]
    tokens += [f"x{i}" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(VOCABULARY)])
    writer.add_token_types([2, 3, 3, 6, 6] + [1] * (VOCABULARY - 5))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def byte_level(writer):
    tokens = ["a", "b", "Ġ", "ab", "Ġa", "<|end|>"] + [f"y{i}" for i in range(VOCABULARY - 6)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 5 + [3] + [4] * 3 + [5] * (VOCABULARY - 9))
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_eos_token_id(5)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer, name, array, kind):
    writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def attention(writer, kind):
    add(writer, "token_embd.weight", tensor(VOCABULARY, HIDDEN), kind)
    add(writer, "output_norm.weight", tensor(HIDDEN), Type.F32)
    for name in ("attn_norm", "ffn_norm"):
        add(writer, f"blk.0.{name}.weight", tensor(HIDDEN), Type.F32)
    for name, rows in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16), ("attn_output", 32)):
        add(writer, f"blk.0.{name}.weight", tensor(rows, HIDDEN), kind)


def dense(path, kind, **options):
    writer = gguf.GGUFWriter(path, "llama", **options)
    config(writer)
    sentence_piece(writer)
    attention(writer, kind)
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        add(writer, f"blk.0.{name}.weight", tensor(ROWS, HIDDEN), kind)
    finish(writer)


def experts(path):
    writer = gguf.GGUFWriter(path, "qwen3moe")
    config(writer)
    writer.add_custom_alignment(64)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(ROWS)
    byte_level(writer)
    # Every type of value, though nobody reads them.
    for number, value in enumerate([("uint8", 1), ("int8", -1), ("uint16", 2), ("int16", -2), ("uint32", 3),
                                    ("int32", -3), ("uint64", 4), ("int64", -4), ("float32", 0.5),
                                    ("float64", 0.25), ("bool", True), ("string", "text"),
                                    ("array", [1, 2, 3]), ("array", ["a", ""]), ("array", [0.5])]):
        getattr(writer, f"add_{value[0]}")(f"test.{number}", value[1])
    attention(writer, Type.Q8_0)
    for name in ("attn_q_norm", "attn_k_norm"):
        add(writer, f"blk.0.{name}.weight", tensor(16), Type.F32)
    add(writer, "blk.0.ffn_gate_inp.weight", tensor(2, HIDDEN), Type.F32)
    for name, kind in (("ffn_gate_exps", Type.Q4_0), ("ffn_up_exps", Type.Q4_0), ("ffn_down_exps", Type.Q5_1)):
        add(writer, f"blk.0.{name}.weight", tensor(2, ROWS, HIDDEN), kind)
    finish(writer)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    dense(folder / "dense.gguf", Type.F16)
    dense(folder / "split.gguf", Type.F32, split_max_tensors=7)
    experts(folder / "experts.gguf")


if __name__ == "__main__":
    main()
