// SPDX-License-Identifier: Apache-2.0
// NVFP4 in GGUF files: the scales of whole matrices, which stand in tensors of their own.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "folders.h"
#include "gguf_builder.h"
#include "vitrine/checkpoint.h"
#include "vitrine/quant.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

constexpr uint32_t kF32Type = 0, kF16Type = 1, kQ8Type = 8, kNvfp4Type = 40;
constexpr uint64_t kExperts = 3;

/// A mixture of experts of one layer, 64 wide, whose tensors are added one by one.
class ScaledFile {
 public:
  ScaledFile() {
    const auto key = [](const char* name) { return std::string("qwen3moe.") + name; };
    file_.entries = {gguf_text("general.architecture", "qwen3moe"),
                     gguf_u32(key("context_length"), 128),
                     gguf_u32(key("embedding_length"), 64),
                     gguf_u32(key("block_count"), 1),
                     gguf_u32(key("feed_forward_length"), 64),
                     gguf_u32(key("expert_feed_forward_length"), 64),
                     gguf_u32(key("expert_count"), kExperts),
                     gguf_u32(key("expert_used_count"), 2),
                     gguf_u32(key("attention.head_count"), 1),
                     gguf_u32(key("attention.head_count_kv"), 1),
                     gguf_u32(key("attention.key_length"), 64),
                     gguf_u32(key("attention.value_length"), 64),
                     gguf_f32(key("attention.layer_norm_rms_epsilon"), 1e-6F)};
    add("token_embd.weight", {64, 4}, kF32Type, std::string(1024, '\0'));
    add("blk.0.attn_q.weight", {64, 64}, kNvfp4Type, blocks(64, 1));
    add("blk.0.ffn_up_exps.weight", {64, 2, kExperts}, kNvfp4Type, blocks(2 * kExperts, 2));
  }
  void add(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type,
           const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    file_.tensors.push_back(gguf_tensor(name, extents, type, data_.size()));
    data_ += data;
  }
  void add_floats(const std::string& name, const std::vector<float>& values) {
    std::string data;
    for (const float value : values) data += le(value);
    add(name, {values.size()}, kF32Type, data);
  }
  std::string bytes() const { return file_.bytes() + data_; }

  static std::string blocks(uint64_t count, uint32_t seed) {
    std::string bytes(36 * count, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>((i * 37 + seed * 101) % (i % 36 < 4 ? 120 : 251));
    }
    return bytes;
  }

 private:
  GgufFile file_;
  std::string data_;
};

class GgufMultipliersTest : public ::testing::Test {
 protected:
  Checkpoint open(const ScaledFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  void expect_error(const ScaledFile& file, std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { open(file); });
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_EQ(error.kind(), kind);
  }
  TemporaryFolder folder_;
};

/// What blocks mean, times a scale.
std::vector<float> scaled(const std::string& blocks, float scale) {
  std::vector<float> values(blocks.size() / 36 * 64);
  find_block_format(kNvfp4Type)
      ->dequantize(reinterpret_cast<const std::byte*>(blocks.data()),
                   static_cast<int64_t>(blocks.size() / 36), values.data());
  for (float& value : values) value *= scale;
  return values;
}

TEST_F(GgufMultipliersTest, ValuesAreMultiplied) {
  ScaledFile file;
  file.add_floats("blk.0.attn_q.scale", {0.3F});
  file.add_floats("blk.0.attn_q.input_scale", {7.0F});
  file.add_floats("blk.0.ffn_up_exps.scale", {0.7F, 1.0F, -1e-3F});
  file.add_floats("blk.0.ffn_up_exps.input_scale", {1.0F, 2.0F, 3.0F});
  const Checkpoint checkpoint = open(file);
  const std::string queries = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(checkpoint.require(queries).multiplier, 0.3F);
  EXPECT_EQ(checkpoint.read_f32(queries), scaled(ScaledFile::blocks(64, 1), 0.3F));
  const std::string experts = ScaledFile::blocks(2 * kExperts, 2);
  const float scales[kExperts] = {0.7F, 1.0F, -1e-3F};
  for (size_t expert = 0; expert < kExperts; ++expert) {
    const std::string name =
        "model.layers.0.mlp.experts." + std::to_string(expert) + ".up_proj.weight";
    EXPECT_EQ(checkpoint.require(name).multiplier, scales[expert]);
    EXPECT_EQ(checkpoint.read_f32(name), scaled(experts.substr(72 * expert, 72), scales[expert]));
  }
  for (const TensorInfo& info : checkpoint.tensors()) {
    EXPECT_FALSE(info.name.ends_with("scale")) << info.name;
  }
}

TEST_F(GgufMultipliersTest, WithoutScalesNothingIs) {
  const Checkpoint checkpoint = open(ScaledFile());
  EXPECT_EQ(checkpoint.read_f32("model.layers.0.self_attn.q_proj.weight"),
            scaled(ScaledFile::blocks(64, 1), 1.0F));
}

TEST_F(GgufMultipliersTest, ScalesThatLie) {
  ScaledFile file;
  file.add_floats("blk.0.attn_q.scale", {1.0F, 2.0F});
  expect_error(file, {"model.gguf", "'blk.0.attn_q.scale' is F32 [2]", "expected F32 [1]"});
  file = {};
  file.add("blk.0.attn_q.scale", {1}, kF16Type, "\x01\x02");
  expect_error(file, {"'blk.0.attn_q.scale' is F16 [1]", "expected F32 [1]"});
  file = {};
  file.add_floats("blk.0.ffn_up_exps.scale", {1.0F});
  expect_error(file, {"'blk.0.ffn_up_exps.scale' is F32 [1]", "expected F32 [3]"});
  file = {};
  file.add_floats("blk.0.ffn_up_exps.scale", {1.0F, std::numeric_limits<float>::quiet_NaN(), 2.0F});
  expect_error(file, {"'blk.0.ffn_up_exps.scale' has the value nan at 1", "finite"});
  file = {};
  file.add_floats("blk.0.ffn_up_exps.input_scale",
                  {1.0F, 2.0F, std::numeric_limits<float>::infinity()});
  expect_error(file, {"'blk.0.ffn_up_exps.input_scale' has the value inf at 2"});
  file = {};
  file.add_floats("blk.0.attn_q.scale", {1.0F});
  file.add_floats("blk.0.attn_q.scale", {1.0F});
  expect_error(file, {"'blk.0.attn_q.scale'", "twice"});
  file = {};  // of a matrix of another type
  file.add("blk.0.attn_k.weight", {64, 64}, kQ8Type, std::string(size_t{2} * 34 * 64, '\0'));
  file.add_floats("blk.0.attn_k.scale", {1.0F});
  expect_error(file, {"'blk.0.attn_k.scale'", "not one that the architecture"},
               ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace vitrine
