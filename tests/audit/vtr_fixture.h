// SPDX-License-Identifier: Apache-2.0
// Runs that a `.vtr` log is made of, and files to keep them in.
#pragma once

#include "json_log_fixture.h"
#include "record_builder.h"
#include "src/core/half_float.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit_test {

using VtrTest = JsonLogTest;

inline AuditLayout layout_of(int32_t layers, int32_t experts, int32_t top_k,
                             AuditLevel level = AuditLevel::kStandard) {
  Rng rng(1);
  return make_layout(std::vector<LayerShape>(static_cast<size_t>(layers), {top_k, experts}), level,
                     rng);
}

/// A pass of `num_tokens` tokens of one sequence from `position` on.
inline BuiltPass build_step(const AuditLayout& layout, uint64_t pass, uint64_t sequence,
                            int32_t position, int32_t num_tokens, Rng& rng,
                            int32_t vocabulary = 8192) {
  BuiltPass built = build_pass(layout, pass, num_tokens, rng, vocabulary);
  for (int32_t i = 0; i < num_tokens; ++i) {
    const auto index = static_cast<size_t>(i);
    put(built.bytes, sizeof(AuditPassHeader) + 24 * index, sequence);
    put(built.bytes, sizeof(AuditPassHeader) + 24 * index + 8, position + i);
    built.expected[index].sequence = sequence;
    built.expected[index].position = position + i;
  }
  return built;
}

/// Sends `num_tokens` tokens in steps of 1 to 7 and remembers what they were.
inline std::vector<TokenRecord> send_run(AuditSink& sink, const AuditLayout& layout,
                                         int32_t num_tokens, Rng& rng, uint64_t sequence = 1) {
  std::vector<TokenRecord> expected;
  for (int32_t position = 0; position < num_tokens;) {
    const int32_t count = std::min(num_tokens - position, uniform(rng, 1, 7));
    const BuiltPass built = build_step(layout, 0, sequence, position, count, rng);
    send(sink, built.bytes);
    expected.insert(expected.end(), built.expected.begin(), built.expected.end());
    position += count;
  }
  return expected;
}

/// Options for a log that may be there already.
inline VtrOptions overwriting(VtrOptions options = {}) {
  options.overwrite = true;
  return options;
}

/// A whole log of one sequence, created and released.
inline std::vector<TokenRecord> write_log(const std::string& path, const AuditLayout& layout,
                                          int32_t num_tokens, VtrOptions options = {},
                                          uint64_t seed = 7) {
  Rng rng(seed);
  VtrLog log(path, some_header(), overwriting(std::move(options)), piece);
  log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
  std::vector<TokenRecord> expected = send_run(log.sink(), layout, num_tokens, rng);
  log.sink().on_event({AuditEvent::Kind::kReleased, 1, 0, num_tokens, 0});
  log.finish("length");
  return expected;
}

inline std::vector<VtrPage> read_pages(const std::string& path) {
  VtrReader reader(path);
  std::vector<VtrPage> pages(1);
  while (reader.next(pages.back())) pages.emplace_back();
  pages.pop_back();
  return pages;
}

inline std::vector<TokenRecord> read_records(const std::string& path) {
  std::vector<TokenRecord> records;
  for (VtrPage& page : read_pages(path)) {
    records.insert(records.end(), page.records.begin(), page.records.end());
  }
  return records;
}

inline void expect_same(float got, float want) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got));
  } else {
    EXPECT_EQ(got, want);
  }
}

inline float half(float value) { return from_half(to_half(value)); }
inline float bfloat16(float value) { return from_bfloat16(to_bfloat16(value)); }

/// `got` is `want`, rounded where the level rounds.
inline void expect_record(const TokenRecord& got, const TokenRecord& want, LogDetail detail) {
  const bool is_full = detail == LogDetail::kFull;
  const auto value = [&](float x) { return is_full ? x : half(x); };
  EXPECT_EQ(got.sequence, want.sequence);
  EXPECT_EQ(got.position, want.position);
  EXPECT_EQ(got.token, want.token);
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (size_t i = 0; i < want.layers.size(); ++i) {
    const LayerRecord &layer = got.layers[i], &expected = want.layers[i];
    EXPECT_EQ(layer.layer, expected.layer);
    expect_same(layer.residual_norm,
                is_full ? expected.residual_norm : bfloat16(expected.residual_norm));
    ASSERT_EQ(layer.routes.size(), expected.routes.size());
    for (size_t slot = 0; slot < expected.routes.size(); ++slot) {
      EXPECT_EQ(layer.routes[slot].expert, expected.routes[slot].expert);
      expect_same(layer.routes[slot].weight, value(expected.routes[slot].weight));
    }
    EXPECT_EQ(layer.router_probs, is_full ? expected.router_probs : std::vector<float>());
    EXPECT_EQ(layer.router, expected.router);
    ASSERT_EQ(layer.selection.size(), expected.selection.size());
    for (size_t slot = 0; slot < expected.selection.size(); ++slot) {
      expect_same(layer.selection[slot].score, value(expected.selection[slot].score));
      expect_same(layer.selection[slot].key, value(expected.selection[slot].key));
    }
    ASSERT_EQ(layer.expert_norms.size(), expected.expert_norms.size());
    for (size_t slot = 0; slot < expected.expert_norms.size(); ++slot) {
      const float norm = expected.expert_norms[slot];
      expect_same(layer.expert_norms[slot], is_full ? norm : bfloat16(norm));
    }
  }
  ASSERT_EQ(got.hidden_states.size(), is_full ? want.hidden_states.size() : 0);
  for (size_t i = 0; i < got.hidden_states.size(); ++i) {
    EXPECT_EQ(got.hidden_states[i].layer, want.hidden_states[i].layer);
    ASSERT_EQ(got.hidden_states[i].values.size(), want.hidden_states[i].values.size());
    for (size_t at = 0; at < got.hidden_states[i].values.size(); ++at) {
      expect_same(got.hidden_states[i].values[at], want.hidden_states[i].values[at]);
    }
  }
  ASSERT_EQ(got.has_prediction, want.has_prediction);
  if (!want.has_prediction) return;
  EXPECT_EQ(got.prediction.token, want.prediction.token);
  EXPECT_EQ(got.prediction.generated, want.prediction.generated);
  expect_same(got.prediction.logprob, value(want.prediction.logprob));
  expect_same(got.prediction.entropy, value(want.prediction.entropy));
  EXPECT_EQ(got.prediction.sampled.candidates, want.prediction.sampled.candidates);
  if (want.prediction.sampled.candidates > 0) {
    expect_same(got.prediction.sampled.probability, value(want.prediction.sampled.probability));
  }
  EXPECT_EQ(got.prediction.logits_digest, is_full ? want.prediction.logits_digest : 0);
  ASSERT_EQ(got.prediction.alternatives.size(), want.prediction.alternatives.size());
  for (size_t rank = 0; rank < want.prediction.alternatives.size(); ++rank) {
    EXPECT_EQ(got.prediction.alternatives[rank].token, want.prediction.alternatives[rank].token);
    expect_same(got.prediction.alternatives[rank].logprob,
                value(want.prediction.alternatives[rank].logprob));
  }
  const AttributionRecord &one = got.prediction.attribution, &other = want.prediction.attribution;
  ASSERT_EQ(one.terms.size(), other.terms.size());
  EXPECT_EQ(one.runner_up, other.runner_up);
  expect_same(one.logit, other.logit);
  expect_same(one.rounding, other.rounding);
  expect_same(one.runner_up_logit, other.runner_up_logit);
  expect_same(one.runner_up_rounding, other.runner_up_rounding);
  for (size_t i = 0; i < other.terms.size(); ++i) {
    EXPECT_EQ(one.terms[i].kind, other.terms[i].kind);
    EXPECT_EQ(one.terms[i].layer, other.terms[i].layer);
    EXPECT_EQ(one.terms[i].expert, other.terms[i].expert);
    expect_same(one.terms[i].value, value(other.terms[i].value));
    expect_same(one.terms[i].runner_up, value(other.terms[i].runner_up));
  }
}

}  // namespace vitrine::audit_test
