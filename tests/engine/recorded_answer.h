// SPDX-License-Identifier: Apache-2.0
// An answer and its records, for tests that compare two ways to the same tokens.
#pragma once

#include "tests/engine/engine_fixture.h"
#include "vitrine/audit.h"
#include "vitrine/constrain.h"

namespace vitrine::testing {

struct RecordedAnswer {
  GenerateResult result;
  std::vector<TokenRecord> records;
};

/// To a fixed prompt; tokens below 256 are the bytes that `regex` (null: none) is over.
template <typename Model>  // an Engine, or a Federation
RecordedAnswer recorded_answer(Model& engine, const SamplerOptions& sampler, const char* regex,
                               int max_new_tokens) {
  std::vector<std::string> bytes(static_cast<size_t>(engine.summary().vocab_size));
  for (size_t id = 0; id < std::min<size_t>(256, bytes.size()); ++id) {
    bytes[id] = std::string(1, static_cast<char>(id));
  }
  const TokenTable table = TokenTable::from_bytes(bytes, engine.summary().eos_token_ids);
  VectorSink sink;
  engine.set_audit_sink(&sink);
  GenerateOptions generation;
  generation.max_new_tokens = max_new_tokens;
  generation.sampler = sampler;
  std::unique_ptr<Constraint> constraint;
  if (regex != nullptr) constraint = Grammar::regex(table, regex).start();
  generation.constraint = constraint.get();
  RecordedAnswer answer;
  answer.result = generate(engine, prompt_ids(9, 256), generation);
  answer.records = sink.take();
  engine.set_audit_sink(nullptr);
  return answer;
}

inline void expect_same_terms(const AttributionRecord& a, const AttributionRecord& b) {
  EXPECT_EQ(a.logit, b.logit);
  EXPECT_EQ(a.runner_up, b.runner_up);
  EXPECT_EQ(a.runner_up_logit, b.runner_up_logit);
  ASSERT_EQ(a.terms.size(), b.terms.size());
  for (size_t t = 0; t < a.terms.size(); ++t) {
    EXPECT_EQ(a.terms[t].value, b.terms[t].value);
    EXPECT_EQ(a.terms[t].runner_up, b.terms[t].runner_up);
  }
}

}  // namespace vitrine::testing
