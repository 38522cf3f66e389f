# SPDX-License-Identifier: Apache-2.0
"""Random models of odd shapes, written as transformers writes checkpoints."""

import json
import pathlib

import torch
import transformers

SMALL = dict(num_hidden_layers=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
             pad_token_id=None, initializer_range=0.1)

# Shapes that are multiples of nothing; `dtype`, `shards` and `fused` say how the files are written.
MODELS = {
    "qwen3_moe_odd": dict(
        config="Qwen3MoeConfig", vocab_size=251, hidden_size=72, num_attention_heads=6,
        num_key_value_heads=2, head_dim=20, intermediate_size=100, moe_intermediate_size=36,
        num_experts=5, num_experts_per_tok=3, norm_topk_prob=True),
    "qwen3_moe_tied_dense_layer": dict(
        config="Qwen3MoeConfig", dtype=torch.float16, vocab_size=1000, hidden_size=96,
        num_attention_heads=5, num_key_value_heads=1, head_dim=48, intermediate_size=72,
        moe_intermediate_size=100, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False,
        num_hidden_layers=3, mlp_only_layers=[1], tie_word_embeddings=True, attention_bias=True),
    "qwen3_moe_fused_experts": dict(
        config="Qwen3MoeConfig", dtype=torch.float32, fused=True, vocab_size=300, hidden_size=64,
        num_attention_heads=4, num_key_value_heads=4, head_dim=80, moe_intermediate_size=72,
        num_experts=7, num_experts_per_tok=7, norm_topk_prob=True, rope_theta=1e6),
    "qwen2_dense": dict(
        config="Qwen2Config", vocab_size=250, hidden_size=72, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=100),
    "qwen2_moe_sharded": dict(
        config="Qwen2MoeConfig", shards="100KB", vocab_size=251, hidden_size=60,
        num_attention_heads=3, num_key_value_heads=3, intermediate_size=100,
        moe_intermediate_size=28, shared_expert_intermediate_size=44, num_experts=9,
        num_experts_per_tok=4, norm_topk_prob=True),
    "qwen2_moe_without_bias": dict(
        config="Qwen2MoeConfig", dtype=torch.float32, fused=True, vocab_size=1000, hidden_size=80,
        num_attention_heads=4, num_key_value_heads=1, intermediate_size=72,
        moe_intermediate_size=100, shared_expert_intermediate_size=36, num_experts=4,
        num_experts_per_tok=1, norm_topk_prob=False, qkv_bias=False, num_hidden_layers=3,
        mlp_only_layers=[0]),
    "mixtral_wide_heads": dict(
        config="MixtralConfig", vocab_size=251, hidden_size=80, num_attention_heads=4,
        num_key_value_heads=1, head_dim=80, intermediate_size=72, num_local_experts=3,
        num_experts_per_tok=2, sliding_window=None),
    "mixtral_one_expert_f32_sharded": dict(
        config="MixtralConfig", dtype=torch.float32, shards="200KB", vocab_size=300,
        hidden_size=100, num_attention_heads=5, num_key_value_heads=5, intermediate_size=100,
        num_local_experts=4, num_experts_per_tok=1, sliding_window=None, rms_norm_eps=1e-3),
    "olmoe_clipped": dict(
        config="OlmoeConfig", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, intermediate_size=36, num_experts=5, num_experts_per_tok=3,
        norm_topk_prob=True, clip_qkv=0.4),
    "olmoe_f16_fused": dict(
        config="OlmoeConfig", dtype=torch.float16, fused=True, vocab_size=1000, hidden_size=72,
        num_attention_heads=6, num_key_value_heads=6, intermediate_size=100, num_experts=3,
        num_experts_per_tok=2, norm_topk_prob=False, attention_bias=True),
    "granitemoe_tied": dict(
        config="GraniteMoeConfig", vocab_size=1000, hidden_size=72, num_attention_heads=6,
        num_key_value_heads=3, intermediate_size=44, num_local_experts=5, num_experts_per_tok=3,
        embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.7,
        logits_scaling=2.5, tie_word_embeddings=True),
    "granitemoe_biased_f32": dict(
        config="GraniteMoeConfig", dtype=torch.float32, vocab_size=251, hidden_size=100,
        num_attention_heads=5, num_key_value_heads=1, intermediate_size=100, num_local_experts=6,
        num_experts_per_tok=1, attention_bias=True),
    "granitemoe_defaults": dict(
        config="GraniteMoeConfig", drop=["embedding_multiplier", "attention_multiplier",
                                         "residual_multiplier", "logits_scaling"],
        vocab_size=251, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=36, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_wide_heads": dict(
        config="Qwen3Config", dtype=torch.float16, vocab_size=251, hidden_size=72,
        num_attention_heads=3, num_key_value_heads=1, head_dim=80, intermediate_size=100,
        attention_bias=True),
    "llama_small_heads_sharded": dict(
        config="LlamaConfig", dtype=torch.float32, shards="100KB", vocab_size=1000, hidden_size=72,
        num_attention_heads=9, num_key_value_heads=3, intermediate_size=100, attention_bias=True,
        rope_theta=500000.0),
    "gpt_oss_odd": dict(
        config="GptOssConfig", vocab_size=251, hidden_size=72, num_attention_heads=6,
        num_key_value_heads=2, head_dim=20, intermediate_size=36, num_local_experts=5,
        num_experts_per_tok=3, num_hidden_layers=3, sliding_window=9, swiglu_limit=0.8,
        swiglu_alpha=1.3, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attention_bias=True),
    "gpt_oss_yarn_f32": dict(
        config="GptOssConfig", dtype=torch.float32, vocab_size=300, hidden_size=64,
        num_attention_heads=8, num_key_value_heads=1, head_dim=32, intermediate_size=44,
        num_local_experts=4, num_experts_per_tok=4, num_hidden_layers=2, sliding_window=1,
        attention_bias=True,
        rope={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0,
              "beta_slow": 1.0, "original_max_position_embeddings": 32, "truncate": False}),
    "mixtral_window": dict(
        config="MixtralConfig", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, head_dim=20, intermediate_size=44, num_local_experts=3,
        num_experts_per_tok=2, sliding_window=11),
    "qwen3_window": dict(
        config="Qwen3Config", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, head_dim=20, intermediate_size=44, use_sliding_window=True,
        sliding_window=7, max_window_layers=1),
    "dots1_odd": dict(
        config="Dots1Config", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, head_dim=20, intermediate_size=44, moe_intermediate_size=28,
        n_routed_experts=9, num_experts_per_tok=2, n_shared_experts=1, n_group=3, topk_group=2,
        first_k_dense_replace=1, routed_scaling_factor=1.7, norm_topk_prob=True,
        num_hidden_layers=3, sliding_window=5, max_window_layers=2, attention_bias=True),
    "glm4_moe_odd": dict(
        config="Glm4MoeConfig", dtype=torch.float32, vocab_size=300, hidden_size=72,
        num_attention_heads=6, num_key_value_heads=3, head_dim=24, intermediate_size=44,
        moe_intermediate_size=36, n_routed_experts=5, num_experts_per_tok=3, n_shared_experts=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=0.8,
        norm_topk_prob=False, use_qk_norm=True, num_hidden_layers=3, attention_bias=False,
        rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "deepseek_v2_without_query_latent": dict(
        config="DeepseekV2Config", dtype=torch.float16, vocab_size=251, hidden_size=60,
        num_attention_heads=3, num_key_value_heads=3, intermediate_size=44,
        moe_intermediate_size=28, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=1,
        n_group=3, topk_group=2, topk_method="greedy", first_k_dense_replace=1,
        num_hidden_layers=3, q_lora_rank=None, kv_lora_rank=28, qk_nope_head_dim=20,
        qk_rope_head_dim=6, v_head_dim=36, rms_norm_eps=1e-2),
    "deepseek_v2_groups": dict(
        config="DeepseekV2Config", dtype=torch.float32, vocab_size=251, hidden_size=72,
        num_attention_heads=6, num_key_value_heads=6, intermediate_size=44,
        moe_intermediate_size=36, n_routed_experts=9, num_experts_per_tok=2, n_shared_experts=2,
        n_group=3, topk_group=1, topk_method="group_limited_greedy", first_k_dense_replace=0,
        q_lora_rank=20, kv_lora_rank=44, qk_nope_head_dim=12, qk_rope_head_dim=10, v_head_dim=12,
        routed_scaling_factor=1.7),
    "deepseek_v3_biased_halves": dict(
        config="DeepseekV3Config", vocab_size=251, hidden_size=60, num_attention_heads=5,
        num_key_value_heads=5, intermediate_size=44, moe_intermediate_size=28, n_routed_experts=8,
        num_experts_per_tok=2, n_shared_experts=1, n_group=4, topk_group=2,
        first_k_dense_replace=1, num_hidden_layers=3, q_lora_rank=36, kv_lora_rank=17,
        qk_nope_head_dim=9, qk_rope_head_dim=14, v_head_dim=21, rope_interleave=False,
        attention_bias=True, rms_norm_eps=1e-2,
        rope={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 0.8,
              "mscale_all_dim": 1.2, "beta_fast": 32.0, "beta_slow": 1.0,
              "original_max_position_embeddings": 16}),
    "deepseek_v3_many_heads": dict(
        config="DeepseekV3Config", dtype=torch.float32, fused=True, vocab_size=300, hidden_size=76,
        num_attention_heads=19, num_key_value_heads=19, intermediate_size=44,
        moe_intermediate_size=36, n_routed_experts=5, num_experts_per_tok=3, n_shared_experts=1,
        n_group=1, topk_group=1, first_k_dense_replace=1, num_hidden_layers=2, q_lora_rank=None,
        kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
        norm_topk_prob=False),
    "glm4_moe_lite_odd": dict(
        config="Glm4MoeLiteConfig", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=3, intermediate_size=44, moe_intermediate_size=28, n_routed_experts=7,
        num_experts_per_tok=3, n_shared_experts=1, n_group=1, topk_group=1, num_hidden_layers=3,
        q_lora_rank=40, kv_lora_rank=24, qk_nope_head_dim=30, qk_rope_head_dim=12, v_head_dim=16,
        rms_norm_eps=1e-2),
    "gemma4_experts": dict(
        config="Gemma4TextConfig", vocab_size=251, hidden_size=60, num_attention_heads=6,
        num_key_value_heads=3, head_dim=20, global_head_dim=36, num_global_key_value_heads=2,
        attention_k_eq_v=True, intermediate_size=44, enable_moe_block=True, num_experts=7,
        top_k_experts=3, moe_intermediate_size=28, hidden_size_per_layer_input=0,
        sliding_window=9, num_hidden_layers=3, final_logit_softcapping=4.0, rms_norm_eps=1e-2,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        tie_word_embeddings=True, rope=None),
    "gemma4_dense_wide_heads": dict(
        config="Gemma4TextConfig", dtype=torch.float32, vocab_size=300, hidden_size=72,
        num_attention_heads=2, num_key_value_heads=1, head_dim=256, global_head_dim=512,
        intermediate_size=100, hidden_size_per_layer_input=0, sliding_window=16, attention_bias=True,
        num_hidden_layers=2, final_logit_softcapping=None, tie_word_embeddings=True, rope=None),
    "gemma4_layer_inputs": dict(
        config="Gemma4TextConfig", dtype=torch.float32, vocab_size=250, hidden_size=60,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, global_head_dim=40,
        intermediate_size=44, hidden_size_per_layer_input=12, vocab_size_per_layer_input=260,
        num_kv_shared_layers=4, use_double_wide_mlp=True, sliding_window=11, num_hidden_layers=7,
        layer_types=["sliding_attention", "sliding_attention", "full_attention",
                     "sliding_attention", "full_attention", "sliding_attention",
                     "full_attention"],
        final_logit_softcapping=8.0, tie_word_embeddings=True, rope=None),
    "qwen3_5_dense": dict(
        config="Qwen3_5TextConfig", vocab_size=251, hidden_size=60, num_attention_heads=6,
        num_key_value_heads=2, head_dim=20, intermediate_size=44, num_hidden_layers=5,
        layer_types=["linear_attention", "linear_attention", "full_attention",
                     "linear_attention", "full_attention"],
        linear_num_key_heads=3, linear_num_value_heads=6, linear_key_head_dim=12,
        linear_value_head_dim=20, linear_conv_kernel_dim=3,
        rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "qwen3_5_dense_tied": dict(
        config="Qwen3_5TextConfig", dtype=torch.float32, vocab_size=300, hidden_size=72,
        num_attention_heads=2, num_key_value_heads=1, head_dim=40, intermediate_size=100,
        num_hidden_layers=4, tie_word_embeddings=True, linear_num_key_heads=4,
        linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=8,
        linear_conv_kernel_dim=2,
        rope={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}),
    "qwen3_next_odd": dict(
        config="Qwen3NextConfig", dtype=torch.float16, vocab_size=251, hidden_size=60,
        num_attention_heads=3, num_key_value_heads=1, head_dim=24, intermediate_size=44,
        moe_intermediate_size=28, shared_expert_intermediate_size=36, num_experts=7,
        num_experts_per_tok=2, norm_topk_prob=True, num_hidden_layers=4, mlp_only_layers=[2],
        linear_num_key_heads=1, linear_num_value_heads=5, linear_key_head_dim=20,
        linear_value_head_dim=12, linear_conv_kernel_dim=4, rms_norm_eps=1e-3,
        rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
    "flex_olmo_odd": dict(
        config="FlexOlmoConfig", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, intermediate_size=36, num_experts=5, num_experts_per_tok=2,
        norm_topk_prob=True, num_hidden_layers=3, rms_norm_eps=1e-2),
    "flex_olmo_biased_f32": dict(
        config="FlexOlmoConfig", dtype=torch.float32, fused=True, vocab_size=300, hidden_size=72,
        num_attention_heads=6, num_key_value_heads=6, intermediate_size=44, num_experts=4,
        num_experts_per_tok=4, attention_bias=True, tie_word_embeddings=True),
    "lfm2_moe_odd": dict(
        config="Lfm2MoeConfig", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, intermediate_size=44, moe_intermediate_size=28, num_experts=5,
        num_experts_per_tok=2, num_dense_layers=2, num_hidden_layers=5, norm_eps=1e-2,
        layer_types=["conv", "full_attention", "conv", "conv", "full_attention"],
        conv_L_cache=3, routed_scaling_factor=0.7, norm_topk_prob=False),
    "lfm2_moe_wide_f32": dict(
        config="Lfm2MoeConfig", dtype=torch.float32, fused=True, vocab_size=300, hidden_size=180,
        num_attention_heads=6, num_key_value_heads=3, intermediate_size=100,
        moe_intermediate_size=36, num_experts=4, num_experts_per_tok=3, num_dense_layers=0,
        num_hidden_layers=3, layer_types=["full_attention", "conv", "conv"], conv_L_cache=2,
        conv_bias=True, use_expert_bias=False, tie_word_embeddings=True),
    "minimax_m2_odd": dict(
        config="MiniMaxM2Config", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, head_dim=20, intermediate_size=44, num_local_experts=5,
        num_experts_per_tok=2, rotary_dim=10,
        rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "ernie4_5_moe_odd": dict(
        config="Ernie4_5_MoeConfig", vocab_size=251, hidden_size=72, num_attention_heads=6,
        num_key_value_heads=2, head_dim=12, intermediate_size=44, moe_intermediate_size=28,
        moe_num_experts=5, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1,
        moe_layer_end_index=2, moe_layer_interval=1, num_hidden_layers=4),
    "smollm3_odd": dict(
        config="SmolLM3Config", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, intermediate_size=44, num_hidden_layers=3,
        no_rope_layer_interval=2, attention_bias=True),
    "mistral_window": dict(
        config="MistralConfig", vocab_size=251, hidden_size=60, num_attention_heads=3,
        num_key_value_heads=1, head_dim=24, intermediate_size=44, sliding_window=6),
    "llama_tied": dict(
        config="LlamaConfig", vocab_size=251, hidden_size=72, num_attention_heads=3,
        num_key_value_heads=1, head_dim=48, intermediate_size=72, tie_word_embeddings=True),
}


def write_model(folder, seed, config, dtype=torch.bfloat16, shards="5GB", fused=False, drop=(),
                **options):
    """Writes a random model; norms and biases are random too, so that each of them counts. `drop`:
    fields that the written config leaves to their defaults."""
    rope_theta = options.pop("rope_theta", 10000.0)
    settings = {**SMALL, "tie_word_embeddings": False, **options}
    settings["rope_parameters"] = settings.pop(
        "rope", {"rope_type": "default", "rope_theta": rope_theta})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**settings), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
            elif config == "GptOssConfig" and ".experts." in name:
                parameter.normal_(0.0, 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0.0, 0.1)
            elif name.endswith("layer_scalar"):
                buffer.normal_(0.8, 0.2)
    model.to(dtype).save_pretrained(folder, max_shard_size=shards,
                                    **({"save_original_format": False} if fused else {}))
    check_layout(folder, shards, fused)
    path = pathlib.Path(folder, "config.json")
    written = json.loads(path.read_text())
    path.write_text(json.dumps({key: written[key] for key in written if key not in drop}))
    assert set(drop) <= set(written), drop


def check_layout(folder, shards, fused):
    """The files are what the entry in MODELS says: otherwise the test would test something else."""
    files = list(pathlib.Path(folder).glob("*.safetensors"))
    assert (len(files) > 1) == (shards != "5GB"), files
    assert (pathlib.Path(folder) / "model.safetensors.index.json").exists() == (len(files) > 1)
    if not fused:
        return
    data = files[0].read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    assert any(len(entry.get("shape", [])) == 3 for entry in header.values()), "no fused tensor"
