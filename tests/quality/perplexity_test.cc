// SPDX-License-Identifier: Apache-2.0
// Perplexity of chunks against rows that were computed a token at a time, llama.cpp's file of
// log-probabilities, and reports against numpy (divergence.json, which divergence.py writes).
#include "vitrine/perplexity.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/federation_fixture.h"

namespace vitrine::testing {
namespace {

using Json = nlohmann::json;

const Json& oracle() {
  static const Json read = Json::parse(std::ifstream("tests/quality/divergence.json"));
  return read;
}

std::vector<DivergedToken> diverged_tokens() {
  std::vector<DivergedToken> tokens;
  for (size_t i = 0; i < oracle()["tokens"].size(); ++i) {
    const Json& row = oracle()["rows"][i];
    std::vector<float> base;
    for (const Json& value : row[2]) {
      base.push_back(row[0].get<float>() * value.get<float>() + row[1].get<float>());
    }
    tokens.push_back(compare_with_base(oracle()["logits"][i].get<std::vector<float>>(), base,
                                       oracle()["tokens"][i]));
  }
  return tokens;
}

TEST(Divergence, ReportsAgreeWithNumpy) {
  const DivergenceReport report = divergence_report(diverged_tokens());
  const auto expect = [](const char* name, const Estimate& found) {
    const double mean = oracle()[name][0], error = oracle()[name][1];
    EXPECT_NEAR(found.mean, mean, 1e-6 * (1 + std::abs(mean))) << name;
    EXPECT_NEAR(found.standard_error, error, 1e-6 * (1 + error)) << name;
  };
  EXPECT_EQ(report.num_tokens, 60U);
  expect("perplexity", report.perplexity);
  expect("base_perplexity", report.base_perplexity);
  expect("log_ratio", report.log_ratio);
  expect("ratio", report.ratio);
  expect("difference", report.difference);
  expect("kl", report.kl);
  expect("delta_p", report.delta_p);
  expect("rms_delta_p", report.rms_delta_p);
  expect("same_best", report.same_best);
  EXPECT_NEAR(report.correlation, oracle()["correlation"], 1e-6);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_NEAR(report.kls[i], oracle()["kls"][i], 1e-6);
    EXPECT_NEAR(report.delta_ps[i], oracle()["delta_ps"][i], 1e-6);
  }
  EXPECT_THROW(divergence_report({}), Error);
  EXPECT_THROW(compare_with_base(std::vector<float>{1, 2}, std::vector<float>{-1}, 0), Error);
  EXPECT_THROW(compare_with_base(std::vector<float>{1}, std::vector<float>{0}, 1), Error);
}

TEST(Divergence, TokensWithoutADifferenceAreCountedSafely) {
  const std::vector<float> logits{1, 2, 3};
  std::vector<float> base;
  for (const float logit : logits) base.push_back(logit - 3.40760596f);
  const std::vector<DivergedToken> tokens(3, compare_with_base(logits, base, 1));
  const DivergenceReport report = divergence_report(tokens);
  EXPECT_NEAR(report.kl.mean, 0, 1e-6);
  EXPECT_EQ(report.same_best.mean, 1);
  EXPECT_NEAR(report.log_ratio.standard_error, 0, 1e-6);
}

/// 60 rows of 13 tokens fill 4 chunks of 32 ids, 15 rows each.
LogprobFileHead small_head() { return {32, 13, 4, std::vector<int32_t>(128, 5)}; }

void write_small(const std::string& path) {
  LogprobFileWriter writer(path, small_head());
  for (const Json& row : oracle()["base_logits"]) writer.add(row.get<std::vector<float>>());
  writer.finish();
}

TEST(LogprobFile, IsThatOfLlamaCpp) {
  TemporaryFolder folder;
  const std::string path = folder / "base";
  write_small(path);
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(bytes.size(), 8U + 12 + 128 * 4 + 60 * (14 + 4) * 2);
  EXPECT_EQ(bytes.substr(0, 8), "_logits_");
  int32_t numbers[3];
  std::memcpy(numbers, bytes.data() + 8, sizeof numbers);
  EXPECT_EQ((std::vector<int32_t>{numbers, numbers + 3}), (std::vector<int32_t>{32, 13, 4}));
  LogprobFileReader reader(path);
  EXPECT_EQ(reader.head().ids, small_head().ids);
  std::vector<float> row(13);
  for (size_t i = 0; i < 60; ++i) {
    const char* at = bytes.data() + 8 + 12 + 512 + i * 36;
    float told[2];
    uint16_t values[14];
    std::memcpy(told, at, 8);
    std::memcpy(values, at + 8, 28);
    const Json& expected = oracle()["rows"][i];
    EXPECT_EQ(told[0], expected[0].get<float>()) << i;
    EXPECT_NEAR(told[1], expected[1].get<float>(), 2e-6) << i;
    reader.next(row);
    for (size_t id = 0; id < 13; ++id) {
      EXPECT_EQ(values[id], expected[2][id].get<int>()) << i << " " << id;
      EXPECT_EQ(row[id], told[0] * values[id] + told[1]);
    }
  }
  EXPECT_THROW(reader.next(row), Error);
}

TEST(LogprobFile, WhatIsNoneIsRefused) {
  TemporaryFolder folder;
  const std::string path = folder / "base";
  write_small(path);
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const auto refusal = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    const Error error = error_of([&] { LogprobFileReader reader(path); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    return error;
  };
  const auto with_number = [&](size_t place, int32_t number) {
    std::string bytes = good;
    std::memcpy(bytes.data() + place, &number, 4);
    return bytes;
  };
  EXPECT_TRUE(is_one_line_with(refusal(""), {"_logits_"}));
  EXPECT_TRUE(is_one_line_with(refusal("_logits_"), {"_logits_"}));
  EXPECT_TRUE(is_one_line_with(refusal("x" + good), {"_logits_"}));
  EXPECT_TRUE(is_one_line_with(refusal(good.substr(0, good.size() - 1)), {"bytes", "cut off"}));
  EXPECT_TRUE(is_one_line_with(refusal(good + "x"), {"bytes"}));
  EXPECT_TRUE(is_one_line_with(refusal(with_number(8, -1)), {"n_ctx", "-1"}));
  EXPECT_TRUE(is_one_line_with(refusal(with_number(12, 0)), {"n_vocab", "0"}));
  EXPECT_TRUE(is_one_line_with(refusal(with_number(16, 1 << 30)), {"n_chunk"}));
  EXPECT_TRUE(is_one_line_with(refusal(with_number(16, 1 << 20)), {"bytes"}));
  EXPECT_TRUE(is_one_line_with(refusal(with_number(20, 13)), {"id 13", "0 to 12"}));
  EXPECT_EQ(error_of([&] { LogprobFileReader reader(folder / "none"); }).kind(), ErrorKind::kIo);
  std::ofstream(path, std::ios::binary) << with_number(8 + 12 + 512, 0x7fc00000);
  LogprobFileReader reader(path);
  std::vector<float> row(13);
  EXPECT_EQ(error_of([&] { reader.next(row); }).kind(), ErrorKind::kBadFile);
}

TEST(LogprobFile, APartNeverHasItsName) {
  TemporaryFolder folder;
  const std::string path = folder / "base";
  {
    LogprobFileWriter writer(path, small_head());
    writer.add(oracle()["base_logits"][0].get<std::vector<float>>());
    EXPECT_THROW(writer.finish(), Error);
    EXPECT_THROW(writer.add(std::vector<float>(12)), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "."));
  EXPECT_THROW(LogprobFileWriter(path, {32, 13, 4, {1, 2}}), Error);
}

TEST(Chunks, AreScoredAsTokensOneByOne) {
  const std::string model = oracle_folder("qwen3_moe");
  const std::vector<int32_t> ids = prompt_ids(53, 256);
  EngineOptions options;
  options.threads = 1;
  options.kv_codecs = {"f32"};
  const auto engine = Engine::load(model, scoring_options(16, options, 7));
  for (const bool scores_all : {false, true}) {
    for (const int32_t begin : {-1, 9}) {
      const ChunkOptions chunks{.context = 16, .begin_token = begin, .scores_all = scores_all};
      std::vector<ChunkToken> found;
      score_chunks(*engine, ids, chunks, [&](const ChunkToken& token) { found.push_back(token); });
      ASSERT_EQ(found.size(), 3U * (scores_all ? 15 : 7));  // what is left of the text is no chunk
      EngineOptions single = test_options();
      single.kv_codecs = {"f32"};
      size_t at = 0;
      for (size_t chunk = 0; chunk < 3; ++chunk) {
        std::vector<int32_t> of(ids.begin() + static_cast<ptrdiff_t>(16 * chunk),
                                ids.begin() + static_cast<ptrdiff_t>(16 * chunk + 16));
        if (begin >= 0) of.front() = begin;
        const Rows rows = score(*Engine::load(model, single), of, 1);
        for (size_t place = scores_all ? 1 : 9; place < 16; ++place, ++at) {
          EXPECT_EQ(found[at].chunk, chunk);
          EXPECT_EQ(found[at].position, static_cast<int64_t>(place));
          EXPECT_EQ(found[at].token, of[place]);
          EXPECT_EQ(found[at].logprob,
                    logprob_of(rows.at(static_cast<int64_t>(place) - 1), of[place]));
        }
      }
    }
  }
  EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
}

TEST(Chunks, WhatCannotBeScoredIsRefused) {
  EXPECT_EQ(count_chunks(53, {.context = 16, .most_chunks = 2}), 2U);
  EXPECT_EQ(count_chunks(53, {.context = 16, .most_chunks = 9}), 3U);
  const auto refusal = [](size_t ids, const ChunkOptions& options) {
    return error_of([&] { count_chunks(ids, options); });
  };
  EXPECT_TRUE(is_one_line_with(refusal(15, {.context = 16}), {"15 ids", "16"}));
  EXPECT_TRUE(is_one_line_with(refusal(15, {.context = 3}), {"3 ids", "4"}));
  EXPECT_TRUE(is_one_line_with(refusal(99, {.context = 16, .most_chunks = -1}), {"-1"}));
}

TEST(TokenLosses, HaveTheMeansError) {
  TokenLosses losses;
  for (const double logprob : {-1.0, -2.0, -3.0, -6.0}) losses.add(logprob);
  // The mean is 3, the variance of the values 3.5, divided by 3.
  EXPECT_NEAR(losses.perplexity().mean, std::exp(3.0), 1e-12);
  EXPECT_NEAR(losses.perplexity().standard_error, std::exp(3.0) * std::sqrt(3.5 / 3), 1e-12);
  EXPECT_TRUE(std::isnan(TokenLosses().perplexity().mean));
}

}  // namespace
}  // namespace vitrine::testing
