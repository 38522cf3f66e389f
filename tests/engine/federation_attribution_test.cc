// SPDX-License-Identifier: Apache-2.0
// Each specialist's own logit of the token that the joint took, as a sum of terms.
#include "checkpoint/model_config.h"
#include "tests/engine/federation_fixture.h"
#include "vitrine/audit_log.h"
#include "vitrine/ledger.h"

namespace vitrine::testing {
namespace {

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

class FederationAttribution : public FederationTest {
 protected:
  FederationAttribution() {
    // An adapter of everything that a layer has, beside those of attention.
    const ModelConfig config = parse_model_config(Checkpoint::open(adapted_.base));
    write_adapter(folder_ / "blocks", adapter_config(4, 8),
                  adapter_tensors(all_modules(config), 4, 17));
    adapted_.specialists[1].adapter = folder_ / "blocks";
    product_ = separate_;
    product_.combiner.kind = CombinerSpec::Kind::kProduct;
    product_.combiner.weights = {0.7, 0.5};
    gate_ = adapted_;
    gate_.specialists.pop_back();  // the base has no say then
    gate_.combiner = {};
    gate_.combiner.kind = CombinerSpec::Kind::kGate;
    gate_.combiner.hidden_size = config.hidden_size;
    gate_.combiner.gate = spread_values(2 * static_cast<size_t>(config.hidden_size), 5, 0.3F);
    gate_.combiner.bias = {0.0F, 0.1F};
    scored_ = separate_;  // routers that choose by scores, norms behind blocks, a cap
    scored_.specialists = {{"latent", oracle_folder("deepseek_v3"), ""},
                           {"capped", oracle_folder("gemma4_text"), ""}};
  }

  static EngineOptions attributed(int threads = 2) {
    EngineOptions options = test_options(threads);
    options.audit_mode = AuditMode::kDeferred;
    options.attribution = true;
    return options;
  }

  static GenerateOptions sampled() {
    GenerateOptions options;
    options.max_new_tokens = 24;
    options.ignore_end_of_text = true;
    options.prompt_logprobs = true;
    options.sampler = {.temperature = 1.2F, .top_k = 20, .seed = 3};
    return options;
  }

  std::vector<TokenRecord> records_of(Federation& federation, const GenerateOptions& options,
                                      GenerateResult* result = nullptr) const {
    VectorSink sink;
    federation.set_audit_sink(&sink);
    GenerateResult made = generate(federation, prompt_, options);
    federation.set_audit_sink(nullptr);
    if (result != nullptr) *result = std::move(made);
    return sink.take();
  }

  FederationSpec product_, gate_, scored_;
};

/// What one specialist alone says of a token after `ids`: its own record of that prediction.
class Alone {
 public:
  Alone(const FederationSpec& spec, size_t specialist, EngineOptions options) {
    const SpecialistSpec& of = spec.specialists[specialist];
    options.keep_logits = true;
    if (!of.adapter.empty()) options.adapters = {of.adapter};
    engine_ = Engine::load(of.model, options);
    engine_->set_audit_sink(&sink_);
    sequence_ = engine_->create_sequence(of.adapter.empty() ? -1 : 0);
  }
  /// `token` enters; then each of `next` is scored in its place.
  std::vector<TokenRecord> step(int32_t token, std::span<const int32_t> next,
                                std::vector<float>& logits) {
    std::vector<TokenRecord> records;
    const int64_t length = engine_->length(sequence_);
    for (const int32_t id : next) {
      engine_->truncate(sequence_, length);
      StepInput input;
      input.sequence = sequence_;
      input.tokens = {&token, 1};
      input.next_token = id;
      const auto outputs = engine_->step({&input, 1});
      logits.assign(outputs[0].scores.begin(), outputs[0].scores.end());
      records.push_back(sink_.take().at(0));
    }
    return records;
  }
  size_t num_layers() const { return engine_->audit_layout().layers.size(); }

 private:
  VectorSink sink_;
  std::unique_ptr<Engine> engine_;
  SequenceId sequence_ = 0;
};

void expect_sums(const AttributionRecord& of) {
  double sum = 0, other = 0, largest = 0;
  for (const TermRecord& term : of.terms) {
    sum += double{term.value};
    other += double{term.runner_up};
    largest = std::max({largest, std::abs(double{term.value}), std::abs(double{term.runner_up})});
  }
  ASSERT_GT(largest, 0);
  // Float weights: nothing but what float32 loses.
  EXPECT_NEAR(sum, of.logit, 1e-4 * largest);
  EXPECT_NEAR(other, of.runner_up_logit, 1e-4 * largest);
  EXPECT_EQ(of.rounding, static_cast<float>(double{of.logit} - sum));
  EXPECT_EQ(of.runner_up_rounding, static_cast<float>(double{of.runner_up_logit} - other));
}

void expect_same_selection(const LayerRecord& a, const LayerRecord& b) {
  EXPECT_EQ(a.router, b.router);
  ASSERT_EQ(a.selection.size(), b.selection.size());
  for (size_t slot = 0; slot < a.selection.size(); ++slot) {
    EXPECT_TRUE(same_bits(a.selection[slot].score, b.selection[slot].score));
    EXPECT_TRUE(same_bits(a.selection[slot].key, b.selection[slot].key));
  }
}

TEST_F(FederationAttribution, TermsAreThoseOfEachSpecialistAlone) {
  for (const FederationSpec* spec : {&adapted_, &separate_, &product_, &gate_, &scored_}) {
    const auto federation = Federation::load(*spec, attributed());
    const std::vector<TokenRecord> records = records_of(*federation, sampled());
    ASSERT_EQ(records.size(), prompt_.size() + 23);
    int32_t first_layer = 0;
    for (size_t s = 0; s < spec->specialists.size(); ++s) {
      Alone alone(*spec, s, attributed(1));
      for (const TokenRecord& record : records) {
        ASSERT_TRUE(record.has_prediction);
        const PredictionRecord& prediction = record.prediction;
        ASSERT_EQ(prediction.federation.attributions.size(), spec->specialists.size());
        const AttributionRecord& of = prediction.federation.attributions[s];
        expect_sums(of);
        // The runner-up is the joint's.
        const size_t rank = prediction.alternatives[0].token == prediction.token ? 1 : 0;
        EXPECT_EQ(of.runner_up, prediction.alternatives[rank].token);
        std::vector<float> logits;
        const std::vector<TokenRecord> own =
            alone.step(record.token, std::vector{prediction.token, of.runner_up}, logits);
        EXPECT_TRUE(same_bits(of.logit, logits[static_cast<size_t>(prediction.token)]));
        EXPECT_TRUE(same_bits(of.runner_up_logit, logits[static_cast<size_t>(of.runner_up)]));
        EXPECT_NEAR(prediction.federation.specialists[s].logprob,
                    double{of.logit} - exact_log_sum_exp(logits), 1e-6);
        const auto& chosen = own[0].prediction.attribution.terms;
        const auto& other = own[1].prediction.attribution.terms;
        ASSERT_EQ(of.terms.size(), chosen.size());
        for (size_t t = 0; t < chosen.size(); ++t) {
          EXPECT_EQ(of.terms[t].kind, chosen[t].kind);
          EXPECT_EQ(of.terms[t].layer, chosen[t].layer < 0 ? -1 : chosen[t].layer + first_layer);
          EXPECT_EQ(of.terms[t].expert, chosen[t].expert);
          EXPECT_TRUE(same_bits(of.terms[t].value, chosen[t].value))
              << "specialist " << s << ", position " << record.position << ", term " << t;
          EXPECT_TRUE(same_bits(of.terms[t].runner_up, other[t].value));
        }
        for (size_t l = 0; l < own[0].layers.size(); ++l) {
          expect_same_selection(record.layers[static_cast<size_t>(first_layer) + l],
                                own[0].layers[l]);
        }
      }
      first_layer += static_cast<int32_t>(alone.num_layers());
    }
  }
}

// Unlike the probabilities of a mixture, those of a product add up from weighted logits.
TEST_F(FederationAttribution, WeightedLogitsMakeAProductsJoint) {
  const auto federation = Federation::load(product_, attributed());
  for (const TokenRecord& record : records_of(*federation, sampled())) {
    const FederationRecord& of = record.prediction.federation;
    double joint = -of.log_normaliser;
    for (size_t s = 0; s < of.specialists.size(); ++s) {
      const AttributionRecord& own = of.attributions[s];
      const double log_sum_exp = double{own.logit} - of.specialists[s].logprob;
      double terms = double{own.rounding} - log_sum_exp;
      for (const TermRecord& term : own.terms) terms += double{term.value};
      joint += of.specialists[s].weight * terms;
    }
    EXPECT_NEAR(joint, of.joint, 1e-5 * std::max(1.0, std::abs(joint)));
  }
}

TEST_F(FederationAttribution, ChangesNoResultAndReadsBackOnceAPass) {
  for (const FederationSpec* spec : {&adapted_, &separate_}) {
    EngineOptions plain = attributed();
    plain.attribution = false;
    EngineOptions unrecorded = attributed();
    unrecorded.audit_mode = AuditMode::kNone;
    std::vector<GenerateResult> results;
    std::vector<std::vector<TokenRecord>> records;
    for (const EngineOptions& options : {attributed(), plain, unrecorded, attributed(1)}) {
      const auto federation = Federation::load(*spec, options);
      const uint64_t before = federation->engines()[0]->readback_count();
      records.push_back(records_of(*federation, sampled(), &results.emplace_back()));
      for (const Engine* engine : federation->engines()) {
        EXPECT_EQ(engine->readback_count() - before, 24u);
      }
    }
    for (const GenerateResult& result : results) EXPECT_EQ(result.tokens, results[0].tokens);
    ASSERT_EQ(records[0].size(), records[1].size());
    EXPECT_TRUE(records[2].empty());
    for (size_t i = 0; i < records[0].size(); ++i) {
      EXPECT_EQ(record_digest(records[0][i]), record_digest(records[1][i]));
      EXPECT_EQ(record_digest(records[0][i]), record_digest(records[3][i]));
      EXPECT_TRUE(records[1][i].prediction.federation.attributions.empty());
      const auto& two = records[0][i].prediction.federation.attributions;
      const auto& one = records[3][i].prediction.federation.attributions;
      for (size_t s = 0; s < two.size(); ++s) {
        for (size_t t = 0; t < two[s].terms.size(); ++t) {
          EXPECT_TRUE(same_bits(one[s].terms[t].value, two[s].terms[t].value));
          EXPECT_TRUE(same_bits(one[s].terms[t].runner_up, two[s].terms[t].runner_up));
        }
      }
    }
  }
}

TEST_F(FederationAttribution, NaiveRecordsTheSame) {
  EngineOptions naive = attributed();
  naive.audit_mode = AuditMode::kNaive;
  for (const FederationSpec* spec : {&adapted_, &separate_}) {
    const auto one = records_of(*Federation::load(*spec, attributed()), sampled());
    const auto other = records_of(*Federation::load(*spec, naive), sampled());
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      const auto& a = one[i].prediction.federation.attributions;
      const auto& b = other[i].prediction.federation.attributions;
      ASSERT_EQ(a.size(), b.size());
      for (size_t s = 0; s < a.size(); ++s) {
        for (size_t t = 0; t < a[s].terms.size(); ++t) {
          EXPECT_TRUE(same_bits(a[s].terms[t].value, b[s].terms[t].value));
        }
      }
    }
  }
}

// Several sequences in one step, in chunks, behind a fork, with forced tokens and a mask.
TEST_F(FederationAttribution, GoesWithForksMasksAndForcedTokens) {
  for (const FederationSpec* spec : {&adapted_, &separate_, &gate_}) {
    EngineOptions options = attributed();
    options.max_sequences = 3;
    const auto federation = Federation::load(*spec, options);
    VectorSink sink;
    federation->set_audit_sink(&sink);
    const auto vocab = static_cast<size_t>(federation->summary().vocab_size);
    const std::vector<uint32_t> mask((vocab + 31) / 32, 0x10204080U);
    StepInput input;
    input.sequence = federation->create_sequence();
    input.tokens = std::span<const int32_t>(prompt_).first(21);
    input.rows = StepInput::Rows::kNone;
    federation->step({&input, 1});
    std::vector<StepInput> inputs(3, input);
    inputs[1].sequence = federation->fork(input.sequence);
    inputs[2].sequence = federation->create_sequence();
    for (StepInput& of : inputs) of.tokens = std::span<const int32_t>(prompt_).subspan(21, 9);
    inputs[0].rows = StepInput::Rows::kLast;
    inputs[1].rows = StepInput::Rows::kAll;
    inputs[1].num_forced = 4;
    inputs[2].rows = StepInput::Rows::kLast;
    inputs[2].allowed_tokens = mask;
    sink.take();
    const auto outputs = federation->step(inputs);
    ASSERT_EQ(outputs.size(), 11u);
    EXPECT_EQ(outputs[0].token, outputs[9].token);  // of the fork's last row
    std::vector<const AttributionRecord*> of_rows[2];
    const std::vector<TokenRecord> records = sink.take();
    size_t predictions = 0;
    for (const TokenRecord& record : records) {
      const auto& attributions = record.prediction.federation.attributions;
      ASSERT_EQ(attributions.size(), record.has_prediction ? spec->specialists.size() : 0u);
      if (!record.has_prediction) continue;
      ++predictions;
      for (const AttributionRecord& of : attributions) {
        expect_sums(of);
        EXPECT_NE(of.runner_up, record.prediction.token);
      }
      if (record.position != 29) continue;
      if (record.sequence == inputs[2].sequence) continue;
      for (const AttributionRecord& of : attributions) {
        of_rows[record.sequence == inputs[0].sequence ? 0 : 1].push_back(&of);
      }
    }
    EXPECT_EQ(predictions, 11u);
    ASSERT_EQ(of_rows[0].size(), spec->specialists.size());
    ASSERT_EQ(of_rows[1].size(), spec->specialists.size());
    for (size_t s = 0; s < of_rows[0].size(); ++s) {
      for (size_t t = 0; t < of_rows[0][s]->terms.size(); ++t) {
        EXPECT_TRUE(same_bits(of_rows[0][s]->terms[t].value, of_rows[1][s]->terms[t].value));
      }
    }
    federation->set_audit_sink(nullptr);
  }
}

// The first specialist speaks; on demand nobody does.
class Stumbling final : public Combiner {
 public:
  bool stumbles = false;
  std::string_view name() const override { return "stumbling"; }
  void combine(const CombinerInput& input, std::span<float> joint) override {
    const SpecialistRow& row = input.specialists[0];
    for (size_t t = 0; t < joint.size(); ++t) {
      joint[t] = static_cast<float>(double{row.logits[t]} - row.log_sum_exp);
    }
  }
  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    if (stumbles) throw Error(ErrorKind::kInvalidArgument, "stumbled");
    for (size_t i = 0; i < shares.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      const double alone = i == 0 ? 1.0 : 0.0;
      shares[i] = {double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp, alone, alone};
    }
    return {shares[0].logprob, 0.0};
  }
};

// Every pass has stopped behind its head when the joint fails: none of them has happened.
TEST_F(FederationAttribution, AJointThatFailsLeavesNoPassHalfDone) {
  for (const FederationSpec* spec : {&adapted_, &separate_}) {
    std::vector<std::vector<TokenRecord>> records;
    for (const bool stumbles : {false, true}) {
      auto combiner = std::make_unique<Stumbling>();
      Stumbling* const own = combiner.get();
      const auto federation = Federation::load(*spec, attributed(), std::move(combiner));
      VectorSink sink;
      federation->set_audit_sink(&sink);
      StepInput input;
      input.sequence = federation->create_sequence();
      input.tokens = std::span<const int32_t>(prompt_).first(20);
      federation->step({&input, 1});
      input.tokens = std::span<const int32_t>(prompt_).subspan(20, 7);
      if (stumbles) {
        own->stumbles = true;
        EXPECT_THROW(federation->step({&input, 1}), Error);
        own->stumbles = false;
        EXPECT_EQ(federation->length(input.sequence), 20);
      }
      federation->step({&input, 1});
      EXPECT_EQ(federation->length(input.sequence), 27);
      records.push_back(sink.take());
      federation->set_audit_sink(nullptr);
    }
    ASSERT_EQ(records[0].size(), 27u);
    ASSERT_EQ(records[1].size(), 27u);
    const auto& one = records[0].back().prediction.federation.attributions;
    const auto& other = records[1].back().prediction.federation.attributions;
    ASSERT_EQ(one.size(), spec->specialists.size());
    for (size_t s = 0; s < one.size(); ++s) {
      for (size_t t = 0; t < one[s].terms.size(); ++t) {
        EXPECT_TRUE(same_bits(one[s].terms[t].value, other[s].terms[t].value));
      }
    }
  }
}

TEST_F(FederationAttribution, LogsKeepItAtEveryLevel) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    for (const FederationSpec* spec : {&adapted_, &separate_}) {
      EngineOptions options = attributed();
      options.audit_level = detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard;
      const auto federation = Federation::load(*spec, options);
      const std::vector<TokenRecord> expected = records_of(*federation, sampled());
      const std::string path = folder_ / "run.vtr";
      std::filesystem::remove(path);
      LogHeader header;
      header.vocab_size = federation->summary().vocab_size;
      VtrLog log(path, header, {.detail = detail, .overwrite = true});
      federation->set_audit_sink(&log.sink());
      generate(*federation, prompt_, sampled());
      federation->set_audit_sink(nullptr);
      log.finish("length");
      const VtrReport report = verify_vtr(path);
      EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
      EXPECT_EQ(report.header.federation.num_terms,
                federation->audit_layout().federation.num_terms);
      EXPECT_EQ(report.header.terms, federation->audit_layout().terms);
      VtrReader reader(path);
      VtrPage page;
      size_t count = 0;
      while (reader.next(page)) {
        for (const TokenRecord& record : page.records) {
          const FederationRecord want =
              round_record(expected[count++], detail).prediction.federation;
          const FederationRecord& got = record.prediction.federation;
          ASSERT_EQ(got.attributions.size(), spec->specialists.size());
          for (size_t s = 0; s < got.attributions.size(); ++s) {
            const AttributionRecord &a = got.attributions[s], &b = want.attributions[s];
            EXPECT_EQ(a.runner_up, b.runner_up);
            EXPECT_TRUE(same_bits(a.logit, b.logit));
            EXPECT_TRUE(same_bits(a.rounding, b.rounding));
            EXPECT_TRUE(same_bits(a.runner_up_logit, b.runner_up_logit));
            EXPECT_TRUE(same_bits(a.runner_up_rounding, b.runner_up_rounding));
            ASSERT_EQ(a.terms.size(), b.terms.size());
            for (size_t t = 0; t < a.terms.size(); ++t) {
              EXPECT_EQ(a.terms[t].expert, b.terms[t].expert);
              EXPECT_EQ(a.terms[t].layer, b.terms[t].layer);
              EXPECT_TRUE(same_bits(a.terms[t].value, b.terms[t].value));
              EXPECT_TRUE(same_bits(a.terms[t].runner_up, b.terms[t].runner_up));
            }
          }
        }
      }
      EXPECT_EQ(count, expected.size());
    }
  }
}

// What a specialist without experts had of a token is nobody's, not the other specialist's
// experts'.
TEST_F(FederationAttribution, RoyaltiesLeaveADenseSpecialistsPartToNobody) {
  const auto federation = Federation::load(separate_, attributed());
  const std::string path = folder_ / "run.vtr";
  LogHeader header;
  header.vocab_size = federation->summary().vocab_size;
  VtrLog log(path, header, {.overwrite = true});
  federation->set_audit_sink(&log.sink());
  generate(*federation, prompt_, sampled());
  federation->set_audit_sink(nullptr);
  log.finish("length");

  double dense = 0, paid = 0;
  VtrReader reader(path);
  VtrPage page;
  while (reader.next(page)) {
    for (const TokenRecord& record : page.records) {
      if (!record.has_prediction || !record.prediction.generated) continue;
      const FederationRecord& of = record.prediction.federation;
      const bool has_positive = std::ranges::any_of(of.attributions[0].terms, [](const auto& term) {
        return term.kind == AuditLayout::Term::Kind::kExpert && term.value > 0;
      });
      (has_positive ? paid : dense) += of.specialists[0].share;
      dense += of.specialists[1].share;
    }
  }
  ASSERT_GT(dense, 0.1);
  ASSERT_GT(paid, 0.1);
  const RunAccount run = read_run_account(path, {});
  int64_t units = 0;
  for (const auto& [contributor, share] : run.shares.at(ShareBasis::kAttribution)) units += share;
  const auto tokens = [](int64_t of) { return static_cast<double>(of) / kShareUnits; };
  EXPECT_NEAR(tokens(units), paid, 1e-6);
  EXPECT_NEAR(tokens(run.unshared.at(ShareBasis::kAttribution)), dense, 1e-6);
}

TEST_F(FederationAttribution, NeedsTheFusedKernels) {
  EngineOptions options = attributed();
  options.kernels = KernelPath::kReference;
  const Error error = error_of([&] { Federation::load(separate_, options); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"attribution", "fused"})) << error.what();
}

}  // namespace
}  // namespace vitrine::testing
