// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "record_builder.h"

namespace vitrine {
namespace {

using namespace audit_test;

void expect_constraint(const ConstraintDecision& got, const ConstraintDecision& want) {
  EXPECT_EQ(got.allowed, want.allowed);
  EXPECT_EQ(got.removed, want.removed);
  EXPECT_EQ(got.mask_microseconds, want.mask_microseconds);
  EXPECT_EQ(got.is_limited, want.is_limited);
  EXPECT_EQ(got.first_ruled_out, want.first_ruled_out);
  EXPECT_EQ(got.attempt, want.attempt);
}

void expect_equal(const TokenRecord& got, const TokenRecord& want) {
  EXPECT_EQ(got.sequence, want.sequence);
  EXPECT_EQ(got.position, want.position);
  EXPECT_EQ(got.token, want.token);
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (size_t i = 0; i < want.layers.size(); ++i) {
    EXPECT_EQ(got.layers[i].layer, want.layers[i].layer);
    EXPECT_EQ(got.layers[i].residual_norm, want.layers[i].residual_norm);
    EXPECT_EQ(got.layers[i].router_probs, want.layers[i].router_probs);
    EXPECT_EQ(got.layers[i].router, want.layers[i].router);
    ASSERT_EQ(got.layers[i].selection.size(), want.layers[i].selection.size());
    for (size_t slot = 0; slot < want.layers[i].selection.size(); ++slot) {
      EXPECT_EQ(got.layers[i].selection[slot].score, want.layers[i].selection[slot].score);
      EXPECT_EQ(got.layers[i].selection[slot].key, want.layers[i].selection[slot].key);
    }
    ASSERT_EQ(got.layers[i].routes.size(), want.layers[i].routes.size());
    for (size_t slot = 0; slot < want.layers[i].routes.size(); ++slot) {
      EXPECT_EQ(got.layers[i].routes[slot].expert, want.layers[i].routes[slot].expert);
      EXPECT_EQ(got.layers[i].routes[slot].weight, want.layers[i].routes[slot].weight);
    }
  }
  ASSERT_EQ(got.hidden_states.size(), want.hidden_states.size());
  for (size_t i = 0; i < want.hidden_states.size(); ++i) {
    EXPECT_EQ(got.hidden_states[i].layer, want.hidden_states[i].layer);
    EXPECT_EQ(got.hidden_states[i].values, want.hidden_states[i].values);
  }
  ASSERT_EQ(got.has_prediction, want.has_prediction);
  if (!want.has_prediction) return;
  EXPECT_EQ(got.prediction.token, want.prediction.token);
  EXPECT_EQ(got.prediction.generated, want.prediction.generated);
  EXPECT_EQ(got.prediction.logprob, want.prediction.logprob);
  EXPECT_EQ(got.prediction.entropy, want.prediction.entropy);
  EXPECT_EQ(got.prediction.logits_digest, want.prediction.logits_digest);
  EXPECT_EQ(got.prediction.sampled.candidates, want.prediction.sampled.candidates);
  EXPECT_EQ(got.prediction.sampled.probability, want.prediction.sampled.probability);
  expect_constraint(got.prediction.constraint, want.prediction.constraint);
  ASSERT_EQ(got.prediction.alternatives.size(), want.prediction.alternatives.size());
  for (size_t rank = 0; rank < want.prediction.alternatives.size(); ++rank) {
    EXPECT_EQ(got.prediction.alternatives[rank].token, want.prediction.alternatives[rank].token);
    EXPECT_EQ(got.prediction.alternatives[rank].logprob,
              want.prediction.alternatives[rank].logprob);
  }
  const AttributionRecord &one = got.prediction.attribution, &other = want.prediction.attribution;
  ASSERT_EQ(one.terms.size(), other.terms.size());
  EXPECT_EQ(one.rounding, other.rounding);
  EXPECT_EQ(one.runner_up, other.runner_up);
  EXPECT_EQ(one.runner_up_rounding, other.runner_up_rounding);
  for (size_t i = 0; i < other.terms.size(); ++i) {
    EXPECT_EQ(one.terms[i].expert, other.terms[i].expert);
    EXPECT_EQ(one.terms[i].value, other.terms[i].value);
    EXPECT_EQ(one.terms[i].runner_up, other.terms[i].runner_up);
  }
}

std::string error_of(const AuditLayout& layout, std::span<const std::byte> bytes) {
  try {
    decode_pass(layout, bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

TEST(DecodePass, EveryTopKWithDenseLayersBetween) {
  for (const AuditLevel level : {AuditLevel::kStandard, AuditLevel::kFull}) {
    for (int32_t top_k = 1; top_k <= 8; ++top_k) {
      Rng rng(static_cast<uint64_t>(top_k));
      AuditLayout layout =
          make_layout({{0, 0}, {top_k, 8}, {0, 0}, {top_k, 13}, {9 - top_k, 9}}, level, rng);
      if (top_k % 2 == 0) layout = with_terms(with_constraint(layout));
      if (top_k % 3 == 0) layout = with_hidden_states(layout, {0, 3, 5}, 7 * top_k);
      for (const int32_t num_tokens : {1, 2, 7, 40}) {
        const BuiltPass pass = build_pass(layout, 3, num_tokens, rng);
        ASSERT_EQ(audit_record_bytes(
                      layout, reinterpret_cast<const AuditPassHeader*>(pass.bytes.data())->num_rows,
                      static_cast<size_t>(num_tokens)),
                  pass.bytes.size());
        const std::vector<TokenRecord> records = decode_pass(layout, pass.bytes);
        ASSERT_EQ(records.size(), pass.expected.size());
        for (size_t i = 0; i < records.size(); ++i) expect_equal(records[i], pass.expected[i]);
      }
    }
  }
}

TEST(DecodePass, DenseModelSmallVocabularyAndUnalignedBytes) {
  Rng rng(5);
  const AuditLayout layout = make_layout({{0, 0}, {0, 0}, {0, 0}}, AuditLevel::kFull, rng);
  const BuiltPass pass = build_pass(layout, 0, 9, rng, /*vocabulary=*/6);
  std::vector<std::byte> shifted(pass.bytes.size() + 1);
  std::memcpy(shifted.data() + 1, pass.bytes.data(), pass.bytes.size());
  const auto records = decode_pass(layout, std::span(shifted).subspan(1));
  ASSERT_EQ(records.size(), 9u);
  size_t num_predictions = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    expect_equal(records[i], pass.expected[i]);
    if (!records[i].has_prediction) continue;
    ++num_predictions;
    EXPECT_EQ(records[i].prediction.alternatives.size(), 6u);
  }
  EXPECT_GT(num_predictions, 0u);
}

TEST(DecodePass, WithoutRowRecordsLogprobIsUnknown) {
  Rng rng(6);
  AuditLayout layout = make_layout({{2, 4}}, AuditLevel::kStandard, rng);
  layout.row_words = 0;
  std::vector<std::byte> bytes(audit_record_bytes(layout, 1, 1));
  put(bytes, 0, AuditPassHeader{0, 1, 1, bytes.size()});
  put(bytes, sizeof(AuditPassHeader), AuditToken{7, 3, 11, 0, 1});
  put(bytes, sizeof(AuditPassHeader) + sizeof(AuditToken), int32_t{42});
  const auto records = decode_pass(layout, bytes);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].prediction.token, 42);
  EXPECT_TRUE(std::isnan(records[0].prediction.logprob));
  EXPECT_TRUE(std::isnan(records[0].prediction.entropy));
  EXPECT_EQ(records[0].prediction.logits_digest, 0u);
  EXPECT_TRUE(records[0].prediction.alternatives.empty());
}

TEST(DecodePass, EveryTruncationAndEveryExtensionIsRefused) {
  Rng rng(7);
  const AuditLayout layout = four_layers(AuditLevel::kFull);
  const BuiltPass pass = build_pass(layout, 2, 3, rng);
  for (size_t size = 0; size < pass.bytes.size(); ++size) {
    // A copy of exactly this size, so that a sanitizer sees a read past it.
    const std::vector<std::byte> cut(pass.bytes.begin(),
                                     pass.bytes.begin() + static_cast<ptrdiff_t>(size));
    ASSERT_NE(error_of(layout, cut), "") << size;
  }
  std::vector<std::byte> longer = pass.bytes;
  longer.resize(longer.size() + 8);
  EXPECT_NE(error_of(layout, longer), "");
}

TEST(DecodePass, NamesTheFieldThatIsWrong) {
  Rng rng(8);
  const AuditLayout layout = four_layers();
  BuiltPass pass;
  do {
    pass = build_pass(layout, 5, 2, rng);
  } while (!pass.expected[0].has_prediction || pass.expected[1].has_prediction);
  ASSERT_EQ(error_of(layout, pass.bytes), "");
  const size_t words_at =
      sizeof(AuditPassHeader) + 48 + 4 + 4 * static_cast<size_t>(layout.row_words);
  const auto with = [&](size_t at, auto value) {
    std::vector<std::byte> bytes = pass.bytes;
    put(bytes, at, value);
    return error_of(layout, bytes);
  };
  EXPECT_NE(with(8, uint32_t{3}).find("3 tokens"), std::string::npos);
  EXPECT_NE(with(8, uint32_t{0xFFFFFFFF}).find("4294967295 tokens"), std::string::npos);
  EXPECT_NE(with(12, uint32_t{0}).find("0 rows"), std::string::npos);
  EXPECT_NE(with(16, uint64_t{8}).find("num_bytes is 8"), std::string::npos);
  EXPECT_NE(with(40, int32_t{-4}).find("position -4"), std::string::npos);
  EXPECT_NE(with(44, int32_t{-5}).find("id -5"), std::string::npos);
  EXPECT_NE(with(48, int32_t{1}).find("row 1"), std::string::npos);
  EXPECT_NE(with(48, int32_t{-2}).find("row -2"), std::string::npos);
  EXPECT_NE(with(52, int32_t{2}).find("generated 2"), std::string::npos);
  EXPECT_NE(with(80, int32_t{-1}).find("chosen id -1"), std::string::npos);
  EXPECT_NE(with(84 + 4 * static_cast<size_t>(layout.top_ids), int32_t{-2}).find("top id 0"),
            std::string::npos);
  const size_t expert_at = words_at + 4 * static_cast<size_t>(layout.layers[2].expert_ids);
  EXPECT_EQ(with(expert_at, int32_t{8}),
            "audit record of pass 5: layer 2 has expert 8, expected 0 to 7");
  EXPECT_NE(with(expert_at, int32_t{-1}), "");
}

TEST(DecodePass, ImpossibleLayoutsAreRefused) {
  Rng rng(9);
  const AuditLayout good = four_layers(AuditLevel::kFull);
  const BuiltPass pass = build_pass(good, 0, 1, rng);
  const auto with = [&](auto change) {
    AuditLayout layout = good;
    change(layout);
    const std::string error = error_of(layout, pass.bytes);
    EXPECT_EQ(error.rfind("audit layout: ", 0), 0u) << error;
    EXPECT_THROW(audit_record_bytes(layout, 1, 1), Error);
  };
  with([](AuditLayout& l) { l.token_words = -1; });
  with([](AuditLayout& l) { l.row_words = -1; });
  with([](AuditLayout& l) { l.token_words = 1; });
  with([](AuditLayout& l) { l.row_words = 5; });
  with([](AuditLayout& l) { l.layers[1].residual_norm = -1; });
  with([](AuditLayout& l) { l.layers[1].residual_norm = l.token_words; });
  with([](AuditLayout& l) { l.layers[1].expert_ids = -1; });
  with([](AuditLayout& l) { l.layers[1].expert_weights = l.token_words - 1; });
  with([](AuditLayout& l) { l.layers[1].top_k = 9; });
  with([](AuditLayout& l) { l.layers[1].top_k = 0; });
  with([](AuditLayout& l) { l.layers[1].num_experts = std::numeric_limits<int32_t>::max(); });
  with([](AuditLayout& l) { l.layers[1].router_probs = std::numeric_limits<int32_t>::max(); });
  with([](AuditLayout& l) { l.layers[1].router_scores = l.token_words - 3; });
  with([](AuditLayout& l) { l.layers[1].router_scores = std::numeric_limits<int32_t>::max(); });
  with([](AuditLayout& l) {  // of a dense layer
    l.layers[1].router_scores = 0;
    l.layers[1].expert_ids = l.layers[1].expert_weights = -1;
  });
  with([](AuditLayout& l) { l.layers[1].expert_norms = l.token_words - 1; });
  with([](AuditLayout& l) { l.layers[1].expert_norms = std::numeric_limits<int32_t>::max(); });
  with([](AuditLayout& l) { l.top_ids = -1; });
  with([](AuditLayout& l) { l.top_logits = l.row_words - kAuditTopTokens + 1; });
  with([](AuditLayout& l) { l.logits_digest = l.row_words - 1; });
  with([](AuditLayout& l) { l.logits_digest = -1; });
  with([](AuditLayout& l) { l.sampler_candidates = -1; });
  with([](AuditLayout& l) { l.constraint = l.row_words - kAuditConstraintWords + 1; });
  with([](AuditLayout& l) { l.sampler_probability = l.row_words; });
  with([](AuditLayout& l) { l.layers.insert(l.layers.end(), 1000, l.layers[0]); });
  EXPECT_THROW(audit_record_bytes(good, std::numeric_limits<size_t>::max() / 8, 1), Error);
  EXPECT_THROW(audit_record_bytes(good, 1, std::numeric_limits<size_t>::max() / 100), Error);
}

TEST(DecodePass, ImpossibleHiddenStatesAreRefused) {
  const AuditLayout good = with_hidden_states(four_layers(AuditLevel::kFull), {0, 4}, 10);
  EXPECT_GT(audit_record_bytes(good, 1, 1), 0u);
  const auto with = [&](auto change) {
    AuditLayout layout = good;
    change(layout);
    EXPECT_THROW(audit_record_bytes(layout, 1, 1), Error);
  };
  with([](AuditLayout& l) { l.hidden_size = 0; });
  with([](AuditLayout& l) { l.hidden_size = -4; });
  with([](AuditLayout& l) { l.hidden_size = std::numeric_limits<int32_t>::max(); });
  with([](AuditLayout& l) { l.hidden_states[1].layer = 5; });
  with([](AuditLayout& l) { l.hidden_states[0].layer = -1; });
  with([](AuditLayout& l) { l.hidden_states[1].values = -1; });
  with([](AuditLayout& l) { l.hidden_states[1].values = l.token_words - 9; });
  with([](AuditLayout& l) { l.hidden_states.insert(l.hidden_states.end(), 1000, {0, 0}); });
}

TEST(DecodePass, MutatedRecordsAndLayoutsNeverEscape) {
  Rng rng(10);
  size_t num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    AuditLayout layout =
        make_layout({{uniform(rng, 0, 4), 5}, {uniform(rng, 0, 2), 3}},
                    uniform(rng, 0, 1) == 1 ? AuditLevel::kFull : AuditLevel::kStandard, rng);
    std::vector<std::byte> bytes = build_pass(layout, 1, uniform(rng, 1, 4), rng).bytes;
    for (int change = uniform(rng, 1, 4); change > 0; --change) {
      const size_t word = static_cast<size_t>(uniform(rng, 0, uniform(rng, 0, 3) == 0 ? 1000 : 16));
      constexpr int32_t kNasty[] = {0, -1, 1, 1 << 30, -(1 << 30), 0x7FFFFFFF};
      const int32_t value =
          uniform(rng, 0, 1) == 1 ? kNasty[uniform(rng, 0, 5)] : uniform(rng, -64, 64);
      if (4 * word + 4 <= bytes.size()) put(bytes, 4 * word, value);
    }
    if (uniform(rng, 0, 7) == 0) bytes.resize(static_cast<size_t>(uniform(rng, 0, 600)));
    if (uniform(rng, 0, 3) == 0) {
      const int32_t value = uniform(rng, 0, 1) == 1 ? 0x7FFFFFFF : uniform(rng, -8, 64);
      int32_t* const fields[] = {&layout.token_words,
                                 &layout.row_words,
                                 &layout.top_ids,
                                 &layout.entropy,
                                 &layout.logits_digest,
                                 &layout.layers[0].top_k,
                                 &layout.layers[0].num_experts,
                                 &layout.layers[1].expert_ids,
                                 &layout.layers[1].residual_norm};
      *fields[uniform(rng, 0, 8)] = value;
    }
    if (!error_of(layout, std::vector<std::byte>(bytes)).empty()) ++num_refused;
  }
  EXPECT_GT(num_refused, 5000u);
  EXPECT_LT(num_refused, 20000u);
}

}  // namespace
}  // namespace vitrine
