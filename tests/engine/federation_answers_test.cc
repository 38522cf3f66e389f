// SPDX-License-Identifier: Apache-2.0
// What a federation shares with an engine: constraints, forks, log-probabilities, hidden states.
#include <regex>

#include "tests/engine/federation_fixture.h"
#include "tests/support/in_sequence.h"
#include "vitrine/audit.h"
#include "vitrine/audit_log.h"
#include "vitrine/constrain.h"

namespace vitrine::testing {
namespace {

constexpr const char* kPattern = "(ab|cd){1,40}x[0-9]{2}";

/// Id and byte are the same, but for the ids that end a text.
Grammar pattern_of(const ModelSummary& summary, const char* pattern = kPattern) {
  std::vector<std::string> bytes(static_cast<size_t>(summary.vocab_size));
  for (int byte = 0; byte < std::min(256, summary.vocab_size); ++byte) {
    bytes[static_cast<size_t>(byte)] = std::string(1, static_cast<char>(byte));
  }
  return Grammar::regex(TokenTable::from_bytes(std::move(bytes), summary.eos_token_ids), pattern);
}

std::string text_of(const GenerateResult& result, const ModelSummary& summary) {
  std::string text;
  for (const int32_t id : result.tokens) {
    if (std::ranges::find(summary.eos_token_ids, id) == summary.eos_token_ids.end()) {
      text += static_cast<char>(id);
    }
  }
  return text;
}

/// The joint of a mixture in double, from what was recorded.
double mixed(const FederationRecord& of) {
  double sum = 0;
  for (const SpecialistShare& share : of.specialists) sum += share.weight * std::exp(share.logprob);
  return std::log(sum);
}

class FederationAnswers : public FederationTest {
 protected:
  EngineOptions recorded() const {
    EngineOptions options = test_options(2);
    options.audit_mode = AuditMode::kDeferred;
    return options;
  }
};

TEST_F(FederationAnswers, AConstraintHoldsWhateverTheRoom) {
  for (const FederationSpec* spec : {&separate_, &adapted_}) {
    const auto federation = Federation::load(*spec, recorded());
    const Grammar grammar = pattern_of(federation->summary());
    for (const float temperature : {0.0F, 1.5F}) {
      for (const int room : {5, 6, 11, 24}) {
        VectorSink sink;
        federation->set_audit_sink(&sink);
        const auto constraint = grammar.start();
        GenerateOptions options;
        options.sampler = {.temperature = temperature, .top_k = 3, .seed = 9};
        options.max_new_tokens = room;
        options.constraint = constraint.get();
        const GenerateResult result = generate(*federation, prompt_, options);
        federation->set_audit_sink(nullptr);
        const std::string text = text_of(result, federation->summary());
        EXPECT_TRUE(std::regex_match(text, std::regex(kPattern))) << text;
        EXPECT_TRUE(result.is_complete);
        EXPECT_EQ(result.reason, result.constraint.limited > 0 ? StopReason::kLengthConstrained
                                                               : StopReason::kComplete);
        EXPECT_GT(result.constraint.forced, 0);
        size_t made = 0;
        for (const TokenRecord& record : sink.take()) {
          if (!record.has_prediction) continue;
          const PredictionRecord& prediction = record.prediction;
          EXPECT_EQ(prediction.token, result.tokens[made++]);
          EXPECT_GT(prediction.constraint.allowed, 0);
          EXPECT_GE(prediction.constraint.removed, 0.0F);
          EXPECT_LE(prediction.constraint.removed, 1.0F);
          // The record is of the joint as it is without the mask, so the parts still sum up.
          const double joint = mixed(prediction.federation);
          EXPECT_NEAR(prediction.federation.joint, joint, 3e-7 * std::max(1.0, std::abs(joint)));
          EXPECT_NEAR(prediction.logprob, joint, 1e-5);
        }
        EXPECT_EQ(made, result.tokens.size());
      }
    }
  }
}

TEST_F(FederationAnswers, TheMaskIsOfTheJoint) {
  const auto federation = Federation::load(adapted_, recorded());
  const auto vocab = static_cast<size_t>(federation->summary().vocab_size);
  std::vector<uint32_t> mask((vocab + 31) / 32);
  for (const size_t id : {3, 40, 77, 200}) mask[id / 32] |= 1U << (id % 32);
  const auto free_row = feed_all(*federation, prompt_.size()).at(49);
  size_t first = 0, best = 3;
  double kept = 0;
  for (size_t id = 0; id < vocab; ++id) {
    if (free_row[id] > free_row[first]) first = id;
    if ((mask[id / 32] >> (id % 32) & 1U) == 0) continue;
    kept += std::exp(double{free_row[id]});
    if (free_row[id] > free_row[best]) best = id;
  }
  VectorSink sink;
  federation->set_audit_sink(&sink);
  std::vector<StepInput> inputs(2);  // one with a mask, one without
  for (StepInput& input : inputs) {
    input.sequence = federation->create_sequence();
    input.tokens = prompt_;
  }
  inputs[1].allowed_tokens = mask;
  inputs[1].constraint.is_limited = true;
  inputs[1].constraint.mask_microseconds = 12.5F;
  const auto outputs = federation->step(inputs);
  EXPECT_EQ(outputs[0].token, static_cast<int32_t>(first));
  EXPECT_EQ(outputs[1].token, static_cast<int32_t>(best));
  for (const StepOutput& output : outputs) {
    EXPECT_EQ(0, std::memcmp(output.scores.data(), free_row.data(), vocab * sizeof(float)));
  }
  EXPECT_EQ(outputs[0].constraint.allowed, 0);
  EXPECT_EQ(outputs[1].constraint.allowed, 4);
  EXPECT_NEAR(outputs[1].constraint.removed, 1 - kept, 1e-5);
  std::map<uint64_t, PredictionRecord> made;
  for (const TokenRecord& record : sink.take()) {
    if (record.has_prediction) made[record.sequence] = record.prediction;
  }
  EXPECT_FALSE(made.at(inputs[0].sequence).constraint.is_given());
  const PredictionRecord& masked = made.at(inputs[1].sequence);
  EXPECT_EQ(masked.constraint.allowed, 4);
  EXPECT_NEAR(masked.constraint.removed, 1 - kept, 1e-5);
  EXPECT_EQ(masked.constraint.first_ruled_out, first != best);
  EXPECT_EQ(masked.constraint.mask_microseconds, 12.5F);
  EXPECT_TRUE(masked.constraint.is_limited);
  EXPECT_EQ(masked.sampled.candidates, 1);
  EXPECT_EQ(masked.alternatives[0].token, static_cast<int32_t>(first));
  EXPECT_EQ(masked.logprob, free_row[best]);
  // A mask of another size changes nothing.
  const std::vector<uint32_t> small(1, ~0U);
  inputs[1].allowed_tokens = small;
  EXPECT_THROW(federation->step(inputs), Error);
  EXPECT_EQ(federation->length(inputs[0].sequence), static_cast<int64_t>(prompt_.size()));
}

TEST_F(FederationAnswers, AttemptsAfterADeadlockBeginBehindThePrompt) {
  const auto federation = Federation::load(separate_, recorded());
  const ModelSummary& summary = federation->summary();
  std::vector<std::string> bytes(static_cast<size_t>(summary.vocab_size));
  for (const char byte : {'a', 'b'}) bytes[static_cast<size_t>(byte)] = std::string(1, byte);
  const Grammar grammar =
      Grammar::regex(TokenTable::from_bytes(std::move(bytes), summary.eos_token_ids), "[ab]{2}e");
  const auto constraint = grammar.start();
  GenerateOptions options;
  options.constraint = constraint.get();
  options.deadlock_retries = 3;
  options.sampler = {.temperature = 1.0F, .seed = 4};
  options.max_new_tokens = 20;
  std::vector<int32_t> attempts;
  const GenerateResult result =
      generate(*federation, prompt_, options, [&](const TokenEvent& event) {
        attempts.push_back(event.attempt);
        return true;
      });
  EXPECT_EQ(result.reason, StopReason::kDeadlock);
  EXPECT_EQ(result.constraint.retries, 3);
  EXPECT_EQ(attempts.back(), 3);
}

TEST_F(FederationAnswers, AForkGoesOnAsItsSourceWould) {
  for (const FederationSpec* spec : {&separate_, &adapted_}) {
    const auto federation = Federation::load(*spec, recorded());
    const Rows whole = feed_all(*federation, prompt_.size());
    const SequenceId first = federation->create_sequence();
    StepInput input;
    input.sequence = first;
    input.tokens = std::span<const int32_t>(prompt_).first(21);  // inside a block
    federation->step({&input, 1});
    const SequenceId fork = federation->fork(first);
    EXPECT_EQ(federation->length(fork), 21);
    // Its source goes another way and is gone before the fork goes on.
    input.tokens = std::span<const int32_t>(prompt_).first(9);
    federation->step({&input, 1});
    federation->release(first);
    input.sequence = fork;
    input.tokens = std::span<const int32_t>(prompt_).subspan(21);
    input.rows = StepInput::Rows::kAll;
    Rows rows;
    keep_rows(federation->step({&input, 1}), fork, rows);
    EXPECT_TRUE(same_bits(whole, rows, prompt_.size() - 21));
    EXPECT_THROW(federation->fork(first), Error);
  }
}

TEST_F(FederationAnswers, AForkWithoutRoomLeavesNothingBehind) {
  EngineOptions options = recorded();
  options.max_sequences = 1;
  options.max_context = 64;
  options.max_step_tokens = 64;
  options.max_logit_rows = 64;
  const auto federation = Federation::load(adapted_, options);
  const auto blocks = federation->engines()[0]->kv_blocks();
  StepInput input;
  input.sequence = federation->create_sequence();
  input.tokens = prompt_;
  federation->step({&input, 1});
  const auto used = federation->engines()[0]->kv_blocks();
  EXPECT_THROW(federation->fork(input.sequence), Error);
  EXPECT_EQ(federation->engines()[0]->kv_blocks(), used);
  federation->release(input.sequence);
  EXPECT_EQ(federation->engines()[0]->kv_blocks(), blocks);
}

TEST_F(FederationAnswers, LogprobsAndBranchesAreTheJoints) {
  const auto federation = Federation::load(adapted_, recorded());
  VectorSink sink;
  federation->set_audit_sink(&sink);
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.ignore_end_of_text = true;
  options.logprobs = 3;
  options.sampler = {.temperature = 1.0F, .seed = 7};
  const SequenceId base = federation->create_sequence();
  StepInput input;
  input.sequence = base;
  input.tokens = std::span<const int32_t>(prompt_).first(prompt_.size() - 1);
  input.rows = StepInput::Rows::kNone;
  federation->step({&input, 1});
  std::vector<GenerateResult> results;
  for (uint32_t branch = 0; branch < 2; ++branch) {
    const SequenceId fork = federation->fork(base);
    options.branch = branch;
    sink.take();
    results.push_back(generate(*federation, std::span<const int32_t>(prompt_).last(1),
                               in_sequence(fork, options)));
    size_t made = 0;
    for (const TokenRecord& record : sink.take()) {
      const TokenLogprobs& of = results.back().logprobs[made++];
      EXPECT_EQ(of.token, record.prediction.token);
      EXPECT_NEAR(of.logprob, record.prediction.federation.joint, 2e-6);
      ASSERT_EQ(of.best.size(), 3u);
      EXPECT_EQ(of.best[0].first, record.prediction.alternatives[0].token);
    }
    EXPECT_EQ(made, 12u);
    federation->release(fork);
  }
  EXPECT_NE(results[0].tokens, results[1].tokens);
  options.branch = 0;
  EXPECT_EQ(results[0].tokens, generate(*federation, prompt_, options).tokens);
}

TEST_F(FederationAnswers, HiddenStatesAreEachSpecialistsOwn) {
  EngineOptions options = recorded();
  options.audit_level = AuditLevel::kFull;
  const int layers = Engine::load(adapted_.base, options)->summary().num_layers;
  options.hidden_state_layers = {0, 1, layers};
  const auto federation = Federation::load(adapted_, options);
  const AuditLayout& layout = federation->audit_layout();
  ASSERT_EQ(layout.hidden_states.size(), 9u);
  EXPECT_EQ(layout.hidden_states[3].layer, layers + 1);  // of the second specialist
  for (int place = 0; place < 3; ++place) {              // what leaves each one's last layer
    EXPECT_EQ(layout.hidden_states[6 + static_cast<size_t>(place)].layer, 3 * layers + place);
  }
  VectorSink sink;
  federation->set_audit_sink(&sink);
  feed_all(*federation, 16);
  const std::vector<TokenRecord> records = sink.take();

  options.adapters = {adapted_.specialists[0].adapter, adapted_.specialists[1].adapter};
  const auto engine = Engine::load(adapted_.base, options);
  VectorSink own;
  engine->set_audit_sink(&own);
  for (const int adapter : {0, 1, -1}) {
    Rows rows;
    const SequenceId sequence = engine->create_sequence(adapter);
    feed(*engine, sequence, prompt_, 0, prompt_.size(), 0, rows);
    engine->release(sequence);
    const std::vector<TokenRecord> alone = own.take();
    ASSERT_EQ(alone.size(), records.size());
    const size_t place = adapter < 0 ? 2 : static_cast<size_t>(adapter);
    for (size_t i = 0; i < records.size(); ++i) {
      for (size_t state = 0; state < 3; ++state) {
        EXPECT_EQ(alone[i].hidden_states[state].values,
                  records[i].hidden_states[state < 2 ? 2 * place + state : 6 + place].values);
      }
    }
  }
}

TEST_F(FederationAnswers, ForcedRoutesAreEachSpecialistsOwn) {
  const auto federation = Federation::load(adapted_, recorded());
  VectorSink sink;
  federation->set_audit_sink(&sink);
  const auto run = [&](std::span<const ForcedRoute> routes) {
    const SequenceId sequence = federation->create_sequence();
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span<const int32_t>(prompt_).first(9);
    input.rows = StepInput::Rows::kAll;
    input.routes = routes;
    federation->step({&input, 1});
    federation->release(sequence);
    return sink.take();
  };
  const std::vector<TokenRecord> free = run({});
  // The routes that ran anyway, then one token's in one layer of the second specialist turned over.
  std::vector<ForcedRoute> routes;
  for (size_t token = 0; token < free.size(); ++token) {
    for (const LayerRecord& layer : free[token].layers) {
      for (const RouteRecord& route : layer.routes) {
        routes.push_back({static_cast<int32_t>(token), layer.layer, route.expert});
      }
    }
  }
  std::vector<TokenRecord> again = run(routes);
  ASSERT_EQ(again.size(), free.size());
  for (size_t i = 0; i < free.size(); ++i) {
    EXPECT_EQ(record_digest(free[i]), record_digest(again[i])) << i;
    EXPECT_EQ(free[i].prediction.federation.specialists, again[i].prediction.federation.specialists)
        << i;
  }
  const auto layers = static_cast<int32_t>(free[0].layers.size()) / 3;
  int32_t changed_layer = -1;
  for (size_t i = 0; i < routes.size() && changed_layer < 0; ++i) {
    ForcedRoute& route = routes[i];
    if (route.token != 4 || route.layer < layers || route.layer >= 2 * layers) continue;
    const auto& others = free[4].layers[static_cast<size_t>(route.layer)].routes;
    while (std::ranges::any_of(
        others, [&](const RouteRecord& other) { return other.expert == route.expert; })) {
      route.expert =
          (route.expert + 1) %
          federation->audit_layout().layers[static_cast<size_t>(route.layer)].num_experts;
    }
    changed_layer = route.layer;
  }
  ASSERT_GE(changed_layer, layers);
  again = run(routes);
  for (size_t i = 0; i < free.size(); ++i) {
    const auto& was = free[i].prediction.federation.specialists;
    const auto& is = again[i].prediction.federation.specialists;
    EXPECT_EQ(was[0].logprob, is[0].logprob);
    EXPECT_EQ(was[2].logprob, is[2].logprob);
    if (i > 4) continue;
    EXPECT_EQ(was[1].logprob == is[1].logprob, i < 4) << i;
  }
  routes.back().layer = 3 * layers;
  EXPECT_TRUE(is_one_line_with(error_of([&] { run(routes); }),
                               {"layer " + std::to_string(3 * layers), "expected"}));
}

}  // namespace
}  // namespace vitrine::testing
