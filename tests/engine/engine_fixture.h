// SPDX-License-Identifier: Apache-2.0
// What the tests of the engine share: models, prompts, feeding sequences, a sink that keeps
// records.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/checkpoint/folders.h"
#include "tests/engine/block_model.h"
#include "tests/support/test_data.h"
#include "vitrine/compress.h"
#include "vitrine/engine.h"

namespace vitrine::testing {

inline const std::vector<std::string>& oracle_names() {
  static const std::vector<std::string> names = {"deepseek_v2",
                                                 "deepseek_v3",
                                                 "dots1",
                                                 "ernie4_5_moe",
                                                 "flex_olmo",
                                                 "gemma4_text",
                                                 "gemma4_text_e",
                                                 "glm4_moe",
                                                 "glm4_moe_lite",
                                                 "gpt_oss",
                                                 "granitemoe",
                                                 "lfm2_moe",
                                                 "llama",
                                                 "minimax_m2",
                                                 "mixtral",
                                                 "olmoe",
                                                 "qwen2_moe",
                                                 "qwen3",
                                                 "qwen3_5_moe_text",
                                                 "qwen3_moe",
                                                 "qwen3_moe_sparse2",
                                                 "qwen3_next",
                                                 "smollm3"};
  return names;
}

inline std::string oracle_folder(const std::string& name) {
  return testing_support::test_data("oracles/" + name);
}

using testing_support::shipped_model;

/// A model under test: an oracle as it is (scheme empty), quantized, or the shipped one.
struct ModelVariant {
  std::string name;    // of an oracle; "shipped"; "blocks"
  std::string scheme;  // "" or a name of the quant room's registry; of "blocks" ggml's type
  int group_size = 32;

  std::string label() const {
    if (scheme.empty()) return name;
    if (name == "blocks") return name + "_" + scheme;
    std::string label = name + "_" + scheme + "g" + std::to_string(group_size);
    std::ranges::replace(label, '-', '_');
    return label;
  }
};

/// Each type of block that GGUF files have.
inline std::vector<ModelVariant> block_variants() {
  std::vector<ModelVariant> all;
  for (const BlockFormat& format : block_formats()) {
    all.push_back({"blocks", std::string(format.name), 32});
  }
  return all;
}

inline void PrintTo(const ModelVariant& variant, std::ostream* out) { *out << variant.label(); }

inline std::string variant_name(const ::testing::TestParamInfo<ModelVariant>& info) {
  return info.param.label();
}

/// The folder of a variant; quantizes into a temporary one where it must.
class VariantFolder {
 public:
  explicit VariantFolder(const ModelVariant& variant) {
    if (variant.name == "blocks") {
      path_ = folder_ / "model.gguf";
      write_bytes(path_, BlockModel(variant.scheme).bytes());
      return;
    }
    path_ = variant.name == "shipped" ? shipped_model() : oracle_folder(variant.name);
    if (variant.scheme.empty()) return;
    QuantizeOptions options;
    options.scheme = variant.scheme;
    options.group_size = variant.group_size;
    options.tool_version = options.instruction_set = "test";
    const std::string result = folder_ / "model";
    if (quantize_checkpoint(path_, result, options).quantized.empty()) std::abort();
    path_ = result;
  }
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

/// Writes `bytes` over the tensor's, from `offset` on.
inline void overwrite(const std::string& folder, const TensorInfo& info, uint64_t offset,
                      std::string_view bytes) {
  std::fstream file(folder + "/model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(info.file_offset + offset));
  file << bytes;
  ASSERT_TRUE(file.flush());
}

/// Options with room for several sequences and logits of every token.
inline EngineOptions test_options(int threads = 1, int kv_block_size = 64) {
  EngineOptions options;
  options.threads = threads;
  options.kv_block_size = kv_block_size;
  options.max_context = 160;
  options.max_sequences = 8;
  options.max_step_tokens = 320;
  options.max_logit_rows = 320;
  options.keep_logits = true;
  options.audit_mode = AuditMode::kNone;
  return options;
}

/// Ids that repeat nothing obvious; another `seed`, another text.
inline std::vector<int32_t> prompt_ids(int count, int vocab_size, uint32_t seed = 1) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761u + 12345u;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab_size)));
  }
  return ids;
}

/// Rows of logits by the position of their token.
using Rows = std::map<int64_t, std::vector<float>>;

inline void keep_rows(std::span<const StepOutput> outputs, SequenceId sequence, Rows& rows) {
  for (const StepOutput& output : outputs) {
    if (output.sequence != sequence) continue;
    rows[output.position].assign(output.scores.begin(), output.scores.end());
  }
}

/// Feeds `ids` from position `begin` on, `chunk` tokens a step (0: all in one).
inline void feed(Engine& engine, SequenceId sequence, std::span<const int32_t> ids, size_t begin,
                 size_t end, size_t chunk, Rows& rows,
                 StepInput::Rows wanted = StepInput::Rows::kAll) {
  if (chunk == 0) chunk = end - begin;
  for (size_t first = begin; first < end; first += chunk) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = ids.subspan(first, std::min(chunk, end - first));
    input.rows = wanted;
    keep_rows(engine.step({&input, 1}), sequence, rows);
  }
}

/// A whole prompt in a sequence of its own.
inline Rows score(Engine& engine, std::span<const int32_t> ids, size_t chunk = 0) {
  Rows rows;
  const SequenceId sequence = engine.create_sequence();
  feed(engine, sequence, ids, 0, ids.size(), chunk, rows);
  engine.release(sequence);
  return rows;
}

/// Every row of `found` has the bits of the same position's row in `expected`.
inline ::testing::AssertionResult same_bits(const Rows& expected, const Rows& found, size_t count) {
  if (found.size() != count) {
    return ::testing::AssertionFailure() << found.size() << " rows, expected " << count;
  }
  for (const auto& [position, row] : found) {
    const auto other = expected.find(position);
    if (other == expected.end() || other->second.size() != row.size() || row.empty()) {
      return ::testing::AssertionFailure() << "position " << position << ": rows of other sizes";
    }
    if (std::memcmp(row.data(), other->second.data(), row.size() * sizeof(float)) == 0) continue;
    size_t id = 0;
    while (std::memcmp(&row[id], &other->second[id], sizeof(float)) == 0) ++id;
    return ::testing::AssertionFailure()
           << "position " << position << ", token " << id << ": " << row[id] << " and "
           << other->second[id] << " differ in bits";
  }
  return ::testing::AssertionSuccess();
}

/// Keeps a copy of each record, without its step's time, which is another each time.
class VectorSink : public AuditSink {
 public:
  void open(const AuditLayout& layout, size_t max_record_bytes) override {
    layout_ = layout;
    max_record_bytes_ = max_record_bytes;
  }
  std::byte* reserve(size_t num_bytes) override {
    EXPECT_LE(num_bytes, max_record_bytes_);
    EXPECT_EQ(num_bytes % 8, 0u);
    slab_.assign((num_bytes + 7) / 8, 0xa5a5a5a5a5a5a5a5u);
    size_ = num_bytes;
    return reinterpret_cast<std::byte*>(slab_.data());
  }
  void commit() override {
    uint64_t& step_ns = slab_[offsetof(AuditPassHeader, step_ns) / sizeof(uint64_t)];
    EXPECT_GT(step_ns, 0u);
    EXPECT_LT(step_ns, uint64_t{600'000'000'000});
    step_ns = 0;
    const auto* begin = reinterpret_cast<const std::byte*>(slab_.data());
    records_.emplace_back(begin, begin + size_);
  }

  const AuditLayout& layout() const { return layout_; }
  const std::vector<std::vector<std::byte>>& records() const { return records_; }
  /// All records so far as structs, in order; then forgets them.
  std::vector<TokenRecord> take() {
    std::vector<TokenRecord> tokens;
    for (const auto& record : records_) {
      for (TokenRecord& token : decode_pass(layout_, record)) tokens.push_back(std::move(token));
    }
    records_.clear();
    return tokens;
  }

 private:
  AuditLayout layout_;
  size_t max_record_bytes_ = 0, size_ = 0;
  std::vector<uint64_t> slab_;
  std::vector<std::vector<std::byte>> records_;
};

/// Sets an environment variable for a scope.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old, had_ = true;
    setenv(name, value, 1);
  }
  ~ScopedEnvironment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

}  // namespace vitrine::testing
