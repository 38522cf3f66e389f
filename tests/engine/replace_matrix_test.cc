// SPDX-License-Identifier: Apache-2.0
// Matrices of a loaded engine that become others between steps: the bits of an engine that was
// loaded with them.
#include <gtest/gtest.h>

#include "core/half_float.h"
#include "tests/engine/edited_model.h"

namespace vitrine::testing {
namespace {

const char* const kChanged[] = {"model.layers.1.self_attn.q_proj",
                                "model.layers.0.mlp.experts.2.down_proj", "lm_head"};

/// The oracle with other numbers in those matrices.
EditedModel changed_model() {
  return EditedModel("qwen3_moe", {}, [](EditedModel::Tensors& tensors) {
    for (const std::string module : kChanged) {
      EditedModel::Tensor& tensor = tensors.at(module + ".weight");
      // Neighbours change places: as large numbers as before.
      const size_t size = dtype_size(tensor.dtype);
      for (size_t i = 0; i + 2 * size <= tensor.bytes.size(); i += 2 * size) {
        std::swap_ranges(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(i),
                         tensor.bytes.begin() + static_cast<std::ptrdiff_t>(i + size),
                         tensor.bytes.begin() + static_cast<std::ptrdiff_t>(i + size));
      }
    }
  });
}

std::string quantized(const std::string& source, const std::string& scheme,
                      const TemporaryFolder& folder, const std::string& name) {
  if (scheme.empty()) return source;
  QuantizeOptions options;
  options.scheme = scheme;
  options.group_size = 32;
  options.tool_version = options.instruction_set = "test";
  quantize_checkpoint(source, folder / name, options);
  return folder / name;
}

class ReplaceMatrix : public ::testing::TestWithParam<std::string> {
 protected:
  ReplaceMatrix()
      : changed_(changed_model()),
        first_path_(quantized(oracle_folder("qwen3_moe"), GetParam(), folder_, "first")),
        second_path_(quantized(changed_.path(), GetParam(), folder_, "second")),
        first_(Checkpoint::open(first_path_)),
        second_(Checkpoint::open(second_path_)) {
    EngineOptions options = test_options(2);
    options.attribution = true;  // rows of the head are kept apart
    options.audit_mode = AuditMode::kDeferred;
    engine_ = Engine::load(first_path_, options);
    ids_ = prompt_ids(40, engine_->summary().vocab_size);
    expected_ = score(*engine_, ids_);
    expected_second_ = score(*Engine::load(second_path_, options), ids_);
  }

  void expect(const Rows& rows, const char* what) {
    EXPECT_TRUE(same_bits(rows, score(*engine_, ids_), ids_.size())) << what;
  }

  TemporaryFolder folder_;
  EditedModel changed_;
  std::string first_path_, second_path_;
  Checkpoint first_, second_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  Rows expected_, expected_second_;
};

TEST_P(ReplaceMatrix, ThereAndBack) {
  ASSERT_FALSE(same_bits(expected_, expected_second_, ids_.size()));
  VectorSink before, behind;
  const auto record = [this](VectorSink& sink) {
    engine_->set_audit_sink(&sink);
    score(*engine_, ids_);
    engine_->set_audit_sink(nullptr);
    std::vector<std::vector<std::byte>> records = sink.records();
    for (auto& each : records) {  // but for the pass's and the sequence's numbers
      AuditPassHeader header;
      std::memcpy(&header, each.data(), sizeof(header));
      std::byte* token = each.data() + sizeof(header);
      for (uint32_t i = 0; i < header.num_tokens; ++i, token += sizeof(AuditToken)) {
        std::memset(token, 0, sizeof(uint64_t));
      }
      std::memset(each.data(), 0, sizeof(header));
    }
    return records;
  };
  const auto first = record(before);
  for (const char* module : kChanged) engine_->replace_matrix(module, second_);
  expect(expected_second_, "the other's");
  for (const char* module : kChanged) engine_->replace_matrix(module, first_);
  expect(expected_, "and back");
  const auto second = record(behind);
  EXPECT_EQ(first, second);
}

TEST_P(ReplaceMatrix, WhatDoesNotFitChangesNothing) {
  EXPECT_THROW(engine_->replace_matrix("model.layers.9.self_attn.q_proj", second_), Error);
  EXPECT_THROW(engine_->replace_matrix("model.norm", second_), Error);
  const std::string module = kChanged[0];
  EXPECT_THROW(engine_->replace_matrix(module, std::vector<float>(7)), Error);
  const std::string other =
      quantized(oracle_folder("qwen3_moe"), GetParam().empty() ? "int4" : "int8", folder_, "other");
  if (GetParam() != "int8") {
    EXPECT_THROW(engine_->replace_matrix(module, Checkpoint::open(other)), Error);
  }
  EXPECT_THROW(engine_->replace_matrix(module, Checkpoint::open(oracle_folder("llama"))), Error);
  expect(expected_, "as it was");
}

TEST_P(ReplaceMatrix, ByFloats) {
  const std::string module = kChanged[0];
  const Checkpoint changed = Checkpoint::open(changed_.path());
  const TensorInfo& source = changed.require(module + ".weight");
  std::vector<std::byte> bytes(source.num_bytes);
  changed.read(source, bytes);
  std::vector<float> values(bytes.size() / dtype_size(source.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (source.dtype == DType::kF32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    } else {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      values[i] = source.dtype == DType::kBF16 ? from_bfloat16(half) : from_half(half);
    }
  }
  if (first_.find_quantized_tensors(module)) {  // here it is no matrix of floats
    EXPECT_THROW(engine_->replace_matrix(module, values), Error);
    return expect(expected_, "as it was");
  }
  engine_->replace_matrix(module, values);
  const Rows by_floats = score(*engine_, ids_);
  engine_->replace_matrix(module, first_);
  expect(expected_, "and back");
  engine_->replace_matrix(module, changed);
  expect(by_floats, "the same numbers from a file");
}

INSTANTIATE_TEST_SUITE_P(Schemes, ReplaceMatrix,
                         ::testing::Values("", "int4", "int3", "int8", "fp8"),
                         [](const auto& info) {
                           return info.param.empty() ? "floats" : info.param;
                         });

TEST_P(ReplaceMatrix, PutsItsOwnNumbersBack) {
  for (const char* module : kChanged) engine_->replace_matrix(module, second_);
  expect(expected_second_, "the other's");
  for (const char* module : kChanged) engine_->restore_matrix(module);
  expect(expected_, "its own");
  EXPECT_THROW(engine_->restore_matrix("model.layers.9.self_attn.q_proj"), Error);
}

// Floats of a mapped file get memory of their own when they are replaced, and the file's again.
TEST_P(ReplaceMatrix, InAMappedFile) {
  EngineOptions options = test_options(2);
  options.mmap_weights = true;
  const auto mapped = Engine::load(first_path_, options);
  const auto scores = [&] { return score(*mapped, ids_); };
  if (!GetParam().empty()) {
    const auto refuse = [&](const char* module) {
      EXPECT_EQ(error_of([&] { mapped->replace_matrix(module, second_); }).kind(),
                ErrorKind::kUnsupported);
      EXPECT_EQ(error_of([&] { mapped->restore_matrix(module); }).kind(), ErrorKind::kUnsupported);
    };
    refuse(kChanged[0]);
    refuse(kChanged[1]);
    EXPECT_TRUE(same_bits(expected_, scores(), ids_.size()));
    return;
  }
  for (int round = 0; round < 2; ++round) {
    for (const char* module : kChanged) {
      mapped->replace_matrix(module, second_);
      mapped->replace_matrix(module, second_);
    }
    EXPECT_TRUE(same_bits(expected_second_, scores(), ids_.size()));
    for (const char* module : kChanged) mapped->restore_matrix(module);
    EXPECT_TRUE(same_bits(expected_, scores(), ids_.size()));
    for (const char* module : kChanged) mapped->restore_matrix(module);  // where nothing stands in
  }
}

TEST(ReplaceMatrixElsewhere, IsRefused) {
  EngineOptions options = test_options();
  const Checkpoint source = Checkpoint::open(oracle_folder("qwen3_moe"));
  const auto refuse = [&source](Engine& one, const char* module) {
    EXPECT_EQ(error_of([&] { one.replace_matrix(module, source); }).kind(),
              ErrorKind::kUnsupported);
  };
  options.expert_cache_bytes = uint64_t{1} << 20;
  refuse(*Engine::load(oracle_folder("qwen3_moe"), options), kChanged[1]);
}

}  // namespace
}  // namespace vitrine::testing
