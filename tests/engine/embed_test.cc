// SPDX-License-Identifier: Apache-2.0
// Embeddings: transformers' last hidden states, pooled as plain arithmetic pools them; the same
// bits whatever shares a step; what is refused.
#include "vitrine/embed.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/engine/engine_fixture.h"
#include "vitrine/model.h"

namespace vitrine::testing {
namespace {

using Vectors = std::vector<std::vector<float>>;

EngineOptions small_options(KernelPath path = KernelPath::kFused) {
  EngineOptions options;
  options.kernels = path;
  options.threads = 1;
  options.max_step_tokens = 24;
  return options;
}

Vectors embed_with(Engine& engine, std::span<const std::vector<int32_t>> texts, Pooling pooling,
                   bool normalize) {
  return embed(engine, texts, {.pooling = pooling, .normalize = normalize});
}

/// What transformers gives, [oracle] tokens and [position][hidden].
const nlohmann::json& oracle_states() {
  static const nlohmann::json states = [] {
    std::ifstream file("tests/data/embeddings/last_hidden_states.json");
    return nlohmann::json::parse(file);
  }();
  return states;
}

/// As numpy has them: a mean over rows, a row, and each divided by its norm.
std::vector<double> pooled(const std::vector<std::vector<double>>& rows, Pooling pooling,
                           bool normalize) {
  const size_t width = rows.at(0).size();
  std::vector<double> vectors;
  for (const auto& row : rows) {
    if (pooling == Pooling::kNone) vectors.insert(vectors.end(), row.begin(), row.end());
  }
  if (pooling == Pooling::kLast) vectors = rows.back();
  if (pooling == Pooling::kCls) vectors = rows.front();
  if (pooling == Pooling::kMean) {
    vectors.resize(width);
    for (const auto& row : rows) {
      for (size_t i = 0; i < width; ++i) vectors[i] += row[i] / static_cast<double>(rows.size());
    }
  }
  for (size_t at = 0; normalize && at < vectors.size(); at += width) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += vectors[at + i] * vectors[at + i];
    for (size_t i = 0; i < width; ++i) vectors[at + i] /= std::sqrt(squares);
  }
  return vectors;
}

constexpr Pooling kAllPoolings[] = {Pooling::kNone, Pooling::kMean, Pooling::kLast, Pooling::kCls};

TEST(Embed, IsWhatTransformersGives) {
  ASSERT_EQ(oracle_states().size(), oracle_names().size());
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    for (const auto& [name, oracle] : oracle_states().items()) {
      const std::vector<std::vector<int32_t>> texts = {oracle.at("tokens")};
      const std::vector<std::vector<double>> rows = oracle.at("states");
      std::unique_ptr<Engine> engine;
      try {
        engine = Engine::load(oracle_folder(name), embedding_options(16, small_options(path)));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kUnavailable) break;  // built without libtorch
        throw;
      }
      double largest = 0;
      for (const auto& row : rows) {
        for (const double value : row) largest = std::max(largest, std::abs(value));
      }
      for (const Pooling pooling : kAllPoolings) {
        for (const bool normalize : {false, true}) {
          const std::vector<double> expected = pooled(rows, pooling, normalize);
          const std::vector<float> found = embed_with(*engine, texts, pooling, normalize).at(0);
          ASSERT_EQ(found.size(), expected.size());
          double error = 0;
          for (size_t i = 0; i < found.size(); ++i) {
            error = std::max(error, std::abs(double{found[i]} - expected[i]));
          }
          EXPECT_LE(error, 1e-4 * (normalize ? 1 : largest))
              << name << ", " << pooling_name(pooling);
        }
      }
    }
  }
}

class EmbedVariants : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(EmbedVariants, BitsAreTheSameAloneInABatchInChunksAndOnTwoThreads) {
  const VariantFolder folder(GetParam());
  EngineOptions alone = small_options();
  alone.max_step_tokens = 512;
  auto engine = Engine::load(folder.path(), embedding_options(100, alone, 1));
  std::vector<std::vector<int32_t>> texts;
  for (const int length : {5, 90, 1, 33, 7, 64, 2, 2, 41}) {
    texts.push_back(
        prompt_ids(length, engine->summary().vocab_size, static_cast<uint32_t>(texts.size() + 1)));
  }
  std::map<Pooling, Vectors> expected;
  for (const Pooling pooling : kAllPoolings) {
    for (const auto& text : texts) {
      expected[pooling].push_back(embed_with(*engine, {&text, 1}, pooling, true).at(0));
    }
  }
  for (const int threads : {1, 2}) {
    for (const int step_tokens : {7, 40, 300}) {
      EngineOptions options = small_options();
      options.threads = threads;
      options.max_step_tokens = step_tokens;
      engine = Engine::load(folder.path(), embedding_options(100, options, 4));
      for (const Pooling pooling : kAllPoolings) {
        EXPECT_EQ(embed_with(*engine, texts, pooling, true), expected[pooling])
            << threads << " threads, " << step_tokens << ", " << pooling_name(pooling);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, EmbedVariants,
                         ::testing::Values(ModelVariant{"qwen3_next", ""},
                                           ModelVariant{"gpt_oss", ""},
                                           ModelVariant{"shipped", ""}),
                         variant_name);

TEST(Embed, AnEngineWithLogitsGivesTheSame) {
  EngineOptions options = test_options();
  options.keep_hidden_state = true;
  auto with_logits = Engine::load(shipped_model(), options);
  auto without = Engine::load(shipped_model(), embedding_options(160, small_options()));
  const std::vector<std::vector<int32_t>> texts = {
      prompt_ids(30, with_logits->summary().vocab_size),
      prompt_ids(12, with_logits->summary().vocab_size, 2)};
  EXPECT_EQ(embed(*with_logits, texts), embed(*without, texts));
  EXPECT_LT(without->summary().arena_bytes + size_t{4} * 300 * 8000,
            with_logits->summary().arena_bytes);
  // One readback a pass, and every sequence was released.
  const uint64_t before = without->readback_count();
  embed(*without, std::span(texts).first(1), {.pooling = Pooling::kLast});
  EXPECT_EQ(without->readback_count() - before, 2u);  // 30 tokens, 24 a step
  const auto [free, total] = without->kv_blocks();
  EXPECT_EQ(free, total);
}

template <typename Call>
std::string message_of(ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(Embed, Refusals) {
  auto engine = Engine::load(oracle_folder("llama"), embedding_options(16, small_options()));
  const auto refusal = [&](Stepper& model, std::vector<std::vector<int32_t>> texts) {
    return message_of(ErrorKind::kInvalidArgument, [&] { embed(model, texts); });
  };
  EXPECT_NE(refusal(*engine, {{1}, {}}).find("text 1 has no token"), std::string::npos);
  EXPECT_NE(refusal(*engine, {{1}, prompt_ids(17, 256)}).find("has 17 tokens"), std::string::npos);
  EXPECT_NE(refusal(*engine, {{256}}).find("id 256"), std::string::npos);
  auto plain = Engine::load(oracle_folder("llama"), test_options());
  EXPECT_NE(refusal(*plain, {{1}}).find("keep_hidden_state"), std::string::npos);
  // What an engine of hidden states alone does not do.
  const std::vector<int32_t> prompt = {1, 2, 3};
  EXPECT_NE(message_of(ErrorKind::kInvalidArgument, [&] { generate(*engine, prompt, {}); })
                .find("hidden_states_only"),
            std::string::npos);
  VectorSink sink;
  EXPECT_NE(message_of(ErrorKind::kUnsupported, [&] { engine->set_audit_sink(&sink); })
                .find("hidden_states_only"),
            std::string::npos);
  SamplerPipeline sampler = SamplerPipeline::from_options({.temperature = 1});
  StepInput input{.sequence = engine->create_sequence(), .tokens = prompt};
  input.sampler = &sampler;
  message_of(ErrorKind::kInvalidArgument, [&] { engine->step({&input, 1}); });
  EXPECT_EQ(engine->length(input.sequence), 0);
  EngineOptions both = embedding_options(16);
  both.keep_logits = true;
  message_of(ErrorKind::kInvalidArgument, [&] { Engine::load(oracle_folder("llama"), both); });
  message_of(ErrorKind::kInvalidArgument, [] { embedding_options(0); });
}

TEST(Embed, NamesOfPoolings) {
  for (const Pooling pooling : kAllPoolings) {
    EXPECT_EQ(find_pooling(pooling_name(pooling)), pooling);
  }
  EXPECT_EQ(find_pooling("rank"), std::nullopt);
}

}  // namespace
}  // namespace vitrine::testing
