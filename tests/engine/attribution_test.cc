// SPDX-License-Identifier: Apache-2.0
// A logit as a sum of terms: the terms add up, both paths agree, and nothing else changes.
#include <cmath>

#include "model/gemma4.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/latent_models.h"

namespace vitrine::testing {
namespace {

using Kind = AuditLayout::Term::Kind;

std::unique_ptr<Engine> load(const std::string& path, KernelPath kernels, bool attribution = true,
                             AuditMode mode = AuditMode::kDeferred) {
  EngineOptions options = test_options(kernels == KernelPath::kFused ? 2 : 1, 16);
  options.kernels = kernels;
  options.audit_mode = mode;
  options.attribution = attribution;
  return Engine::load(path, options);
}

/// Scores a prompt and generates one token behind it; every row's record.
std::vector<TokenRecord> records_of(Engine& engine, std::span<const int32_t> ids,
                                    SamplerPipeline* sampler = nullptr) {
  VectorSink sink;
  engine.set_audit_sink(&sink);
  const SequenceId sequence = engine.create_sequence();
  StepInput input;
  input.sequence = sequence;
  input.tokens = ids;
  input.rows = StepInput::Rows::kAll;
  input.sampler = sampler;
  engine.step({&input, 1});
  engine.release(sequence);
  engine.set_audit_sink(nullptr);
  return sink.take();
}

double largest_term(const AttributionRecord& attribution) {
  double largest = 0;
  for (const TermRecord& term : attribution.terms) {
    largest = std::max({largest, std::abs(double{term.value}), std::abs(double{term.runner_up})});
  }
  return largest;
}

class Attribution : public ::testing::TestWithParam<ModelVariant> {
 protected:
  Attribution() : folder_(GetParam()) {}
  VariantFolder folder_;
};

TEST_P(Attribution, TermsAddUpToTheLogit) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto engine = load(folder_.path(), path);
    const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size);
    const std::vector<TokenRecord> records = records_of(*engine, ids);
    ASSERT_EQ(records.size(), ids.size());
    for (const TokenRecord& record : records) {
      ASSERT_TRUE(record.has_prediction);
      const AttributionRecord& attribution = record.prediction.attribution;
      const double largest = largest_term(attribution);
      EXPECT_GT(largest, 0);
      EXPECT_LE(std::abs(attribution.rounding), 1e-4 * largest);
      EXPECT_LE(std::abs(attribution.runner_up_rounding), 1e-4 * largest);
      EXPECT_NE(attribution.runner_up, record.prediction.token);
      EXPECT_GE(attribution.runner_up, 0);
    }
  }
}

TEST_P(Attribution, BothPathsAgree) {
  auto fused = load(folder_.path(), KernelPath::kFused);
  auto reference = load(folder_.path(), KernelPath::kReference);
  const std::vector<int32_t> ids = prompt_ids(33, fused->summary().vocab_size, 4);
  const auto one = records_of(*fused, ids), other = records_of(*reference, ids);
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const AttributionRecord& a = one[i].prediction.attribution;
    const AttributionRecord& b = other[i].prediction.attribution;
    ASSERT_EQ(a.terms.size(), b.terms.size());
    const double tolerance = 1e-3 * largest_term(b);
    EXPECT_EQ(a.runner_up, b.runner_up);
    for (size_t t = 0; t < a.terms.size(); ++t) {
      EXPECT_EQ(a.terms[t].kind, b.terms[t].kind);
      EXPECT_EQ(a.terms[t].layer, b.terms[t].layer);
      EXPECT_EQ(a.terms[t].expert, b.terms[t].expert);
      EXPECT_NEAR(a.terms[t].value, b.terms[t].value, tolerance) << "term " << t;
      EXPECT_NEAR(a.terms[t].runner_up, b.terms[t].runner_up, tolerance) << "term " << t;
    }
  }
}

// A head that is read from the file once the plan stands has its rows by then.
TEST(AttributionOfBlocks, TermsAreThoseOfTheMappedFile) {
  const TemporaryFolder folder;
  for (const char* type : {"Q8_0", "Q4_0", "Q4_1", "Q6_K", "IQ4_XS", "MXFP4"}) {
    const std::string path = folder.path() + "/" + type + ".gguf";
    write_bytes(path, BlockModel(type).bytes());
    EngineOptions options = test_options(2, 16);
    options.audit_mode = AuditMode::kDeferred;
    options.attribution = true;
    auto engine = Engine::load(path, options);
    options.mmap_weights = true;
    auto mapped = Engine::load(path, options);
    const std::vector<int32_t> ids = prompt_ids(9, engine->summary().vocab_size);
    const auto one = records_of(*engine, ids), other = records_of(*mapped, ids);
    ASSERT_EQ(one.size(), ids.size());
    for (size_t i = 0; i < one.size(); ++i) {
      const AttributionRecord& a = one[i].prediction.attribution;
      const AttributionRecord& b = other[i].prediction.attribution;
      const double largest = largest_term(a);
      EXPECT_GT(largest, 0) << type;
      EXPECT_LE(std::abs(a.rounding), 0.1 * largest) << type;
      ASSERT_EQ(a.terms.size(), b.terms.size());
      for (size_t t = 0; t < a.terms.size(); ++t) {
        EXPECT_NEAR(a.terms[t].value, b.terms[t].value, 1e-5 * largest) << type << ", term " << t;
      }
    }
  }
}

// One embedding, one attention a layer, then a dense block or top_k experts and a shared one; of
// gemma4 both, or what it makes of the layer's inputs, and at the end the logits' cap.
TEST_P(Attribution, EveryPartHasItsTerm) {
  auto engine = load(folder_.path(), KernelPath::kFused);
  const AuditLayout& layout = engine->audit_layout();
  const std::string& name = GetParam().name;
  const bool has_shared = name == "qwen2_moe" || name == "dots1" || name == "glm4_moe" ||
                          name == "ernie4_5_moe" || name == "qwen3_next" ||
                          name == "qwen3_5_moe_text" || is_latent(name);
  size_t next = 0;
  ASSERT_FALSE(layout.terms.empty());
  EXPECT_EQ(layout.terms[next++], (AuditLayout::Term{Kind::kEmbedding, -1, -1}));
  for (const AuditLayout::Layer& layer : layout.layers) {
    EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kAttention, layer.layer, -1}));
    if (layer.expert_ids < 0) {
      EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kDense, layer.layer, -1}));
      if (name == "gemma4_text_e") {
        EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kLayerInput, layer.layer, -1}));
      }
      continue;
    }
    for (int32_t slot = 0; slot < layer.top_k; ++slot) {
      EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kExpert, layer.layer, slot}));
    }
    if (has_shared) {
      EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kShared, layer.layer, -1}));
    }
    if (name == "gemma4_text") {
      EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kDense, layer.layer, -1}));
    }
  }
  if (name.starts_with("gemma4")) {
    EXPECT_EQ(layout.terms.at(next++), (AuditLayout::Term{Kind::kSoftCap, -1, -1}));
  }
  EXPECT_EQ(next, layout.terms.size());
}

TEST_P(Attribution, ChangesNoResult) {
  auto with = load(folder_.path(), KernelPath::kFused);
  auto without = load(folder_.path(), KernelPath::kFused, /*attribution=*/false);
  const std::vector<int32_t> ids = prompt_ids(50, with->summary().vocab_size, 2);
  VectorSink sink;
  with->set_audit_sink(&sink);
  EXPECT_TRUE(same_bits(score(*without, ids), score(*with, ids, 7), ids.size()));
}

// A step of one token keeps its experts' outputs where they are made; a longer one copies them.
TEST_P(Attribution, TokenByTokenTheSameTerms) {
  auto engine = load(folder_.path(), KernelPath::kFused);
  const std::vector<int32_t> ids = prompt_ids(14, engine->summary().vocab_size, 6);
  const SequenceId sequence = engine->create_sequence();
  const size_t cuts[] = {0, 1, 2, 6, 7, 12, 13, 14};  // one token between longer steps
  for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
    const auto whole = records_of(*engine, std::span(ids).first(cuts[i + 1]));
    VectorSink sink;
    engine->set_audit_sink(&sink);
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span(ids).subspan(cuts[i], cuts[i + 1] - cuts[i]);
    input.rows = StepInput::Rows::kAll;
    engine->step({&input, 1});
    engine->set_audit_sink(nullptr);
    const auto part = sink.take();
    ASSERT_EQ(part.size(), input.tokens.size());
    for (size_t row = 0; row < part.size(); ++row) {
      const auto& a = part[row].prediction.attribution.terms;
      const auto& b = whole[cuts[i] + row].prediction.attribution.terms;
      ASSERT_EQ(a.size(), b.size());
      for (size_t t = 0; t < a.size(); ++t) {
        EXPECT_EQ(a[t].value, b[t].value) << "token " << cuts[i] + row << " term " << t;
        EXPECT_EQ(a[t].runner_up, b[t].runner_up) << "token " << cuts[i] + row << " term " << t;
      }
    }
  }
}

// The host's sampler chooses in the middle of the pass: the same token as without attribution.
TEST_P(Attribution, OfASampledToken) {
  auto with = load(folder_.path(), KernelPath::kFused);
  auto without = load(folder_.path(), KernelPath::kFused, /*attribution=*/false);
  SamplerPipeline sampler = SamplerPipeline::from_options({.temperature = 2.0F});
  int not_the_best = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    const std::vector<int32_t> ids = prompt_ids(9, with->summary().vocab_size, seed);
    const uint64_t readbacks = with->readback_count();
    const TokenRecord one = records_of(*with, ids, &sampler).back();
    EXPECT_EQ(with->readback_count(), readbacks + 1);
    const TokenRecord other = records_of(*without, ids, &sampler).back();
    EXPECT_EQ(one.prediction.token, other.prediction.token);
    EXPECT_EQ(one.prediction.logprob, other.prediction.logprob);
    const AttributionRecord& attribution = one.prediction.attribution;
    EXPECT_LE(std::abs(attribution.rounding), 1e-4 * largest_term(attribution));
    not_the_best += one.prediction.token != one.prediction.alternatives[0].token ? 1 : 0;
    const int rank = one.prediction.token == one.prediction.alternatives[0].token ? 1 : 0;
    EXPECT_EQ(attribution.runner_up, one.prediction.alternatives[static_cast<size_t>(rank)].token);
  }
  EXPECT_GT(not_the_best, 0);
}

TEST_P(Attribution, NaiveRecordsTheSame) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto deferred = load(folder_.path(), path);
    auto naive = load(folder_.path(), path, true, AuditMode::kNaive);
    const std::vector<int32_t> ids = prompt_ids(12, deferred->summary().vocab_size);
    const auto one = records_of(*deferred, ids), other = records_of(*naive, ids);
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      const auto& a = one[i].prediction.attribution.terms;
      const auto& b = other[i].prediction.attribution.terms;
      ASSERT_EQ(a.size(), b.size());
      for (size_t t = 0; t < a.size(); ++t) EXPECT_EQ(a[t].value, b[t].value);
    }
  }
}

std::vector<ModelVariant> float_models() {
  std::vector<ModelVariant> all;
  for (const std::string& name : oracle_names()) all.push_back({name, "", 0});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Attribution, ::testing::ValuesIn(float_models()), variant_name);

// Without its cap the logit is the sum of all terms but one, which is what the cap takes.
TEST(AttributionOfASoftCap, TheCapHasATermOfItsOwn) {
  const Checkpoint checkpoint = Checkpoint::open(oracle_folder("gemma4_text"));
  const double cap =
      parse_model_config(checkpoint).own_fields<model::Gemma4Fields>().final_logit_softcapping;
  auto engine = load(oracle_folder("gemma4_text"), KernelPath::kFused);
  const std::vector<int32_t> ids = prompt_ids(30, engine->summary().vocab_size, 3);
  double most = 0;
  for (const TokenRecord& record : records_of(*engine, ids)) {
    const AttributionRecord& attribution = record.prediction.attribution;
    double sum = 0;
    for (const TermRecord& term : attribution.terms) {
      if (term.kind != Kind::kSoftCap) sum += double{term.value};
    }
    EXPECT_NEAR(attribution.logit, cap * std::tanh(sum / cap), 1e-5 * largest_term(attribution));
    ASSERT_EQ(attribution.terms.back().kind, Kind::kSoftCap);
    EXPECT_NEAR(attribution.terms.back().value, double{attribution.logit} - sum,
                1e-5 * largest_term(attribution));
    most = std::max(most, std::abs(sum - double{attribution.logit}));
  }
  EXPECT_GT(most, 0.05 * cap);
}

// Steps of one row keep the newest directions, 512 tokens apart in the same place: here a token and
// its runner-up often share one, and take it from each other again and again.
TEST(QuantizedAttribution, ADirectionThatIsKeptIsItsTokens) {
  auto engine = load(shipped_model(), KernelPath::kFused);
  std::vector<int32_t> ids = {7};
  for (int32_t i = 0; i < 40; ++i) {
    const int32_t best = records_of(*engine, ids).back().prediction.token;
    ids.push_back((best + i % 3 * 512) % engine->summary().vocab_size);
  }
  const std::vector<TokenRecord> whole = records_of(*engine, ids);
  const SequenceId sequence = engine->create_sequence();
  int share_a_place = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    VectorSink sink;
    engine->set_audit_sink(&sink);
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span(ids).subspan(i, 1);
    input.next_token = ids[i + 1];
    engine->step({&input, 1});
    engine->set_audit_sink(nullptr);
    const AttributionRecord a = sink.take().back().prediction.attribution;
    const AttributionRecord& b = whole[i].prediction.attribution;
    ASSERT_EQ(a.runner_up, b.runner_up);
    share_a_place += a.runner_up != ids[i + 1] && (a.runner_up - ids[i + 1]) % 512 == 0 ? 1 : 0;
    for (size_t t = 0; t < a.terms.size(); ++t) {
      EXPECT_EQ(a.terms[t].value, b.terms[t].value) << "token " << i << " term " << t;
      EXPECT_EQ(a.terms[t].runner_up, b.terms[t].runner_up) << "token " << i << " term " << t;
    }
  }
  EXPECT_GT(share_a_place, 20);
}

// With a quantized head the logit is an integer dot: what it differs by is the rounding term, and
// small beside the terms.
TEST(QuantizedAttribution, RoundingIsTheQuantizationOfTheHead) {
  auto engine = load(shipped_model(), KernelPath::kFused);
  const std::vector<int32_t> ids = prompt_ids(60, engine->summary().vocab_size);
  double sum = 0;
  for (const TokenRecord& record : records_of(*engine, ids)) {
    const AttributionRecord& attribution = record.prediction.attribution;
    EXPECT_LE(std::abs(attribution.rounding), 0.05 * largest_term(attribution));
    sum += std::abs(attribution.rounding);
  }
  EXPECT_GT(sum, 0);
}

TEST(ReferenceAttribution, OfASampledTokenIsRefused) {
  auto engine = load(oracle_folder("llama"), KernelPath::kReference);
  SamplerPipeline sampler = SamplerPipeline::from_options({.temperature = 1.0F});
  VectorSink sink;
  engine->set_audit_sink(&sink);
  const SequenceId sequence = engine->create_sequence();
  const std::vector<int32_t> ids = {1, 2, 3};
  StepInput input;
  input.sequence = sequence;
  input.tokens = ids;
  input.sampler = &sampler;
  const Error error = error_of([&] { engine->step({&input, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"attribution", "temperature 0"})) << error.what();
  EXPECT_EQ(engine->length(sequence), 0);
}

}  // namespace
}  // namespace vitrine::testing
