// SPDX-License-Identifier: Apache-2.0
// A model whose tokens are bytes, and answers of it under a constraint.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/engine_fixture.h"
#include "vitrine/constrain.h"

namespace vitrine::testing {

class ConstraintTest : public ::testing::Test {
 protected:
  ConstraintTest() : ids_(prompt_ids(12, 256)) {
    EngineOptions options = test_options(2);
    options.max_context = 64;
    options.max_step_tokens = 16;
    options.max_sequences = 2;
    options.audit_mode = AuditMode::kDeferred;
    engine_ = Engine::load(oracle_folder("qwen3_moe"), options);
    options_.max_new_tokens = 20;
  }
  int32_t vocab() const { return engine_->summary().vocab_size; }
  /// Id and byte are the same, but for the ids that end a text and those of `without`.
  TokenTable table(std::string_view without = "") const {
    std::vector<std::string> bytes(static_cast<size_t>(vocab()));
    for (int byte = 0; byte < std::min(256, vocab()); ++byte) {
      if (without.find(static_cast<char>(byte)) == std::string_view::npos) {
        bytes[static_cast<size_t>(byte)] = std::string(1, static_cast<char>(byte));
      }
    }
    return TokenTable::from_bytes(std::move(bytes), engine_->summary().eos_token_ids);
  }
  std::string text_of(const GenerateResult& result) const {
    std::string text;
    const auto& ends = engine_->summary().eos_token_ids;
    for (const int32_t id : result.tokens) {
      if (std::find(ends.begin(), ends.end(), id) == ends.end()) text += static_cast<char>(id);
    }
    return text;
  }
  GenerateResult run(const Grammar& grammar) {
    const auto blocks = engine_->kv_blocks();
    const auto constraint = grammar.start();
    options_.constraint = constraint.get();
    const GenerateResult result = generate(*engine_, ids_, options_);
    EXPECT_EQ(engine_->kv_blocks(), blocks);
    return result;
  }
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  GenerateOptions options_;
};

}  // namespace vitrine::testing
