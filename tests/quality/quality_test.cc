// SPDX-License-Identifier: Apache-2.0
// Scores, perplexities and divergences of models against rows that were computed a token at a time
// and sums in 80-bit floats.
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "tests/engine/federation_fixture.h"
#include "vitrine/quality.h"

namespace vitrine::testing {
namespace {

constexpr int kVocabulary = 256;

std::unique_ptr<Engine> scoring_engine(const std::string& path, int64_t window, int rows = 7) {
  EngineOptions options;
  options.threads = 1;
  options.kv_codecs = {"f32"};
  return Engine::load(path, scoring_options(window, options, rows));
}

/// log p of every token, in 80-bit floats.
std::vector<long double> exact_logprobs(const std::vector<float>& logits) {
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  std::vector<long double> logprobs;
  for (const float logit : logits) {
    logprobs.push_back(static_cast<long double>(logit) - std::log(sum));
  }
  return logprobs;
}

/// The rows of `ids` from an engine that is fed one token at a time.
Rows rows_of(const std::string& path, std::span<const int32_t> ids) {
  EngineOptions options = test_options();
  options.kv_codecs = {"f32"};
  return score(*Engine::load(path, options), ids, 1);
}

/// What windows of a text come to, by the definition.
struct ExactText {
  std::vector<size_t> windows;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> rows;
};

ExactText exact_text(const std::string& path, std::span<const int32_t> ids, size_t width) {
  ExactText text;
  for (size_t begin = 0, window = 0; begin < ids.size(); begin += width, ++window) {
    const auto of = ids.subspan(begin, std::min(width, ids.size() - begin));
    const Rows rows = rows_of(path, of);
    for (size_t i = 1; i < of.size(); ++i) {
      text.windows.push_back(window);
      text.tokens.push_back(of[i]);
      text.rows.push_back(rows.at(static_cast<int64_t>(i) - 1));
    }
  }
  return text;
}

class Quality : public ::testing::Test {
 protected:
  Quality() : model_(oracle_folder("qwen3_moe")), ids_(prompt_ids(53, kVocabulary)) {}
  const std::string model_;
  const std::vector<int32_t> ids_;
};

TEST_F(Quality, TokensHaveTheModelsProbabilities) {
  const Rows rows = rows_of(model_, ids_);
  const auto engine = scoring_engine(model_, 67);
  const TokenScores scores = score_tokens(*engine, ids_, {.greedy = 5});
  ASSERT_EQ(scores.logprobs.size(), ids_.size() - 1);
  for (size_t i = 0; i < scores.logprobs.size(); ++i) {
    const auto exact =
        exact_logprobs(rows.at(static_cast<int64_t>(i)))[static_cast<size_t>(ids_[i + 1])];
    EXPECT_NEAR(scores.logprobs[i], static_cast<double>(exact), 1e-12) << i;
  }
  EXPECT_EQ(scores.last_logits, rows.at(52));
  std::vector<int32_t> all = ids_;
  for (int i = 0; i < 5; ++i) {
    const std::vector<float> row = rows_of(model_, all).at(std::ssize(all) - 1);
    all.push_back(static_cast<int32_t>(std::ranges::max_element(row) - row.begin()));
  }
  EXPECT_EQ(scores.greedy, std::vector<int32_t>(all.begin() + 53, all.end()));
  EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
}

TEST_F(Quality, ContextIsNotScored) {
  const auto engine = scoring_engine(model_, 53);
  const std::vector<double> whole = score_tokens(*engine, ids_).logprobs;
  for (const size_t first : {size_t{1}, size_t{2}, size_t{7}, size_t{8}, size_t{9}, size_t{52}}) {
    const TokenScores scores = score_tokens(*engine, ids_, {.first = first});
    EXPECT_EQ(scores.logprobs,
              std::vector<double>(whole.begin() + static_cast<ptrdiff_t>(first) - 1, whole.end()));
    EXPECT_TRUE(scores.greedy.empty());
  }
  EXPECT_EQ(score_tokens(*engine, std::span(ids_).first(1)).logprobs.size(), 0U);
}

TEST_F(Quality, TokensThatCannotBeScoredAreRefused) {
  const auto engine = scoring_engine(model_, 53);
  const auto refusal = [&](std::span<const int32_t> ids, const TokenScoreOptions& options) {
    const Error error = error_of([&] { score_tokens(*engine, ids, options); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
    return error;
  };
  EXPECT_TRUE(is_one_line_with(refusal({}, {}), {"no ids", "at least one"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.first = 0}), {"is 0", "1 to 53"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.first = 54}), {"is 54", "1 to 53"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.greedy = -1}), {"-1"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.greedy = 2}), {"54 positions", "53"}));
  EXPECT_EQ(score_tokens(*engine, ids_, {.greedy = 1}).greedy.size(), 1U);
  std::vector<int32_t> other = ids_;
  other[52] = kVocabulary;  // it is scored and fed
  EXPECT_TRUE(is_one_line_with(refusal(other, {}), {"id 256", "place 52", "0 to 255"}));
  other[52] = -1;
  refusal(other, {});
  other.assign(54, 1);
  EXPECT_TRUE(is_one_line_with(refusal(other, {}), {"54 positions", "max_context"}));
}

TEST_F(Quality, AModelWithoutLogitsIsRefused) {
  EngineOptions options = scoring_options(64);
  options.keep_logits = false;
  const auto engine = Engine::load(model_, options);
  EXPECT_TRUE(is_one_line_with(error_of([&] { score_tokens(*engine, ids_); }), {"keep_logits"}));
  EXPECT_TRUE(is_one_line_with(error_of([&] { score_text(*engine, ids_); }), {"keep_logits"}));
  EXPECT_THROW(scoring_options(0), Error);
  EXPECT_THROW(scoring_options(8, {}, 0), Error);
  EXPECT_THROW(scoring_options(int64_t{1} << 40), Error);
}

TEST_F(Quality, BrokenWeightsAreTold) {
  TemporaryFolder folder;
  std::filesystem::copy(model_, folder / "broken");
  const Checkpoint checkpoint = Checkpoint::open(folder / "broken");
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (info.name == "model.norm.weight") {
      overwrite(folder / "broken", info, 0, std::string_view("\x00\x00\xc0\x7f", 4));
    }
  }
  const auto engine = scoring_engine(folder / "broken", 53);
  const Error error = error_of([&] { score_tokens(*engine, ids_); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {"position 0", "token 0", "nan", "weights"}));
}

TEST_F(Quality, WindowsBeginAnew) {
  const auto engine = scoring_engine(model_, 10);
  for (const size_t count : {size_t{53}, size_t{51}, size_t{50}, size_t{9}, size_t{2}}) {
    const auto ids = std::span(ids_).first(count);
    const ExactText exact = exact_text(model_, ids, 10);
    size_t at = 0;
    const size_t windows = predict_windows(
        *engine, ids, {.window = 10, .first_window = 3}, [&](const PredictedToken& token) {
          ASSERT_LT(at, exact.tokens.size());
          EXPECT_EQ(token.window, exact.windows[at] + 3);
          EXPECT_EQ(token.token, exact.tokens[at]);
          EXPECT_EQ(token.position, static_cast<int64_t>(at % 9) + 1);
          EXPECT_TRUE(std::ranges::equal(token.logits, exact.rows[at]));
          EXPECT_TRUE(token.shares.empty());
          const auto logprob =
              exact_logprobs(exact.rows[at])[static_cast<size_t>(exact.tokens[at])];
          EXPECT_NEAR(token.logprob, static_cast<double>(logprob), 1e-12);
          ++at;
        });
    EXPECT_EQ(at, exact.tokens.size());
    EXPECT_EQ(windows, (count + 8) / 10);  // the last id of 51 is alone
  }
}

TEST_F(Quality, WindowsAreLeftOut) {
  const auto engine = scoring_engine(model_, 10);
  std::vector<size_t> windows;
  const WindowOptions options{.window = 10, .first_window = 4, .every = 3};
  EXPECT_EQ(predict_windows(*engine, ids_, options,
                            [&](const PredictedToken& token) { windows.push_back(token.window); }),
            6U);
  EXPECT_EQ(windows, (std::vector<size_t>{6, 6, 6, 6, 6, 6, 6, 6, 6, 9, 9}));
}

TEST_F(Quality, PerplexityFollowsFromTheRows) {
  const ExactText exact = exact_text(model_, ids_, 19);
  long double sum = 0;
  for (size_t i = 0; i < exact.tokens.size(); ++i) {
    sum += exact_logprobs(exact.rows[i])[static_cast<size_t>(exact.tokens[i])];
  }
  const auto count = static_cast<long double>(exact.tokens.size());
  const auto engine = scoring_engine(model_, 19);
  const TextScore score = score_text(*engine, ids_, {.window = 19});
  EXPECT_EQ(score.num_tokens(), exact.tokens.size());
  EXPECT_EQ(score.num_specialists(), 0U);
  EXPECT_NEAR(score.logprob(), static_cast<double>(sum / count), 1e-12);
  EXPECT_NEAR(score.perplexity(), static_cast<double>(std::exp(-sum / count)), 1e-9);
  EXPECT_TRUE(std::isnan(TextScore().perplexity()));
}

TEST_F(Quality, TextsThatCannotBeReadAreRefused) {
  const auto engine = scoring_engine(model_, 16);
  const auto refusal = [&](std::span<const int32_t> ids, const WindowOptions& options) {
    const Error error = error_of([&] { score_text(*engine, ids, options); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error;
  };
  EXPECT_TRUE(is_one_line_with(refusal({}, {.window = 16}), {"0 ids", "at least 2"}));
  EXPECT_TRUE(is_one_line_with(refusal(std::span(ids_).first(1), {.window = 16}), {"1 ids"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.window = 1}), {"window of 1", "at least 2"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.window = 17}), {"17 positions", "16"}));
  EXPECT_TRUE(is_one_line_with(refusal(ids_, {.window = 16, .every = 0}), {"one in 1"}));
  std::vector<int32_t> other = ids_;
  other[16] = 300;
  EXPECT_TRUE(is_one_line_with(refusal(other, {.window = 16}), {"id 300", "place 16"}));
  // A text that is shorter than the window needs no context of it.
  EXPECT_EQ(score_text(*engine, std::span(ids_).first(16)).num_tokens(), 15U);
}

TEST_F(Quality, WhatTheHostThrowsPassesThrough) {
  const auto engine = scoring_engine(model_, 16);
  int steps = 0;
  const auto stop = [&steps] {
    if (++steps == 3) throw std::runtime_error("enough");
  };
  EXPECT_THROW(score_text(*engine, ids_, {.window = 16, .before_step = stop}), std::runtime_error);
  EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
  steps = 0;
  EXPECT_THROW(score_tokens(*engine, std::span(ids_).first(16), {.before_step = stop}),
               std::runtime_error);
  EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
}

TEST_F(Quality, ComparisonFollowsFromBothModelsRows) {
  const VariantFolder quantized({"qwen3_moe", "int4", 32});
  const ExactText first = exact_text(model_, ids_, 12),
                  second = exact_text(quantized.path(), ids_, 12);
  const auto source = scoring_engine(model_, 12), result = scoring_engine(quantized.path(), 12, 5);
  const ModelComparison found = compare_models(*source, *result, ids_, {.window = 12});
  ASSERT_EQ(found.tokens.size(), first.tokens.size());
  long double first_sum = 0, second_sum = 0, kl_sum = 0;
  std::vector<double> changes, kls;
  size_t same = 0;
  for (size_t i = 0; i < found.tokens.size(); ++i) {
    const auto p = exact_logprobs(first.rows[i]), q = exact_logprobs(second.rows[i]);
    const auto token = static_cast<size_t>(first.tokens[i]);
    long double kl = 0;
    for (size_t id = 0; id < p.size(); ++id) kl += std::exp(p[id]) * (p[id] - q[id]);
    const bool is_same = std::ranges::max_element(first.rows[i]) - first.rows[i].begin() ==
                         std::ranges::max_element(second.rows[i]) - second.rows[i].begin();
    EXPECT_EQ(found.tokens[i].window, first.windows[i]);
    EXPECT_NEAR(found.tokens[i].first_logprob, static_cast<double>(p[token]), 1e-12);
    EXPECT_NEAR(found.tokens[i].second_logprob, static_cast<double>(q[token]), 1e-12);
    EXPECT_NEAR(found.tokens[i].kl, static_cast<double>(kl), 1e-12);
    EXPECT_EQ(found.tokens[i].is_same_best, is_same);
    first_sum += p[token], second_sum += q[token], kl_sum += kl;
    changes.push_back(static_cast<double>(q[token] - p[token]));
    kls.push_back(static_cast<double>(kl));
    same += is_same ? 1 : 0;
  }
  const auto count = static_cast<long double>(found.tokens.size());
  EXPECT_NEAR(found.first_perplexity, static_cast<double>(std::exp(-first_sum / count)), 1e-9);
  EXPECT_NEAR(found.second_perplexity, static_cast<double>(std::exp(-second_sum / count)), 1e-9);
  EXPECT_NEAR(found.mean_kl, static_cast<double>(kl_sum / count), 1e-12);
  EXPECT_GT(found.mean_kl, 1e-5);
  EXPECT_NEAR(found.kl().mean, found.mean_kl, 1e-14);
  const Estimate change = clustered_mean(changes, first.windows);
  EXPECT_NEAR(found.logprob_change().mean, change.mean, 1e-12);
  EXPECT_NEAR(found.logprob_change().standard_error, change.standard_error, 1e-12);
  EXPECT_NEAR(found.agreement().mean,
              static_cast<double>(same) / static_cast<double>(found.tokens.size()), 1e-15);
  std::ranges::sort(kls);
  EXPECT_NEAR(found.kl_quantile(0.5), (kls[23] + kls[24]) / 2, 1e-12);
  EXPECT_NEAR(found.kl_quantile(1), kls.back(), 1e-12);
}

TEST_F(Quality, ModelsThatCannotBeComparedAreRefused) {
  const auto engine = scoring_engine(model_, 16);
  const VariantFolder other({"blocks", "Q4_K"});
  const auto smaller = scoring_engine(other.path(), 16);
  const std::vector<int32_t> ids = prompt_ids(9, 200);
  const Error error = error_of([&] { compare_models(*engine, *smaller, ids, {.window = 16}); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"256", "200"}));
  EXPECT_TRUE(is_one_line_with(
      error_of([&] { compare_models(*engine, *engine, ids, {.window = 16}); }), {"itself"}));
  const auto shorter = scoring_engine(oracle_folder("llama"), 8);
  EXPECT_TRUE(is_one_line_with(
      error_of([&] { compare_models(*engine, *shorter, ids, {.window = 16}); }), {"9 positions"}));
  EXPECT_THROW(compare_models(*engine, *shorter, {}, {.window = 8}), Error);
}

class FederationQuality : public FederationTest {
 protected:
  std::unique_ptr<Federation> load(int64_t window) const {
    EngineOptions options;
    options.threads = 1;
    options.kv_codecs = {"f32"};
    return Federation::load(separate_, scoring_options(window, options, 7));
  }
};

TEST_F(FederationQuality, AMixtureIsScoredAsItsDefinitionSays) {
  const ExactText moe = exact_text(oracle_folder("qwen3_moe"), prompt_, 17),
                  dense = exact_text(oracle_folder("llama"), prompt_, 17);
  long double joint = 0, of_moe = 0, of_dense = 0, share = 0;
  for (size_t i = 0; i < moe.tokens.size(); ++i) {
    const auto token = static_cast<size_t>(moe.tokens[i]);
    const long double p = exact_logprobs(moe.rows[i])[token],
                      q = exact_logprobs(dense.rows[i])[token];
    const long double mixed = 0.4L * std::exp(p) + 0.6L * std::exp(q);
    joint += std::log(mixed), of_moe += p, of_dense += q;
    share += 0.4L * std::exp(p) / mixed;
  }
  const auto count = static_cast<long double>(moe.tokens.size());
  const auto federation = load(17);
  const TextScore score = score_text(*federation, prompt_, {.window = 17});
  EXPECT_EQ(score.num_tokens(), moe.tokens.size());
  ASSERT_EQ(score.num_specialists(), 2U);
  EXPECT_NEAR(score.logprob(), static_cast<double>(joint / count), 1e-6);  // rows of float32
  EXPECT_NEAR(score.perplexity(0), static_cast<double>(std::exp(-of_moe / count)), 1e-4);
  EXPECT_NEAR(score.perplexity(1), static_cast<double>(std::exp(-of_dense / count)), 1e-4);
  EXPECT_NEAR(score.share(0), static_cast<double>(share / count), 1e-6);
  EXPECT_NEAR(score.share(0) + score.share(1), 1, 1e-12);
}

TEST_F(FederationQuality, ComparesWithOneOfItsSpecialists) {
  const auto federation = load(17);
  const auto engine = scoring_engine(oracle_folder("llama"), 17);
  const ModelComparison found = compare_models(*engine, *federation, prompt_, {.window = 17});
  const TextScore joint = score_text(*federation, prompt_, {.window = 17}),
                  alone = score_text(*engine, prompt_, {.window = 17});
  EXPECT_NEAR(found.first_perplexity, alone.perplexity(), 1e-9);
  EXPECT_NEAR(found.second_perplexity, joint.perplexity(), 1e-9);
  // A mixture holds 0.6 of the specialist: it is no further from it than -log 0.6.
  for (const ComparedToken& token : found.tokens) {
    EXPECT_GT(token.kl, 0);
    EXPECT_LT(token.kl, -std::log(0.6));
  }
}

TEST_F(FederationQuality, TokensAreScoredByTheJoint) {
  const auto federation = load(60);
  const TokenScores scores = score_tokens(*federation, prompt_, {.greedy = 3});
  const TextScore text = score_text(*federation, prompt_, {.window = 60});
  double sum = 0;
  for (const double logprob : scores.logprobs) sum += logprob;
  EXPECT_EQ(sum / static_cast<double>(scores.logprobs.size()), text.logprob());
  double total = 0;
  for (const float logprob : scores.last_logits) total += std::exp(double{logprob});
  EXPECT_NEAR(total, 1, 1e-5);
  ASSERT_EQ(scores.greedy.size(), 3U);
  EXPECT_EQ(scores.greedy[0],
            std::ranges::max_element(scores.last_logits) - scores.last_logits.begin());
}

TEST_F(FederationQuality, TokensOfOtherModelsDoNotAddUp) {
  const auto federation = load(17);
  const auto engine = scoring_engine(oracle_folder("llama"), 17);
  TextScore score = score_text(*federation, prompt_, {.window = 17});
  EXPECT_THROW(predict_windows(*engine, prompt_, {.window = 17},
                               [&](const PredictedToken& token) { score.add(token); }),
               Error);
}

}  // namespace
}  // namespace vitrine::testing
