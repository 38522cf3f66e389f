// SPDX-License-Identifier: Apache-2.0
// The recorder: three modes that tell the same, one readback a pass, records that agree with the
// logits, and nothing changed by recording.
#include <cmath>
#include <limits>
#include <set>

#include "tests/engine/audit_passes.h"
#include "tests/engine/latent_models.h"
#include "tests/support/logits_digest.h"

namespace vitrine::testing {
namespace {

class Audit : public ::testing::TestWithParam<ModelVariant> {
 protected:
  Audit() : folder_(GetParam()) {}
  void load_and_run(KernelPath path, AuditMode mode, AuditLevel level, Passes& result) {
    auto engine = Engine::load(folder_.path(), audit_options(path, mode, level));
    run_passes(*engine, result);
  }
  VariantFolder folder_;
};

TEST_P(Audit, NaiveTellsWhatDeferredTells) {
  for (KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    for (AuditLevel level : {AuditLevel::kStandard, AuditLevel::kFull}) {
      Passes deferred, naive;
      load_and_run(path, AuditMode::kDeferred, level, deferred);
      load_and_run(path, AuditMode::kNaive, level, naive);
      ASSERT_EQ(deferred.sink.records().size(), deferred.passes);
      EXPECT_TRUE(deferred.sink.records() == naive.sink.records())
          << "path " << static_cast<int>(path) << ", level " << static_cast<int>(level);
      EXPECT_EQ(deferred.readbacks, deferred.passes);
      EXPECT_GT(naive.readbacks, 2 * naive.passes);
    }
  }
}

TEST_P(Audit, ChangesNoBitOfTheLogits) {
  for (KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    Passes none;
    load_and_run(path, AuditMode::kNone, AuditLevel::kStandard, none);
    EXPECT_TRUE(none.sink.records().empty());
    EXPECT_EQ(none.readbacks, none.passes);
    for (AuditMode mode : {AuditMode::kNaive, AuditMode::kDeferred}) {
      Passes audited;
      load_and_run(path, mode, AuditLevel::kFull, audited);
      EXPECT_TRUE(same_bits(none.rows, audited.rows, none.rows.size()));
      EXPECT_EQ(none.tokens, audited.tokens);
    }
  }
}

TEST_P(Audit, ModesCanBeSwitchedOnOneEngine) {
  auto engine = Engine::load(
      folder_.path(), audit_options(KernelPath::kFused, AuditMode::kNone, AuditLevel::kStandard));
  std::vector<std::vector<std::byte>> records[2];
  size_t i = 0;
  for (AuditMode mode : {AuditMode::kNone, AuditMode::kDeferred, AuditMode::kNaive}) {
    engine->set_audit_mode(mode);
    Passes result;
    run_passes(*engine, result);
    EXPECT_EQ(result.sink.records().empty(), mode == AuditMode::kNone);
    if (mode != AuditMode::kNone) records[i++] = result.sink.records();
    EXPECT_EQ(result.readbacks == result.passes, mode != AuditMode::kNaive);
  }
  ASSERT_EQ(records[0].size(), records[1].size());
  for (size_t pass = 0; pass < records[0].size(); ++pass) {
    // Passes and sequences are numbered on; the words behind the tokens are the same.
    AuditPassHeader header;
    std::memcpy(&header, records[0][pass].data(), sizeof(header));
    const size_t words = sizeof(header) + header.num_tokens * sizeof(AuditToken);
    EXPECT_TRUE(std::equal(records[0][pass].begin() + static_cast<ptrdiff_t>(words),
                           records[0][pass].end(),
                           records[1][pass].begin() + static_cast<ptrdiff_t>(words)));
  }
}

// What a sequence's records say depends neither on its batch nor on the chunks.
TEST_P(Audit, RecordsAreInvariant) {
  auto engine = Engine::load(
      folder_.path(), audit_options(KernelPath::kFused, AuditMode::kDeferred, AuditLevel::kFull));
  const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size);
  std::vector<TokenRecord> whole;
  for (size_t chunk : {0, 1, 7}) {
    VectorSink sink;
    engine->set_audit_sink(&sink);
    score(*engine, ids, chunk);
    std::vector<TokenRecord> records = sink.take();
    engine->set_audit_sink(nullptr);
    ASSERT_EQ(records.size(), ids.size());
    if (chunk == 0) whole = std::move(records);
    for (size_t i = 0; i < records.size(); ++i) {
      ASSERT_EQ(records[i].layers.size(), whole[i].layers.size());
      EXPECT_EQ(records[i].position, static_cast<int64_t>(i));
      EXPECT_EQ(records[i].token, ids[i]);
      for (size_t l = 0; l < whole[i].layers.size(); ++l) {
        EXPECT_EQ(records[i].layers[l].residual_norm, whole[i].layers[l].residual_norm);
        EXPECT_EQ(records[i].layers[l].router_probs, whole[i].layers[l].router_probs);
        const std::vector<SelectionRecord>&one = records[i].layers[l].selection,
              &other = whole[i].layers[l].selection;
        ASSERT_EQ(one.size(), other.size());
        for (size_t slot = 0; slot < one.size(); ++slot) {
          EXPECT_EQ(one[slot].score, other[slot].score);
          EXPECT_EQ(one[slot].key, other[slot].key);
        }
      }
      EXPECT_EQ(records[i].prediction.entropy, whole[i].prediction.entropy);
      EXPECT_EQ(records[i].prediction.logits_digest, whole[i].prediction.logits_digest);
    }
  }
}

// Nor on the threads, nor on the batch, nor on what chose the token.
TEST_P(Audit, LogitsDigestsAreInvariant) {
  std::map<int64_t, uint64_t> digests;
  for (const int threads : {1, 2}) {
    EngineOptions options =
        audit_options(KernelPath::kFused, AuditMode::kDeferred, AuditLevel::kStandard);
    options.threads = threads;
    auto engine = Engine::load(folder_.path(), options);
    const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size);
    const std::vector<int32_t> other = prompt_ids(40, engine->summary().vocab_size, 4);
    for (const bool alone : {true, false}) {
      VectorSink sink;
      engine->set_audit_sink(&sink);
      StepInput inputs[2];
      inputs[0].sequence = engine->create_sequence();
      inputs[1].sequence = engine->create_sequence();
      inputs[0].tokens = ids;
      inputs[1].tokens = other;
      inputs[0].rows = inputs[1].rows = StepInput::Rows::kAll;
      std::swap(inputs[0], inputs[alone ? 0 : 1]);
      engine->step(std::span(inputs).first(alone ? 1 : 2));
      const SequenceId ours = inputs[alone ? 0 : 1].sequence;
      for (const TokenRecord& record : sink.take()) {
        if (record.sequence != ours) continue;
        const auto [found, is_new] =
            digests.emplace(record.position, record.prediction.logits_digest);
        EXPECT_EQ(found->second, record.prediction.logits_digest);
        EXPECT_NE(record.prediction.logits_digest, 0u);
        EXPECT_EQ(is_new, threads == 1 && alone);
      }
      engine->set_audit_sink(nullptr);
      engine->release(inputs[0].sequence);
      engine->release(inputs[1].sequence);
    }
  }
  EXPECT_EQ(digests.size(), 40u);
}

double log_softmax(std::span<const float> logits, int32_t token, double* entropy = nullptr) {
  double sum = 0, largest = -INFINITY, mean = 0;
  for (float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  for (float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  for (float logit : logits) mean += std::exp(logit - log_sum) * (logit - log_sum);
  if (entropy != nullptr) *entropy = -mean;
  return logits[static_cast<size_t>(token)] - log_sum;
}

void check_prediction(const TokenRecord& record, std::span<const float> logits) {
  ASSERT_TRUE(record.has_prediction);
  double entropy = 0;
  const PredictionRecord& prediction = record.prediction;
  EXPECT_NEAR(prediction.logprob, log_softmax(logits, prediction.token, &entropy), 2e-5);
  EXPECT_NEAR(prediction.entropy, entropy, 5e-5);
  EXPECT_EQ(prediction.logits_digest, testing_support::logits_digest(logits));
  ASSERT_EQ(prediction.alternatives.size(), std::min<size_t>(kAuditTopTokens, logits.size()));
  std::vector<std::pair<float, int32_t>> best;
  for (size_t id = 0; id < logits.size(); ++id) {
    best.emplace_back(-logits[id], static_cast<int32_t>(id));
  }
  std::sort(best.begin(), best.end());
  for (size_t i = 0; i < prediction.alternatives.size(); ++i) {
    const AlternativeRecord& alternative = prediction.alternatives[i];
    EXPECT_EQ(logits[static_cast<size_t>(alternative.token)], -best[i].first);
    EXPECT_NEAR(alternative.logprob, log_softmax(logits, alternative.token), 2e-5);
  }
}

TEST_P(Audit, PredictionsAgreeWithTheLogits) {
  for (KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    Passes result;
    load_and_run(path, AuditMode::kDeferred, AuditLevel::kStandard, result);
    const std::vector<TokenRecord> records = result.sink.take();
    ASSERT_EQ(records.size(), 17u + 6u + 4u + 6u);
    const uint64_t sequence = records[0].sequence;
    const std::vector<int32_t> one = prompt_ids(21, 256, 1);
    size_t checked = 0;
    for (const TokenRecord& record : records) {
      if (record.sequence != sequence) continue;
      const auto row = result.rows.find(record.position);
      EXPECT_EQ(record.has_prediction, row != result.rows.end()) << record.position;
      if (row == result.rows.end()) continue;
      check_prediction(record, row->second);
      EXPECT_EQ(record.prediction.generated, record.position >= 20);
      const auto best = std::max_element(row->second.begin(), row->second.end());
      EXPECT_EQ(record.prediction.token, record.position < 17
                                             ? one[static_cast<size_t>(record.position) + 1]
                                             : best - row->second.begin());
      ++checked;
    }
    EXPECT_EQ(checked, 17u + 1u + 3u);
  }
}

/// Routers that choose by scores, most of them with a correction.
bool has_scores(const std::string& name) {
  return name == "dots1" || name == "glm4_moe" || name == "minimax_m2" || name == "ernie4_5_moe" ||
         name == "lfm2_moe" || is_latent(name);
}

/// Scores are those of the whole distribution, and keys what the slots are ordered by; a plain
/// router has none.
void expect_selection(const LayerRecord& layer, bool is_scored) {
  EXPECT_EQ(layer.router != RouterKind::kPlain, is_scored);
  ASSERT_EQ(layer.selection.size(), is_scored ? layer.routes.size() : 0);
  for (size_t slot = 0; slot < layer.selection.size(); ++slot) {
    const SelectionRecord& of = layer.selection[slot];
    EXPECT_EQ(of.score, layer.router_probs.at(static_cast<size_t>(layer.routes[slot].expert)));
    if (slot > 0) {
      EXPECT_LE(of.key, layer.selection[slot - 1].key);
    }
  }
}

/// Weights are the scores times one factor; no expert stands twice.
void expect_weights_of_scores(const LayerRecord& layer) {
  std::set<int32_t> experts;
  const auto score = [&](const RouteRecord& route) {
    return double{layer.router_probs.at(static_cast<size_t>(route.expert))};
  };
  const double factor = layer.routes[0].weight / score(layer.routes[0]);
  for (const RouteRecord& route : layer.routes) {
    EXPECT_TRUE(experts.insert(route.expert).second);
    EXPECT_NEAR(route.weight, factor * score(route), 1e-5);
    EXPECT_GT(route.weight, 0);
  }
}

// The routes of a record are what its router's whole distribution makes them.
TEST_P(Audit, RoutesFollowFromTheRouterProbabilities) {
  auto engine = Engine::load(
      folder_.path(), audit_options(KernelPath::kFused, AuditMode::kDeferred, AuditLevel::kFull));
  const ModelSummary& summary = engine->summary();
  const std::string& name = GetParam().name;
  const bool normalized = name == "mixtral" || name == "qwen3_moe" || name == "granitemoe" ||
                          name == "gpt_oss" || name == "qwen3_5_moe_text" || name == "gemma4_text";
  const bool has_dense_layers = name == "qwen3_moe_sparse2" || name == "dots1" ||
                                name == "glm4_moe" || name == "ernie4_5_moe" ||
                                name == "lfm2_moe" || name == "qwen3_next" || is_latent(name);
  // gemma4 multiplies a weight with a number of its expert's.
  const auto scales_of = [&, model = Checkpoint::open(folder_.path())](size_t index) {
    const std::string scale = "model.layers." + std::to_string(index) + ".router.per_expert_scale";
    return name == "gemma4_text" ? model.read_f32(scale)
                                 : std::vector<float>(static_cast<size_t>(summary.num_experts), 1);
  };
  Passes result;
  run_passes(*engine, result);
  int sparse = 0, dense = 0;
  for (const TokenRecord& record : result.sink.take()) {
    ASSERT_EQ(record.layers.size(), static_cast<size_t>(summary.num_layers));
    for (size_t index = 0; index < record.layers.size(); ++index) {
      const LayerRecord& layer = record.layers[index];
      EXPECT_TRUE(std::isfinite(layer.residual_norm) && layer.residual_norm > 0);
      if (layer.routes.empty()) {
        EXPECT_TRUE(layer.router_probs.empty());
        ++dense;
        continue;
      }
      ++sparse;
      ASSERT_EQ(layer.routes.size(), static_cast<size_t>(summary.num_experts_per_token));
      ASSERT_EQ(layer.router_probs.size(), static_cast<size_t>(summary.num_experts));
      expect_selection(layer, has_scores(name) || name == "gemma4_text");
      if (has_scores(name)) {
        expect_weights_of_scores(layer);
        continue;
      }
      std::vector<std::pair<float, int32_t>> order;
      double all = 0, chosen = 0, weights = 0;
      for (size_t expert = 0; expert < layer.router_probs.size(); ++expert) {
        order.emplace_back(-layer.router_probs[expert], static_cast<int32_t>(expert));
        all += layer.router_probs[expert];
      }
      EXPECT_NEAR(all, 1.0, 1e-5);
      std::sort(order.begin(), order.end());
      for (size_t slot = 0; slot < layer.routes.size(); ++slot) chosen -= order[slot].first;
      const std::vector<float> scales = scales_of(index);
      float last = std::numeric_limits<float>::infinity();
      for (size_t slot = 0; slot < layer.routes.size(); ++slot) {
        const RouteRecord& route = layer.routes[slot];
        EXPECT_EQ(route.expert, order[slot].second);
        const float weight = route.weight / scales[static_cast<size_t>(route.expert)];
        EXPECT_NEAR(weight, -order[slot].first / (normalized ? chosen : 1.0), 1e-5);
        EXPECT_LE(weight, last * (1 + 1e-6F));
        last = weight;
        weights += weight;
      }
      if (normalized) {
        EXPECT_NEAR(weights, 1.0, 1e-6);
      }
    }
  }
  EXPECT_EQ(sparse > 0, summary.num_experts > 0);
  EXPECT_EQ(dense > 0, summary.num_experts == 0 || has_dense_layers);
}

// Norms and routes of the fused path are those of the reference (float weights: no rounding of
// activations that could tip a route).
TEST_P(Audit, AgreesWithTheReferencePath) {
  if (!GetParam().scheme.empty()) GTEST_SKIP() << "float weights only";
  Passes fused, reference;
  load_and_run(KernelPath::kFused, AuditMode::kDeferred, AuditLevel::kFull, fused);
  load_and_run(KernelPath::kReference, AuditMode::kDeferred, AuditLevel::kFull, reference);
  const std::vector<TokenRecord> a = fused.sink.take(), b = reference.sink.take();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t l = 0; l < a[i].layers.size(); ++l) {
      const LayerRecord &left = a[i].layers[l], &right = b[i].layers[l];
      EXPECT_NEAR(left.residual_norm, right.residual_norm, 1e-4 * right.residual_norm);
      ASSERT_EQ(left.routes.size(), right.routes.size());
      for (size_t slot = 0; slot < left.routes.size(); ++slot) {
        EXPECT_EQ(left.routes[slot].expert, right.routes[slot].expert);
        EXPECT_NEAR(left.routes[slot].weight, right.routes[slot].weight, 1e-5);
      }
      EXPECT_EQ(left.router, right.router);
      ASSERT_EQ(left.selection.size(), right.selection.size());
      for (size_t slot = 0; slot < left.selection.size(); ++slot) {
        EXPECT_NEAR(left.selection[slot].score, right.selection[slot].score, 1e-5);
        EXPECT_NEAR(left.selection[slot].key, right.selection[slot].key, 1e-5);
      }
      ASSERT_EQ(left.router_probs.size(), right.router_probs.size());
      for (size_t e = 0; e < left.router_probs.size(); ++e) {
        EXPECT_NEAR(left.router_probs[e], right.router_probs[e], 1e-5);
      }
    }
  }
}

TEST_P(Audit, PromptLogProbabilities) {
  EngineOptions options =
      audit_options(KernelPath::kFused, AuditMode::kDeferred, AuditLevel::kStandard);
  options.max_logit_rows = 8;  // less than the prompt: several chunks
  options.keep_logits = false;
  auto engine = Engine::load(folder_.path(), options);
  VectorSink sink;
  engine->set_audit_sink(&sink);
  const std::vector<int32_t> ids = prompt_ids(21, engine->summary().vocab_size);
  GenerateOptions generate_options;
  generate_options.max_new_tokens = 4;
  generate_options.ignore_end_of_text = true;
  generate_options.sampler.temperature = 0.9f;
  generate_options.sampler.seed = 11;
  generate_options.prompt_logprobs = true;
  const GenerateResult result = generate(*engine, ids, generate_options);
  ASSERT_EQ(result.tokens.size(), 4u);
  const std::vector<TokenRecord> records = sink.take();
  std::vector<int32_t> all = ids;
  all.insert(all.end(), result.tokens.begin(), result.tokens.end());
  ASSERT_EQ(records.size(), all.size() - 1);
  const std::vector<int32_t> fed(all.begin(), all.end() - 1);
  auto scorer = Engine::load(folder_.path(), test_options());
  const Rows rows = score(*scorer, fed);
  for (size_t i = 0; i < records.size(); ++i) {
    check_prediction(records[i], rows.at(static_cast<int64_t>(i)));
    EXPECT_EQ(records[i].prediction.token, all[i + 1]);
    EXPECT_EQ(records[i].prediction.generated, i + 1 >= ids.size());
    const SampleDecision& sampled = records[i].prediction.sampled;
    if (!records[i].prediction.generated) {
      EXPECT_EQ(sampled.candidates, 0);
      continue;
    }
    const std::vector<float>& logits = rows.at(static_cast<int64_t>(i));
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit) / 0.9);
    const double chosen = static_cast<double>(logits[static_cast<size_t>(all[i + 1])]);
    EXPECT_EQ(sampled.candidates, engine->summary().vocab_size);
    EXPECT_NEAR(sampled.probability, std::exp(chosen / 0.9) / total, 1e-6);
  }
  engine->set_audit_sink(nullptr);
}

std::vector<ModelVariant> variants() {
  std::vector<ModelVariant> all;
  for (const std::string& name : oracle_names()) all.push_back({name, "", 0});
  all.push_back({"qwen3_moe", "int4", 32});
  all.push_back({"granitemoe", "int8", 64});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Audit, ::testing::ValuesIn(variants()), variant_name);

}  // namespace
}  // namespace vitrine::testing
