// SPDX-License-Identifier: Apache-2.0
// A small MoE model as a GGUF file whose matrices are random blocks of one type.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/checkpoint/gguf_builder.h"
#include "vitrine/quant.h"

namespace vitrine::testing {

class BlockModel {
 public:
  /// `name` as ggml has it: "Q4_K".
  explicit BlockModel(const std::string& name, uint32_t num_experts = 3)
      : format_(format_of(name)), num_experts_(num_experts) {}

  std::string bytes() {
    const std::string key = "qwen3moe.";
    file_.entries = {gguf_text("general.architecture", "qwen3moe"),
                     gguf_u32(key + "context_length", 512),
                     gguf_u32(key + "embedding_length", kWidth),
                     gguf_u32(key + "block_count", 1),
                     gguf_u32(key + "feed_forward_length", kWidth),
                     gguf_u32(key + "expert_feed_forward_length", kWidth),
                     gguf_u32(key + "expert_count", num_experts_),
                     gguf_u32(key + "expert_used_count", 2),
                     gguf_u32(key + "attention.head_count", 4),
                     gguf_u32(key + "attention.head_count_kv", 2),
                     gguf_u32(key + "attention.key_length", 64),
                     gguf_u32(key + "attention.value_length", 64),
                     gguf_f32(key + "attention.layer_norm_rms_epsilon", 1e-6F),
                     gguf_f32(key + "rope.freq_base", 10000.0F)};
    add_blocks("token_embd.weight", {kWidth, 200});
    add_floats("output_norm.weight", {kWidth}, 1.0F, 0.1F);
    add_floats("blk.0.attn_norm.weight", {kWidth}, 1.0F, 0.1F);
    add_floats("blk.0.ffn_norm.weight", {kWidth}, 1.0F, 0.1F);
    add_floats("blk.0.attn_q_norm.weight", {64}, 1.0F, 0.1F);
    add_floats("blk.0.attn_k_norm.weight", {64}, 1.0F, 0.1F);
    add_blocks("blk.0.attn_q.weight", {kWidth, 256});
    add_blocks("blk.0.attn_k.weight", {kWidth, 128});
    add_blocks("blk.0.attn_v.weight", {kWidth, 128});
    add_blocks("blk.0.attn_output.weight", {256, kWidth});
    add_floats("blk.0.ffn_gate_inp.weight", {kWidth, num_experts_}, 0.0F, 0.05F);
    for (const char* role : {"gate", "up", "down"}) {
      add_blocks("blk.0.ffn_" + std::string(role) + "_exps.weight", {kWidth, kWidth, num_experts_});
    }
    return file_.bytes() + data_;
  }

 protected:
  static constexpr uint64_t kWidth = 256;

  /// Where the float16 fields of a block lie, and how large its values are as multiples of them.
  struct Halves {
    std::vector<size_t> offsets;
    float size;
  };

  static const BlockFormat& format_of(const std::string& name) {
    for (const BlockFormat& format : all_formats()) {
      if (format.name == name) return format;
    }
    std::abort();
  }
  static const std::vector<BlockFormat>& all_formats() {
    static const std::vector<BlockFormat> formats = block_formats();
    return formats;
  }
  Halves halves() const {
    static const std::map<std::string_view, Halves> all = {
        {"Q4_0", {{0}, 8}},      {"Q4_1", {{0, 2}, 16}},  {"Q5_0", {{0}, 16}},
        {"Q5_1", {{0, 2}, 32}},  {"Q8_0", {{0}, 128}},    {"Q2_K", {{80, 82}, 40}},
        {"Q3_K", {{108}, 100}},  {"Q4_K", {{0, 2}, 600}}, {"Q5_K", {{0, 2}, 1200}},
        {"Q6_K", {{208}, 2500}}, {"IQ4_NL", {{0}, 80}},   {"IQ4_XS", {{0}, 1500}},
        {"IQ2_XXS", {{0}, 167}}, {"IQ2_XS", {{0}, 167}},  {"IQ2_S", {{0}, 167}},
        {"IQ3_XXS", {{0}, 480}}, {"IQ3_S", {{0}, 465}},   {"IQ1_S", {{0}, 17}},
        {"IQ1_M", {{}, 17}},     {"TQ1_0", {{52}, 1}},    {"TQ2_0", {{64}, 2}},
        {"Q1_0", {{0}, 1}},      {"Q2_0", {{0}, 2}},      {"MXFP4", {{}, 0}},
        {"NVFP4", {{}, 0}}};
    return all.at(format_.name);
  }

  void add_entry(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type) {
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    file_.tensors.push_back(gguf_tensor(name, extents, type, data_.size()));
  }
  void add_floats(const std::string& name, const std::vector<uint64_t>& extents, float mean,
                  float deviation) {
    add_entry(name, extents, 0);
    uint64_t count = 1;
    for (const uint64_t extent : extents) count *= extent;
    std::normal_distribution<float> normal(mean, deviation);
    for (uint64_t i = 0; i < count; ++i) data_ += le(normal(random_));
  }
  /// `as_floats`: the float32 numbers that the blocks mean, in their place.
  void add_blocks(const std::string& name, const std::vector<uint64_t>& extents,
                  bool as_floats = false) {
    add_entry(name, extents, as_floats ? 0 : format_.ggml_type);
    uint64_t count = 1;
    for (const uint64_t extent : extents) count *= extent;
    const auto size = static_cast<size_t>(format_.block_bytes);
    const Halves fields = halves();
    std::normal_distribution<float> normal(0.1F, 0.02F);
    for (uint64_t i = 0; i < count; i += static_cast<uint64_t>(format_.block_size)) {
      std::string block(size, '\0');
      for (char& byte : block) byte = static_cast<char>(random_() & 255);
      for (const size_t offset : fields.offsets) {
        const uint16_t half = float_to_f16(normal(random_) / fields.size);
        std::memcpy(&block[offset], &half, sizeof(half));
      }
      if (format_.name == "MXFP4") block[0] = static_cast<char>(122 + random_() % 3);
      if (format_.name == "NVFP4") {
        for (size_t i = 0; i < 4; ++i) block[i] = static_cast<char>(random_() % 24);
      }
      if (format_.name == "IQ1_M") {  // its float16 lies in the high nibbles of its scales
        const uint16_t half = float_to_f16(normal(random_) / fields.size);
        for (size_t i = 0; i < 4; ++i) {
          block[49 + 2 * i] =
              static_cast<char>((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
        }
      }
      if (as_floats) {
        std::vector<float> values(static_cast<size_t>(format_.block_size));
        format_.dequantize(reinterpret_cast<const std::byte*>(block.data()), 1, values.data());
        for (const float value : values) data_ += le(value);
      } else {
        data_ += block;
      }
    }
  }

  const BlockFormat& format_;
  uint32_t num_experts_;
  std::mt19937 random_{20240607};
  GgufFile file_;
  std::string data_;
};

/// One with latent attention, a dense layer and one of experts. Its matrix kv_b stands as halves.
class LatentBlockModel : public BlockModel {
 public:
  LatentBlockModel(const std::string& name, uint32_t heads) : BlockModel(name), heads_(heads) {}

  /// `halves_as_floats`: those of kv_b hold the same numbers as float32.
  /// `has_swapped_halves`: the tensors have the extents of the other's rows.
  std::string bytes(bool halves_as_floats = false, bool has_swapped_halves = false) {
    const uint64_t key_rows = has_swapped_halves ? kValue : kPlain;
    const uint64_t value_rows = has_swapped_halves ? kPlain : kValue;
    const std::string key = "deepseek2.";
    file_.entries = {gguf_text("general.architecture", "deepseek2"),
                     gguf_u32(key + "context_length", 512),
                     gguf_u32(key + "embedding_length", kWidth),
                     gguf_u32(key + "block_count", 2),
                     gguf_u32(key + "feed_forward_length", kWidth),
                     gguf_u32(key + "expert_feed_forward_length", kWidth),
                     gguf_u32(key + "expert_count", num_experts_),
                     gguf_u32(key + "expert_used_count", 2),
                     gguf_u32(key + "expert_shared_count", 1),
                     gguf_u32(key + "expert_gating_func", 1),
                     gguf_u32(key + "attention.head_count", heads_),
                     gguf_u32(key + "attention.head_count_kv", 1),
                     gguf_u32(key + "attention.kv_lora_rank", kLatent),
                     gguf_u32(key + "attention.key_length", kLatent + kTurned),
                     gguf_u32(key + "attention.value_length", kLatent),
                     gguf_u32(key + "attention.key_length_mla", kPlain + kTurned),
                     gguf_u32(key + "attention.value_length_mla", kValue),
                     gguf_u32(key + "rope.dimension_count", kTurned),
                     gguf_f32(key + "attention.layer_norm_rms_epsilon", 1e-6F),
                     gguf_f32(key + "rope.freq_base", 10000.0F)};
    add_blocks("token_embd.weight", {kWidth, 200});
    add_floats("output_norm.weight", {kWidth}, 1.0F, 0.1F);
    for (const std::string block : {"blk.0.", "blk.1."}) {
      add_floats(block + "attn_norm.weight", {kWidth}, 1.0F, 0.1F);
      add_floats(block + "ffn_norm.weight", {kWidth}, 1.0F, 0.1F);
      add_floats(block + "attn_kv_a_norm.weight", {kLatent}, 1.0F, 0.1F);
      add_blocks(block + "attn_q.weight", {kWidth, heads_ * (kPlain + kTurned)});
      add_blocks(block + "attn_kv_a_mqa.weight", {kWidth, kLatent + kTurned});
      add_blocks(block + "attn_k_b.weight", {key_rows, kLatent, heads_}, halves_as_floats);
      add_blocks(block + "attn_v_b.weight", {kLatent, value_rows, heads_}, halves_as_floats);
      add_blocks(block + "attn_output.weight", {heads_ * kValue, kWidth});
      const bool is_dense = block == "blk.0.";
      for (const std::string role : {"ffn_gate", "ffn_up", "ffn_down"}) {
        add_blocks(block + role + (is_dense ? ".weight" : "_shexp.weight"), {kWidth, kWidth});
        if (is_dense) continue;
        add_blocks(block + role + "_exps.weight", {kWidth, kWidth, num_experts_});
      }
    }
    add_floats("blk.1.ffn_gate_inp.weight", {kWidth, num_experts_}, 0.0F, 0.05F);
    return file_.bytes() + data_;
  }

 private:
  static constexpr uint32_t kLatent = 96, kPlain = 64, kTurned = 16, kValue = 32;

  uint32_t heads_;
};

}  // namespace vitrine::testing
