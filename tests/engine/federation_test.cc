// SPDX-License-Identifier: Apache-2.0
// Federations in place of an engine: of separate checkpoints and of adapters of one base.
#include "tests/engine/federation_fixture.h"
#include "vitrine/audit_log.h"

namespace vitrine::testing {
namespace {

// The example of docs/federation.md: whoever is most certain speaks alone.
class MostCertain final : public Combiner {
 public:
  std::string_view name() const override { return "most_certain"; }

  void combine(const CombinerInput& input, std::span<float> joint) override {
    leader_ = 0;
    double best = -INFINITY;
    for (size_t i = 0; i < input.specialists.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      const double top = double{*std::ranges::max_element(row.logits)} - row.log_sum_exp;
      if (top > best) best = top, leader_ = i;
    }
    const SpecialistRow& row = input.specialists[leader_];
    for (size_t t = 0; t < joint.size(); ++t) {
      joint[t] = static_cast<float>(double{row.logits[t]} - row.log_sum_exp);
    }
  }

  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    for (size_t i = 0; i < shares.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      const double alone = i == leader_ ? 1.0 : 0.0;
      shares[i] = {double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp, alone, alone};
    }
    return {shares[leader_].logprob, 0.0};
  }

 private:
  size_t leader_ = 0;
};

/// Writes one value over a joint, or over all of it.
class Breaking final : public Combiner {
 public:
  Breaking(float value, bool all) : value_(value), all_(all) {}
  std::string_view name() const override { return "breaking"; }
  void combine(const CombinerInput& input, std::span<float> joint) override {
    std::ranges::copy(input.specialists[0].logits, joint.begin());
    std::ranges::fill(all_ ? joint : joint.subspan(7, 1), value_);
  }
  JointScore explain(const CombinerInput&, int32_t, std::span<SpecialistShare>) override {
    return {};
  }

 private:
  float value_;
  bool all_;
};

TEST_F(FederationTest, AHostsJointThatIsNoDistributionIsRefused) {
  for (const auto& [value, all] : {std::pair(NAN, false), std::pair(NAN, true),
                                   std::pair(INFINITY, false), std::pair(-INFINITY, true)}) {
    const auto federation =
        Federation::load(separate_, test_options(), std::make_unique<Breaking>(value, all));
    try {
      generate(*federation, prompt_, {.max_new_tokens = 2});
      ADD_FAILURE() << value << all;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find("the combiner 'breaking'"), std::string::npos)
          << error.what();
    }
  }
  const auto one =
      Federation::load(separate_, test_options(), std::make_unique<Breaking>(-INFINITY, false));
  EXPECT_EQ(generate(*one, prompt_, {.max_new_tokens = 2}).tokens.size(), 2u);
}

TEST_F(FederationTest, OfSeparateCheckpointsMixesTheirRows) {
  const auto federation = Federation::load(separate_, test_options());
  EXPECT_EQ(federation->engines().size(), 2u);
  std::vector<Rows> alone;
  for (const SpecialistSpec& specialist : separate_.specialists) {
    alone.push_back(score(*Engine::load(specialist.model, test_options()), prompt_));
  }
  for (const auto& [position, row] : feed_all(*federation, 16)) {
    const double first = exact_log_sum_exp(alone[0].at(position));
    const double second = exact_log_sum_exp(alone[1].at(position));
    for (size_t id = 0; id < row.size(); ++id) {
      const double joint = std::log(0.4 * std::exp(double{alone[0].at(position)[id]} - first) +
                                    0.6 * std::exp(double{alone[1].at(position)[id]} - second));
      ASSERT_NEAR(row[id], joint, 3e-6 * std::max(1.0, std::abs(joint))) << position << " " << id;
    }
  }
}

TEST_F(FederationTest, IsInvariantToTheBit) {
  for (const FederationSpec* spec : {&separate_, &adapted_}) {
    const auto federation = Federation::load(*spec, test_options());
    EXPECT_TRUE(federation->summary().invariant);
    const Rows whole = feed_all(*federation, prompt_.size());
    for (const size_t chunk : {1, 9}) {
      EXPECT_TRUE(same_bits(whole, feed_all(*federation, chunk), prompt_.size())) << chunk;
    }
    const auto two = Federation::load(*spec, test_options(2));
    EXPECT_TRUE(same_bits(whole, feed_all(*two, 20), prompt_.size()));
    // Two sequences in one step, the recorder on.
    SlabRing ring(size_t{8} << 20, SlabRing::WhenFull::kOverwrite);
    EngineOptions options = test_options(2);
    options.audit_mode = AuditMode::kDeferred;
    const auto audited = Federation::load(*spec, options);
    audited->set_audit_sink(&ring);
    std::vector<StepInput> inputs(2);
    for (StepInput& input : inputs) {
      input.sequence = audited->create_sequence();
      input.tokens = prompt_;
      input.rows = StepInput::Rows::kAll;
    }
    inputs[1].tokens = std::span<const int32_t>(prompt_).first(13);
    const auto outputs = audited->step(inputs);
    Rows first, second;
    keep_rows(outputs, inputs[0].sequence, first);
    keep_rows(outputs, inputs[1].sequence, second);
    EXPECT_TRUE(same_bits(whole, first, prompt_.size()));
    EXPECT_TRUE(same_bits(whole, second, 13));
  }
}

TEST_F(FederationTest, ASpecialistIsItsOwnModel) {
  const auto federation = Federation::load(adapted_, test_options());
  EXPECT_EQ(federation->engines().size(), 1u);  // the base is read once
  EngineOptions options = test_options();
  options.adapters = {adapted_.specialists[0].adapter, adapted_.specialists[1].adapter};
  const auto engine = Engine::load(adapted_.base, options);
  StepInput input;
  input.sequence = federation->create_sequence();
  input.tokens = prompt_;
  input.rows = StepInput::Rows::kAll;
  const auto outputs = federation->step({&input, 1});
  ASSERT_EQ(outputs.size(), prompt_.size());
  for (size_t source = 0; source < 3; ++source) {
    Rows rows;
    const SequenceId sequence =
        engine->create_sequence(source == 2 ? -1 : static_cast<int>(source));
    feed(*engine, sequence, prompt_, 0, prompt_.size(), 0, rows);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::vector<float>& row = rows.at(outputs[i].position);
      EXPECT_NEAR(federation->shares(i)[source].logprob,
                  double{row[static_cast<size_t>(outputs[i].token)]} - exact_log_sum_exp(row),
                  1e-6);
    }
  }
}

TEST_F(FederationTest, RecordsEveryPartAndReconciles) {
  FederationSpec product = separate_;
  product.combiner.kind = CombinerSpec::Kind::kProduct;
  product.combiner.weights = {0.7, 0.5};
  FederationSpec gate = adapted_;
  gate.specialists.pop_back();  // the base is a source of its own then
  gate.combiner = {};
  gate.combiner.kind = CombinerSpec::Kind::kGate;
  gate.combiner.hidden_size = read_model_facts(Checkpoint::open(adapted_.base)).hidden_size;
  gate.combiner.gate = spread_values(2 * static_cast<size_t>(gate.combiner.hidden_size), 5, 0.3F);
  gate.combiner.bias = {0.0F, 0.1F};
  for (const FederationSpec* spec : {&separate_, &adapted_, &product, &gate}) {
    EngineOptions options = test_options();
    options.audit_mode = AuditMode::kDeferred;
    options.audit_level = AuditLevel::kFull;
    const auto federation = Federation::load(*spec, options);
    const std::string path = folder_ / "run.vtr";
    std::filesystem::remove(path);
    LogHeader header;
    header.vocab_size = federation->summary().vocab_size;
    VtrLog log(path, header, {.detail = LogDetail::kFull, .overwrite = true});
    federation->set_audit_sink(&log.sink());
    GenerateOptions generation;
    generation.max_new_tokens = 40;
    generation.ignore_end_of_text = true;
    generation.prompt_logprobs = true;
    generation.sampler.temperature = 1.0F;
    generation.sampler.seed = 3;
    const GenerateResult result = generate(*federation, prompt_, generation);
    federation->set_audit_sink(nullptr);
    log.finish("length");

    VtrReader reader(path);
    const AuditLayout::Federation& names = reader.header().federation;
    const bool is_product = spec == &product;
    EXPECT_EQ(names.combiner, federation->combiner().name());
    EXPECT_EQ(names.shares, is_product ? ShareKind::kTerm : ShareKind::kResponsibility);
    ASSERT_EQ(names.specialists.size(), spec->specialists.size());
    const size_t layers = reader.header().layers.size();
    EXPECT_EQ(layers, static_cast<size_t>(federation->summary().num_layers));
    VtrPage page;
    size_t count = 0, generated = 0;
    while (reader.next(page)) {
      for (const TokenRecord& record : page.records) {
        ASSERT_EQ(record.layers.size(), layers);
        ASSERT_TRUE(record.has_prediction);
        const FederationRecord& of = record.prediction.federation;
        ASSERT_EQ(of.specialists.size(), names.specialists.size());
        double sum = 0, shares = 0, weights = 0;
        for (size_t i = 0; i < of.specialists.size(); ++i) {
          const SpecialistShare& share = of.specialists[i];
          shares += share.share;
          weights += share.weight;
          sum += is_product ? share.weight * share.logprob : share.weight * std::exp(share.logprob);
          EXPECT_LE(share.logprob, 1e-6);
        }
        const double joint = is_product ? sum - of.log_normaliser : std::log(sum);
        EXPECT_NEAR(of.joint, joint, 3e-7 * std::max(1.0, std::abs(joint)));
        EXPECT_NEAR(is_product ? shares - of.log_normaliser : shares, is_product ? of.joint : 1.0,
                    1e-9);
        if (!is_product) {
          EXPECT_NEAR(weights, 1.0, 1e-9);
        }
        EXPECT_LT(std::abs(of.residual), 1e-9);
        EXPECT_NEAR(record.prediction.logprob, of.joint, 1e-5);
        EXPECT_NE(record.prediction.logits_digest, 0u);
        ++count;
        if (!record.prediction.generated) continue;
        EXPECT_EQ(record.prediction.token, result.tokens[generated++]);
      }
    }
    EXPECT_EQ(count, prompt_.size() + 39);
    EXPECT_EQ(generated, 40u);
    // Without the column nothing else is lost.
    const std::string redacted = folder_ / "redacted.vtr";
    std::filesystem::remove(redacted);
    redact_vtr(path, redacted, {.groups = {"federation"}});
    VtrReader without(redacted);
    while (without.next(page)) {
      for (const TokenRecord& record : page.records) {
        EXPECT_TRUE(record.prediction.federation.specialists.empty());
        EXPECT_TRUE(record.has_prediction);
      }
    }
    EXPECT_EQ(verify_vtr(redacted).seal, verify_vtr(path).seal);
  }
}

TEST_F(FederationTest, AHostBringsItsOwnCombiner) {
  EngineOptions options = test_options();
  const auto federation = Federation::load(separate_, options, std::make_unique<MostCertain>());
  EXPECT_EQ(federation->combiner().name(), "most_certain");
  GenerateOptions generation;
  generation.max_new_tokens = 12;
  generation.ignore_end_of_text = true;
  EXPECT_EQ(generate(*federation, prompt_, generation).tokens.size(), 12u);
  StepInput input;
  input.sequence = federation->create_sequence();
  input.tokens = prompt_;
  federation->step({&input, 1});
  const auto shares = federation->shares(0);
  EXPECT_EQ(shares[0].share + shares[1].share, 1.0);
}

TEST_F(FederationTest, AFailedStepLeavesEverySpecialistWhereItWas) {
  const auto federation = Federation::load(separate_, test_options());
  const SequenceId sequence = federation->create_sequence();
  std::vector<int32_t> ids = prompt_;
  ids[20] = 256;  // out of range
  StepInput input;
  input.sequence = sequence;
  input.tokens = ids;
  EXPECT_THROW(federation->step({&input, 1}), Error);
  EXPECT_EQ(federation->length(sequence), 0);
  input.tokens = prompt_;
  federation->step({&input, 1});
  federation->truncate(sequence, 10);
  EXPECT_EQ(federation->length(sequence), 10);
  EXPECT_TRUE(std::ranges::equal(federation->tokens(sequence), std::span(prompt_).first(10)));
  EXPECT_THROW(federation->length(sequence + 1), Error);
  const ForcedRoute route{};
  input.routes = {&route, 1};
  EXPECT_THROW(federation->step({&input, 1}), Error);
}

TEST_F(FederationTest, WhatDoesNotGoTogetherIsRefused) {
  const auto refusal = [](const FederationSpec& spec, const EngineOptions& options) {
    try {
      Federation::load(spec, options);
    } catch (const Error& error) {
      EXPECT_TRUE(error.is_user_error()) << error.what();
      return std::string(error.what());
    }
    return std::string("loaded");
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  FederationSpec spec = separate_;
  spec.specialists[1].model = shipped_model();
  has(refusal(spec, test_options()), "vocabulary of 8192");
  spec = separate_;
  spec.specialists[1].model = folder_ / "gone";
  has(refusal(spec, test_options()), "not there");
  // The same vocabulary size, another tokenizer.
  spec = separate_;
  std::filesystem::copy(oracle_folder("llama"), folder_ / "other");
  write_text(folder_ / "other/tokenizer.json", "{}");
  spec.specialists[1].model = folder_ / "other";
  has(refusal(spec, test_options()), "another tokenizer");
  spec = adapted_;
  spec.combiner = {};
  spec.combiner.kind = CombinerSpec::Kind::kGate;
  spec.combiner.hidden_size = 3;
  spec.combiner.gate.assign(9, 0.0F);
  spec.combiner.bias.assign(3, 0.0F);
  has(refusal(spec, test_options()), "hidden state of 3");
}

// A log names one type of keys and values for all: integers where every specialist's default is.
TEST_F(FederationTest, SpecialistsKeepKeysAndValuesAlike) {
  const VariantFolder moe({"qwen3_moe", "int8"}), dense({"llama", "int8"});
  const auto expect = [&](const FederationSpec& spec, const std::vector<std::string>& expected,
                          const std::vector<std::string>& given = {}) {
    EngineOptions options = test_options();
    options.kv_codecs = given;
    const auto federation = Federation::load(spec, options);
    EXPECT_EQ(federation->summary().kv_codec, expected[0]);
    EXPECT_EQ(federation->options().kv_codecs, expected);
    for (const Engine* engine : federation->engines()) {
      EXPECT_EQ(engine->options().kv_codecs, expected);
    }
  };
  expect(separate_, {"f32"});
  FederationSpec spec = separate_;
  spec.specialists[0].model = moe.path();
  expect(spec, {"f32"});
  expect(spec, {"i16"}, {"i16"});
  spec.specialists[1].model = dense.path();
  expect(spec, {"i16"});
  expect(spec, {"bf16"}, {"bf16"});
  expect(adapted_, {"f32"});
}

// What a file's reader refuses, of a spec that a host made.
TEST_F(FederationTest, ASpecThatNoReaderSawIsChecked) {
  const auto refused = [&](const auto& change) {
    FederationSpec spec = adapted_;
    change(spec);
    const Error error = error_of([&] { Federation::load(spec, test_options()); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    return std::string(error.what());
  };
  const auto expect = [&](const std::string& what, const auto& change) {
    const std::string message = refused(change);
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  expect("0 specialists", [](FederationSpec& spec) { spec.specialists.clear(); });
  expect("1 specialists", [](FederationSpec& spec) { spec.specialists.resize(1); });
  expect("two specialists named",
         [](FederationSpec& spec) { spec.specialists[1].name = spec.specialists[0].name; });
  expect("weights; expected", [](FederationSpec& spec) { spec.combiner.weights.pop_back(); });
  expect("sum to", [](FederationSpec& spec) { spec.combiner.weights[0] *= 0.5; });
  expect("weight is -0.5", [](FederationSpec& spec) { spec.combiner.weights[0] = -0.5; });
  expect("weight is nan", [](FederationSpec& spec) { spec.combiner.weights[0] = std::nan(""); });
}

TEST_F(FederationTest, SharesOfAnOutputThatIsNotThere) {
  const auto federation = Federation::load(adapted_, test_options());
  EXPECT_EQ(error_of([&] { federation->shares(0); }).kind(), ErrorKind::kInvalidArgument);
  StepInput input{federation->create_sequence(), prompt_};
  input.tokens = input.tokens.first(3);
  federation->step({&input, 1});
  EXPECT_EQ(federation->shares(0).size(), adapted_.specialists.size());
  EXPECT_EQ(error_of([&] { federation->shares(1); }).kind(), ErrorKind::kInvalidArgument);
}

/// Takes nothing.
struct RefusingSink final : VectorSink {
  void open(const AuditLayout& /*layout*/, size_t /*max_record_bytes*/) override {
    throw Error(ErrorKind::kUnsupported, "no room");
  }
};

TEST_F(FederationTest, ASinkThatRefusesIsNotThere) {
  const auto federation = Federation::load(adapted_, test_options());
  const auto engine = Engine::load(adapted_.base, test_options());
  VectorSink before;
  federation->set_audit_sink(&before);
  engine->set_audit_sink(&before);
  {
    RefusingSink sink;
    EXPECT_THROW(federation->set_audit_sink(&sink), Error);
    EXPECT_THROW(engine->set_audit_sink(&sink), Error);
  }
  EXPECT_EQ(federation->audit_sink(), &before);
  EXPECT_EQ(engine->audit_sink(), &before);
}

}  // namespace
}  // namespace vitrine::testing
