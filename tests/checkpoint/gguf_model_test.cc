// SPDX-License-Identifier: Apache-2.0
// GGUF files as models: metadata to config.json, tensors by their Hugging Face names, tokenizers.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "gguf_builder.h"
#include "tests/support/test_data.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

class GgufModelTest : public ::testing::Test {
 protected:
  Checkpoint open(const GgufFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  void expect_error(const GgufFile& file, std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] {
      const Checkpoint checkpoint = open(file);
      parse_model_config(checkpoint);
      checkpoint.tokenizer_json();
    });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "expected"})) << error.what();
  }
  /// The small file with one entry in place of the one with the same key, or more.
  static GgufFile with(std::string_view key, const std::string& entry) {
    GgufFile file = small_gguf();
    std::erase_if(file.entries,
                  [&](const std::string& other) { return other.starts_with(gguf_string(key)); });
    if (!entry.empty()) file.entries.push_back(entry);
    return file;
  }
  static GgufFile with_u32(std::string_view key, uint32_t value) {
    return with(key, gguf_u32(key, value));
  }
  TemporaryFolder folder_;
};

TEST_F(GgufModelTest, Config) {
  GgufFile file = with("llama.rope.freq_base", gguf_f32("llama.rope.freq_base", 500000.0F));
  file.entries.push_back(gguf_u32("tokenizer.ggml.bos_token_id", 1));
  file.entries.push_back(gguf_u32("tokenizer.ggml.eos_token_id", 2));
  file.entries.push_back(gguf_u32("tokenizer.ggml.eot_token_id", 3));
  const ModelConfig config = parse_model_config(open(file));
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.vocab_size, 4);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);  // not the float32 next to it
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{2, 3}));
}

TEST_F(GgufModelTest, MetadataThatIsMissingOrWrong) {
  expect_error(with("general.architecture", ""), {"'general.architecture' is missing"});
  expect_error(with("general.architecture", gguf_text("general.architecture", "bert")),
               {"'bert'", "llama", "qwen3moe"}, ErrorKind::kUnsupported);
  for (const char* key : {"llama.context_length", "llama.embedding_length", "llama.block_count",
                          "llama.feed_forward_length", "llama.attention.head_count",
                          "llama.attention.layer_norm_rms_epsilon"}) {
    expect_error(with(key, ""), {key, "is missing"});
    expect_error(with(key, gguf_text(key, "64")), {key, "'64'"});
  }
  expect_error(with_u32("llama.attention.head_count", 0), {"head_count' is 0"});
  expect_error(with_u32("llama.block_count", 5000), {"block_count' is 5000", "1 to 4096"});
  expect_error(with_u32("llama.attention.head_count_kv", 3), {"head_count_kv", "divisor"});
  expect_error(with_u32("llama.attention.value_length", 16), {"value_length"},
               ErrorKind::kUnsupported);
  expect_error(with_u32("llama.rope.dimension_count", 16), {"dimension_count"},
               ErrorKind::kUnsupported);
  expect_error(with_u32("llama.attention.sliding_window", 64), {"sliding_window"},
               ErrorKind::kUnsupported);
  expect_error(with("k", gguf_f32("llama.logit_scale", 2.0F)), {"logit_scale"},
               ErrorKind::kUnsupported);
  expect_error(with("k", gguf_text("llama.rope.scaling.type", "dynamic")), {"'dynamic'"},
               ErrorKind::kUnsupported);
  expect_error(with_u32("tokenizer.ggml.bos_token_id", 4), {"bos_token_id", "below"});
  GgufFile huge = with("k", gguf_entry("llama.expert_count", 10, le<uint64_t>(UINT64_MAX)));
  expect_error(huge, {"expert_count", "18446744073709551615"});
}

// What other loaders read and nothing here computes.
TEST_F(GgufModelTest, ValuesThatAskForAnotherModel) {
  const auto refused = ErrorKind::kUnsupported;
  for (const char* name :
       {"attn_logit_softcapping", "final_logit_softcapping", "attention.max_alibi_bias",
        "attention.temperature_scale", "rope.scaling.yarn_log_multiplier"}) {
    const std::string key = std::string("llama.") + name;
    expect_error(with("k", gguf_f32(key, 30.0F)), {key, "is 30", "expected 0"}, refused);
    expect_error(with("k", gguf_text(key, "30")), {key, "'30'", "a float"});
    EXPECT_EQ(parse_model_config(open(with("k", gguf_f32(key, 0.0F)))).hidden_size, 64);
  }
  expect_error(with_u32("llama.expert_group_count", 4), {"expert_group_count", "is 4"}, refused);
  expect_error(with_u32("llama.expert_group_used_count", 2), {"expert_group_used"}, refused);
  EXPECT_EQ(parse_model_config(open(with_u32("llama.expert_group_count", 1))).hidden_size, 64);
  expect_error(with("k", gguf_bool("llama.attention.causal", false)),
               {"attention.causal' is false", "expected true"}, refused);
  expect_error(with("k", gguf_bool("llama.use_parallel_residual", true)),
               {"parallel_residual' is true"}, refused);
  // This key says of a llama only how the model was made.
  EXPECT_EQ(parse_model_config(open(with("k", gguf_bool("llama.rope.scaling.finetuned", false))))
                .hidden_size,
            64);
}

TEST_F(GgufModelTest, RopeFactorsWithoutYarn) {
  const auto refused = ErrorKind::kUnsupported;
  for (const char* name : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"}) {
    const std::string key = std::string("llama.rope.scaling.") + name;
    GgufFile file = with("k", gguf_f32(key, 0.5F));
    expect_error(file, {key, "is 0.5", "no yarn"}, refused);
    file.entries.push_back(gguf_text("llama.rope.scaling.type", "linear"));
    file.entries.push_back(gguf_f32("llama.rope.scaling.factor", 4.0F));
    expect_error(file, {key, "no yarn"}, refused);
  }
  GgufFile yarn = with("k", gguf_f32("llama.rope.scaling.attn_factor", 0.5F));
  yarn.entries.push_back(gguf_text("llama.rope.scaling.type", "yarn"));
  yarn.entries.push_back(gguf_f32("llama.rope.scaling.factor", 4.0F));
  EXPECT_EQ(parse_model_config(open(yarn)).hidden_size, 64);
  yarn.entries.pop_back();
  yarn.entries.push_back(gguf_f32("llama.rope.scaling.factor", 1.0F));
  expect_error(yarn, {"attn_factor"}, refused);
}

/// The small file as one of another architecture.
GgufFile small_file_of(const std::string& name) {
  GgufFile file = small_gguf();
  constexpr std::string_view kPrefix = "llama.";
  for (std::string& entry : file.entries) {
    if (entry.find(kPrefix) != sizeof(uint64_t)) continue;
    entry.replace(sizeof(uint64_t), kPrefix.size(), name + ".");
    entry[0] = static_cast<char>(entry[0] + static_cast<int>(name.size() + 1 - kPrefix.size()));
  }
  file.entries[0] = gguf_text("general.architecture", name);
  return file;
}

TEST_F(GgufModelTest, GraniteWithoutRopeOrWithOtherWeights) {
  GgufFile granite = small_file_of("granitemoe");
  expect_error(granite, {"'granitemoe.expert_count' is missing", "number of experts"},
               ErrorKind::kUnsupported);
  granite.entries.push_back(gguf_u32("granitemoe.expert_count", 2));
  granite.entries.push_back(gguf_bool("granitemoe.rope.scaling.finetuned", false));
  expect_error(granite, {"finetuned' is false", "expected true"}, ErrorKind::kUnsupported);
  granite.entries.back() = gguf_bool("granitemoe.expert_weights_norm", false);
  expect_error(granite, {"expert_weights_norm' is false"}, ErrorKind::kUnsupported);
  GgufFile dense = small_file_of("qwen2");
  dense.entries.push_back(gguf_u32("qwen2.expert_count", 2));
  expect_error(dense, {"'qwen2.expert_count' is 2", "expected 0"}, ErrorKind::kUnsupported);
}

TEST_F(GgufModelTest, TensorsAreNamedAsTheFileDoes) {
  const Checkpoint checkpoint = open(small_gguf());
  for (const auto& [name, in_file] :
       {std::pair{"model.layers.0.mlp.up_proj.weight", "'blk.0.ffn_up.weight' is missing"},
        {"model.layers.12.self_attn.q_norm.weight", "'blk.12.attn_q_norm.weight' is missing"},
        {"model.norm.weight", "'output_norm.weight' is missing"},
        {"model.layers.0.odd.weight", "'model.layers.0.odd.weight' is missing"}}) {
    const Error error = error_of([&] { checkpoint.require(name); });
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", in_file})) << error.what();
  }
  const Error error = error_of([&] {
    checkpoint.require("model.embed_tokens.weight", std::vector<int64_t>{4, 65});
  });
  EXPECT_TRUE(is_one_line_with(error, {"'token_embd.weight' has shape [4, 64]"})) << error.what();
}

TEST_F(GgufModelTest, Tensors) {
  const auto add = [](const std::string& name, const std::vector<uint64_t>& extents) {
    GgufFile file = small_gguf();
    file.tensors.push_back(gguf_tensor(name, extents, 0, 1024));
    file.data_bytes = 64 * 1024;
    return file;
  };
  EXPECT_NE(
      open(add("blk.0.attn_q.weight", {64, 64})).find("model.layers.0.self_attn.q_proj.weight"),
      nullptr);
  for (const char* name :
       {"blk.0.attn_sinks.weight", "blk.x.attn_q.weight", "blk.0", "blk.", "blk.0.attn_q",
        "blk.-1.attn_q.weight", "blk.0.ffn_up.bias", "blk.0.ffn_up_exps.weight",
        "v.blk.0.attn_q.weight", "output.bias", "blk.99999999999999999999.attn_q.weight"}) {
    expect_error(add(name, {64, 64}), {name, "is not one"}, ErrorKind::kUnsupported);
  }
  expect_error(add("blk.0.attn_q_norm.weight", {32}), {"attn_q_norm"}, ErrorKind::kUnsupported);
  expect_error(add("blk.1.attn_q.bias", {64}), {"blk.1.attn_q.bias", "layer 1", "block_count"});
  expect_error(add("blk.0.attn_q.bias", {64}), {"attn_output.bias"}, ErrorKind::kUnsupported);
  expect_error(add("blk.0.attn_q.weight", {64, 65}), {"attn_q", "65 rows"});
  expect_error(add("blk.0.attn_q.weight", {64, 2}), {"attn_q", "2 rows"});
  expect_error(add("rope_freqs.weight", {15}), {"rope_freqs", "15 values", "16"});
  expect_error(add("rope_freqs.weight", {4, 4}), {"rope_freqs", "[4, 4]"});
  GgufFile none = small_gguf();
  none.tensors.clear();
  expect_error(none, {"token_embd.weight", "missing"});
}

// A stack of more experts than there are would be run without the others, one of fewer is no file
// with a tensor missing, and one of many tiny ones fills the memory with their names.
TEST_F(GgufModelTest, StacksOfOtherExperts) {
  const auto stacked = [](const std::string& name, const std::vector<uint64_t>& extents) {
    GgufFile file = with_u32("llama.expert_count", 4);
    file.entries.push_back(gguf_u32("llama.expert_used_count", 2));
    file.entries.push_back(gguf_u32("llama.expert_feed_forward_length", 96));
    file.tensors.push_back(gguf_tensor(name, extents, 0, 1024));
    file.data_bytes = size_t{1} << 20;
    return file;
  };
  const std::string name = "blk.0.ffn_up_exps.weight";
  EXPECT_NE(
      open(stacked(name, {64, 96, 4})).find("model.layers.0.block_sparse_moe.experts.3.w3.weight"),
      nullptr);
  for (const uint64_t count : {1, 3, 5, 8, 60000}) {
    expect_error(stacked(name, {1, 1, count}),
                 {name, "[" + std::to_string(count) + ", 1, 1]", "[4, rows", "expert_count"});
  }
  expect_error(stacked(name, {64, 96}), {name, "[96, 64]", "[4, rows"});
  EXPECT_NE(open(stacked("blk.0.ffn_up.3.weight", {64, 96}))
                .find("model.layers.0.block_sparse_moe.experts.3.w3.weight"),
            nullptr);
  expect_error(stacked("blk.0.ffn_up.4.weight", {64, 96}), {"expert 4", "below the 4"});
}

TEST_F(GgufModelTest, RowsOfQueryAndKeyComeBackInOrder) {
  GgufFile file = small_gguf();
  file.tensors = {gguf_tensor("token_embd.weight", {64, 4}, 0, 0),
                  gguf_tensor("blk.0.attn_q.weight", {64, 64}, 0, 1024),
                  gguf_tensor("blk.0.attn_q.bias", {64}, 0, 1024 + 16384),
                  gguf_tensor("blk.0.attn_output.bias", {64}, 0, 1024 + 16384 + 256)};
  file.data_bytes = 0;
  std::string bytes = file.bytes();
  const size_t data_begin = bytes.size();
  bytes.resize(data_begin + 1024 + 16384 + 512);
  for (int row = 0; row < 64; ++row) {
    for (int col = 0; col < 64; ++col) {
      const auto value = static_cast<float>(row * 64 + col);
      std::memcpy(bytes.data() + data_begin + 1024 + 4 * (row * 64 + col), &value, 4);
    }
    const auto bias = static_cast<float>(row);
    std::memcpy(bytes.data() + data_begin + 1024 + 16384 + 4 * row, &bias, 4);
  }
  write_bytes(folder_ / "model.gguf", bytes);
  const Checkpoint checkpoint = Checkpoint::open(folder_ / "model.gguf");
  const TensorInfo& info = checkpoint.require("model.layers.0.self_attn.q_proj.weight");
  const std::vector<float> values = checkpoint.read_f32(info);
  const std::vector<float> bias = checkpoint.read_f32("model.layers.0.self_attn.q_proj.bias");
  for (int row = 0; row < 64; ++row) {
    const int head = row / 32, within = row % 32;
    const int stored = head * 32 + 2 * (within % 16) + within / 16;
    EXPECT_EQ(values[static_cast<size_t>(row) * 64 + 5], static_cast<float>(stored * 64 + 5));
    EXPECT_EQ(bias[static_cast<size_t>(row)], static_cast<float>(stored));
  }
  // Parts of it, from the middle of a value to the middle of another.
  std::vector<std::byte> whole(info.num_bytes);
  checkpoint.read(info, whole);
  for (const auto& [begin, size] :
       {std::pair{0, 1}, {3, 7}, {255, 514}, {5000, 9000}, {16383, 1}}) {
    std::vector<std::byte> part(static_cast<size_t>(size));
    checkpoint.read(info, static_cast<uint64_t>(begin), part);
    EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin, part.size()), 0) << begin;
  }
  EXPECT_EQ(error_of([&] { checkpoint.read(info, 1, whole); }).kind(), ErrorKind::kInvalidArgument);
}

TEST_F(GgufModelTest, BlocksReadAsFloatsInAnyParts) {
  const Checkpoint checkpoint = Checkpoint::open(testing_support::test_data("gguf/experts.gguf"));
  const TensorInfo& info = checkpoint.require("model.layers.0.mlp.experts.1.down_proj.weight");
  ASSERT_EQ(info.storage_name(), "Q5_1");
  EXPECT_EQ(info.shape, (std::vector<int64_t>{32, 32}));
  EXPECT_EQ(info.num_bytes, 4096U);
  EXPECT_EQ(info.stored_bytes, 768U);
  const std::vector<float> values = checkpoint.read_f32(info);
  std::vector<std::byte> part(1001);
  checkpoint.read(info, 1234, part);
  EXPECT_EQ(std::memcmp(part.data(), reinterpret_cast<const char*>(values.data()) + 1234, 1001), 0);
  // As stored: rows 5 to 8.
  std::vector<std::byte> blocks(static_cast<size_t>(4 * info.block_format->block_bytes));
  checkpoint.read_blocks(info, 5, blocks);
  std::vector<float> rows(4 * 32);
  info.block_format->dequantize(blocks.data(), 4, rows.data());
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), values.begin() + 5 * 32));
  blocks.pop_back();
  EXPECT_EQ(error_of([&] { checkpoint.read_blocks(info, 5, blocks); }).kind(),
            ErrorKind::kInvalidArgument);
  blocks.resize(info.stored_bytes);
  for (const int64_t row : {int64_t{-1}, int64_t{1}, INT64_MAX}) {
    EXPECT_EQ(error_of([&] { checkpoint.read_blocks(info, row, blocks); }).kind(),
              ErrorKind::kInvalidArgument);
  }
  const TensorInfo& plain = checkpoint.require("model.layers.0.input_layernorm.weight");
  EXPECT_EQ(error_of([&] { checkpoint.read_blocks(plain, 0, blocks); }).kind(),
            ErrorKind::kInvalidArgument);
}

TEST_F(GgufModelTest, Splits) {
  const std::string first = testing_support::test_data("gguf/split-00001-of-00002.gguf");
  const std::string second = testing_support::test_data("gguf/split-00002-of-00002.gguf");
  const Checkpoint checkpoint = Checkpoint::open(first);
  EXPECT_EQ(checkpoint.weight_files(), (std::vector<std::string>{first, second}));
  EXPECT_NE(checkpoint.find("model.layers.0.mlp.down_proj.weight"), nullptr);
  const Error not_first = error_of([&] { Checkpoint::open(second); });
  EXPECT_TRUE(is_one_line_with(not_first, {"file 2 of 2", "split-00001-of-00002"}))
      << not_first.what();

  const auto copy = [&](const std::string& from, const std::string& to) {
    write_bytes(folder_ / to, read_bytes(from));
  };
  copy(first, "a-00001-of-00002.gguf");
  const Error missing = error_of([&] { Checkpoint::open(folder_ / "a-00001-of-00002.gguf"); });
  EXPECT_TRUE(is_one_line_with(missing, {"a-00002-of-00002.gguf", "is not there"}))
      << missing.what();
  copy(first, "a-00002-of-00002.gguf");
  const Error twice = error_of([&] { Checkpoint::open(folder_ / "a-00001-of-00002.gguf"); });
  EXPECT_TRUE(is_one_line_with(twice, {"split.no", "expected 1"})) << twice.what();
  copy(first, "renamed.gguf");
  const Error renamed = error_of([&] { Checkpoint::open(folder_ / "renamed.gguf"); });
  EXPECT_TRUE(is_one_line_with(renamed, {"-00001-of-00002.gguf"})) << renamed.what();
}

TEST_F(GgufModelTest, UnusedPieces) {
  GgufFile file = small_gguf();
  file.entries.push_back(
      gguf_strings("tokenizer.ggml.tokens", {"a", "b", "ab", "abb", "[PAD4]", "b"}));
  file.entries.push_back(gguf_text("tokenizer.ggml.model", "llama"));
  file.entries.push_back(gguf_array<float>("tokenizer.ggml.scores", 6, {0, 0, 2, 1, 0, 0}));
  file.entries.push_back(gguf_array<int32_t>("tokenizer.ggml.token_type", 5, {5, 1, 5, 1, 5, 5}));
  const auto model = nlohmann::json::parse(open(file).tokenizer_json())["model"];
  // Characters and what is joined stay; padding and a text that another token has do not.
  EXPECT_EQ(model["vocab"], (nlohmann::json{{"a", 0}, {"b", 1}, {"ab", 2}, {"abb", 3}}));
  EXPECT_EQ(model["unused_ids"], nlohmann::json::array({2}));
  EXPECT_EQ(model["merges"], nlohmann::json::parse(R"([["a","b"],["ab","b"]])"));
}

// Every cut of a piece is tried, and each that two pieces make is written: the square of its
// length.
TEST_F(GgufModelTest, ManyLongPieces) {
  std::vector<std::string> pieces;
  for (int length = 1; length <= 1024; ++length) pieces.emplace_back(length, 'k');
  const auto file_of = [&](const std::vector<std::string>& texts) {
    GgufFile file = small_gguf();
    file.entries.push_back(gguf_strings("tokenizer.ggml.tokens", texts));
    file.entries.push_back(gguf_text("tokenizer.ggml.model", "llama"));
    file.entries.push_back(
        gguf_array<float>("tokenizer.ggml.scores", 6, std::vector<float>(texts.size(), 0.0F)));
    return file;
  };
  expect_error(file_of(pieces), {"tokenizer.ggml.tokens", "268435456"});
  pieces.resize(300);
  EXPECT_FALSE(open(file_of(pieces)).tokenizer_json().empty());
}

// As in llama.cpp: by the text, whatever the token's type.
TEST_F(GgufModelTest, TokensThatEndATurn) {
  const auto file_of = [](const std::vector<std::string>& tokens,
                          const std::vector<int32_t>& types) {
    GgufFile file = small_gguf();
    file.entries.push_back(gguf_strings("tokenizer.ggml.tokens", tokens));
    file.entries.push_back(gguf_text("tokenizer.ggml.model", "gpt2"));
    file.entries.push_back(gguf_text("tokenizer.ggml.pre", "qwen2"));
    file.entries.push_back(gguf_strings("tokenizer.ggml.merges", {}));
    if (!types.empty()) {
      file.entries.push_back(gguf_array<int32_t>("tokenizer.ggml.token_type", 5, types));
    }
    return file;
  };
  const auto ends = [&](const std::vector<std::string>& tokens, const std::vector<int32_t>& types) {
    return parse_model_config(open(file_of(tokens, types))).eos_token_ids;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ends({"[EOT]", "a", "<end_of_utterance>", "_<EOT>"}, {3, 1, 3, 3}), (Ids{0, 2, 3}));
  EXPECT_EQ(ends({"a", "<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "b"}, {1, 1, 4, 1}),
            (Ids{1, 2}));
  EXPECT_EQ(ends({"<|end|>", "<|return|>", "b", "c"}, {3, 3, 1, 1}), (Ids{0, 1}));
  EXPECT_EQ(ends({"<|end|>", "<|return|>", "<|call|>", "c"}, {3, 3, 3, 1}), (Ids{1, 2}));
  EXPECT_EQ(ends({"</s>", "a", "b", "c"}, {}), Ids{0});
  const auto added = [&](const std::vector<int32_t>& types) {
    const Checkpoint checkpoint = open(file_of({"a", "<|im_end|>", "<s>", "b"}, types));
    return nlohmann::json::parse(checkpoint.tokenizer_json())["added_tokens"];
  };
  for (const int32_t type : {1, 3, 4}) {
    const nlohmann::json tokens = added({1, type, 1, 1});
    ASSERT_EQ(tokens.size(), 1U) << type;
    EXPECT_EQ(tokens[0]["content"], "<|im_end|>");
    EXPECT_EQ(tokens[0]["special"], true) << "spelled, no answer would end";
  }
  EXPECT_EQ(added({}).size(), 1U);
}

TEST_F(GgufModelTest, Tokenizers) {
  const auto tokens = gguf_strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<s>"});
  const auto model = [](std::string_view name) { return gguf_text("tokenizer.ggml.model", name); };
  const auto file_with = [&](std::initializer_list<std::string> entries) {
    GgufFile file = small_gguf();
    file.entries.push_back(tokens);
    for (const std::string& entry : entries) file.entries.push_back(entry);
    return file;
  };
  const auto merges = gguf_strings("tokenizer.ggml.merges", {"a b"});
  const auto json = nlohmann::json::parse(
      open(file_with({model("gpt2"), merges, gguf_text("tokenizer.ggml.pre", "llama-bpe"),
                      gguf_array<int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 3}),
                      gguf_u32("tokenizer.ggml.bos_token_id", 3)}))
          .tokenizer_json());
  EXPECT_EQ(json["model"]["vocab"]["ab"], 2);
  EXPECT_EQ(json["model"]["ignore_merges"], true);
  EXPECT_EQ(json["added_tokens"][0]["content"], "<s>");
  EXPECT_EQ(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  const auto none = nlohmann::json::parse(
      open(file_with({model("gpt2"), merges, gguf_u32("tokenizer.ggml.bos_token_id", 0xffffffff)}))
          .tokenizer_json());
  EXPECT_EQ(none["post_processor"], nullptr) << "all bits set: there is none";
  const auto zeros = gguf_array<float>("tokenizer.ggml.scores", 6, {0, 0, 0, 0});
  const Checkpoint pieces =
      open(file_with({model("llama"), zeros, gguf_u32("tokenizer.ggml.bos_token_id", 0xffffffff),
                      gguf_u32("tokenizer.ggml.unknown_token_id", 0xffffffff)}));
  EXPECT_EQ(nlohmann::json::parse(pieces.tokenizer_json())["model"]["unk_token"], "a");
  const Checkpoint characters =
      open(file_with({model("gemma4"), merges, gguf_u32("tokenizer.ggml.unknown_token_id", 3),
                      gguf_u32("tokenizer.ggml.bos_token_id", 3)}));
  const auto gemma = nlohmann::json::parse(characters.tokenizer_json());
  EXPECT_EQ(gemma["model"]["byte_fallback"], true);
  EXPECT_EQ(gemma["model"]["merges"][0], "a b");
  EXPECT_EQ(gemma["pre_tokenizer"], nullptr);
  EXPECT_EQ(gemma["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  expect_error(file_with({model("gpt2"), merges, gguf_u32("tokenizer.ggml.eot_token_id", 9)}),
               {"eot_token_id' is 9", "below the vocabulary's 4"});

  expect_error(file_with({}), {"tokenizer.ggml.model", "is missing"});
  expect_error(file_with({model("t5")}), {"'t5'", "'gemma4'"}, ErrorKind::kUnsupported);
  for (const char* name : {"gpt2", "gemma4"}) {
    expect_error(file_with({model(name)}), {"tokenizer.ggml.merges", "is missing"});
  }
  expect_error(file_with({model("gpt2"), merges, gguf_text("tokenizer.ggml.pre", "new")}),
               {"'new'", "qwen2"}, ErrorKind::kUnsupported);
  expect_error(file_with({model("llama")}), {"tokenizer.ggml.scores", "is missing"});
  expect_error(
      file_with({model("llama"), gguf_array<float>("tokenizer.ggml.scores", 6, {0, 0, 0})}),
      {"tokenizer.ggml.scores", "array of 3", "4 values"});
  const auto nan = gguf_array<float>("tokenizer.ggml.scores", 6, {0, 0, __builtin_nanf(""), 0});
  expect_error(file_with({model("llama"), nan}), {"token 2", "not finite"});
  expect_error(
      file_with({model("gpt2"), merges, gguf_array<int32_t>("tokenizer.ggml.token_type", 5, {1})}),
      {"token_type", "4 values"});
  for (const int32_t type : {-1, 0, 7}) {
    const auto types = gguf_array<int32_t>("tokenizer.ggml.token_type", 5, {1, type, 1, 3});
    for (const char* name : {"gpt2", "llama"}) {
      expect_error(file_with({model(name), merges, zeros, types}),
                   {"tokenizer.ggml.token_type", "token 1 has the type " + std::to_string(type),
                    "expected 1 (normal)", "6 (byte)"});
    }
  }
  expect_error(file_with({model("gpt2"), merges, gguf_bool("tokenizer.ggml.add_eos_token", true)}),
               {"eos_token_id", "is missing"});
  GgufFile bad_text = small_gguf();
  bad_text.entries.push_back(gguf_strings("tokenizer.ggml.tokens", {"a", "\xff"}));
  bad_text.entries.push_back(model("gpt2"));
  bad_text.entries.push_back(merges);
  expect_error(bad_text, {"token 1", "UTF-8"});
  GgufFile repeated = small_gguf();
  repeated.entries.push_back(gguf_strings("tokenizer.ggml.tokens", {"a", "b", "a"}));
  repeated.entries.push_back(model("gpt2"));
  repeated.entries.push_back(merges);
  expect_error(repeated, {"token 2 is 'a'", "token 0"});
}

}  // namespace
}  // namespace vitrine
