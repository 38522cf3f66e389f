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


def config(writer, head_dim=16, layers=1):
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
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


def delta(path):
    """A layer with a state (Gated DeltaNet) before one with keys and values."""
    writer = gguf.GGUFWriter(path, "qwen35")
    config(writer, layers=2)
    writer.add_rope_dimension_count(4)
    for name, value in (("conv_kernel", 3), ("state_size", 4), ("group_count", 2), ("time_step_rank", 4),
                        ("inner_size", 32)):
        writer.add_uint32(f"qwen35.ssm.{name}", value)
    writer.add_array("qwen35.attention.recurrent_layers", [True, False])
    byte_level(writer)
    add(writer, "token_embd.weight", tensor(VOCABULARY, HIDDEN), Type.Q8_0)
    add(writer, "output_norm.weight", tensor(HIDDEN), Type.F32)
    for layer, rows in ((0, {"attn_qkv": 48, "attn_gate": 32, "ssm_alpha": 4, "ssm_beta": 4, "ssm_out": 32}),
                        (1, {"attn_q": 64, "attn_k": 16, "attn_v": 16, "attn_output": 32})):
        for name in ("attn_norm", "post_attention_norm"):
            add(writer, f"blk.{layer}.{name}.weight", tensor(HIDDEN), Type.F32)
        for name in (*rows, "ffn_gate", "ffn_up", "ffn_down"):
            add(writer, f"blk.{layer}.{name}.weight", tensor(rows.get(name, ROWS), HIDDEN), Type.Q8_0)
    for name, shape in (("ssm_a", [4]), ("ssm_dt.bias", [4]), ("ssm_norm.weight", [8]), ("ssm_conv1d.weight", [48, 3])):
        add(writer, f"blk.0.{name}", tensor(*shape), Type.F32)
    for name in ("attn_q_norm", "attn_k_norm"):
        add(writer, f"blk.1.{name}.weight", tensor(16), Type.F32)
    finish(writer)


def characters(writer):
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "a", "b", "ab", "▁a", *(f"<0x{byte:02X}>" for byte in (10, 65))]
    tokens += [f"z{i}" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 4 + [1] * 5 + [6] * 2 + [1] * (VOCABULARY - 11))
    writer.add_token_merges(["a b", "▁ a"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)


def gemma(path):
    """Three layers, the last of which reads the keys of the one before it; experts, and layers' own inputs."""
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(3)
    writer.add_head_count(2)
    writer.add_head_count_kv([2, 1, 1])
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_key_length_swa(8)
    writer.add_value_length_swa(8)
    writer.add_rope_dimension_count(16)
    writer.add_rope_dimension_count_swa(8)
    writer.add_feed_forward_length([ROWS, ROWS, 2 * ROWS])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_sliding_window(8)
    writer.add_sliding_window_pattern([True, False, False])
    writer.add_shared_kv_layers(1)
    writer.add_embedding_length_per_layer_input(4)
    writer.add_final_logit_softcapping(30.0)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(ROWS)
    characters(writer)
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30], np.float32))
    attention(writer, Type.BF16)
    add(writer, "per_layer_token_embd.weight", tensor(VOCABULARY, 12), Type.F32)
    for name, shape, kind in (("ffn_gate_up_exps.weight", (2, 2 * ROWS, HIDDEN), Type.Q8_0),
                              ("ffn_down_exps.weight", (2, HIDDEN, ROWS), Type.Q4_0),
                              ("ffn_down_exps.scale", (2,), Type.F32), ("ffn_gate_inp.weight", (2, HIDDEN), Type.F32),
                              ("ffn_gate_inp.scale", (HIDDEN,), Type.F32), ("post_ffw_norm_1.weight", (HIDDEN,), Type.F32),
                              ("layer_output_scale.weight", (1,), Type.F32), ("inp_gate.weight", (4, HIDDEN), Type.F16)):
        add(writer, f"blk.0.{name}", tensor(*shape), kind)
    finish(writer)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    dense(folder / "dense.gguf", Type.F16)
    dense(folder / "split.gguf", Type.F32, split_max_tensors=7)
    experts(folder / "experts.gguf")
    delta(folder / "delta.gguf")
    gemma(folder / "gemma.gguf")


if __name__ == "__main__":
    main()
