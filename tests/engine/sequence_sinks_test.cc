// SPDX-License-Identifier: Apache-2.0
// Sinks of single sequences: each gets what the sequence leaves alone, whoever steps beside it.
#include "vitrine/sequence_sinks.h"

#include <functional>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

class CountingSink final : public VectorSink {
 public:
  void on_event(const AuditEvent& event) override { events.push_back(event); }
  std::vector<AuditEvent> events;
};

/// Sequences with prompts of different lengths, then one token each a step; the first one has no
/// row in one of them.
void run(Engine& engine, AuditSink& sink, const std::vector<size_t>& which,
         const std::function<void(size_t, SequenceId)>& created) {
  engine.set_audit_sink(&sink);
  std::vector<SequenceId> sequences;
  for (const size_t i : which) {
    sequences.push_back(engine.create_sequence());
    created(i, sequences.back());
  }
  for (int step = 0; step < 4; ++step) {
    std::vector<std::vector<int32_t>> tokens;
    for (const size_t i : which) {
      tokens.push_back(prompt_ids(step == 0 ? 3 + 2 * static_cast<int>(i) : 1,
                                  engine.summary().vocab_size,
                                  static_cast<uint32_t>(10 * i) + static_cast<uint32_t>(step)));
    }
    std::vector<StepInput> inputs;
    for (size_t at = 0; at < which.size(); ++at) {
      inputs.push_back({sequences[at], tokens[at]});
      if (which[at] == 0 && step == 2) inputs.back().rows = StepInput::Rows::kNone;
    }
    engine.step(inputs);
  }
  for (const SequenceId sequence : sequences) engine.release(sequence);
  engine.set_audit_sink(nullptr);
}

TEST(SequenceSinks, HaveTheBytesThatASequenceLeavesAlone) {
  EngineOptions options = test_options(2);
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  options.attribution = true;
  const auto engine = Engine::load(oracle_folder("qwen2_moe"), options);
  CountingSink own[3], others;
  SequenceSinks sinks(&others);
  run(*engine, sinks, {0, 1, 2}, [&](size_t i, SequenceId sequence) {
    if (i != 1) sinks.add(sequence, own[i]);
  });
  for (const size_t i : {0, 1, 2}) {
    SCOPED_TRACE(i);
    const auto fresh = Engine::load(oracle_folder("qwen2_moe"), options);
    for (size_t before = 0; before < i; ++before) fresh->release(fresh->create_sequence());
    CountingSink alone;
    run(*fresh, alone, {i}, [](size_t, SequenceId) {});
    const CountingSink& found = i == 1 ? others : own[i];
    ASSERT_EQ(found.records().size(), 4u);
    EXPECT_EQ(found.records(), alone.records());
    EXPECT_EQ(found.layout().token_words, alone.layout().token_words);
    if (i == 1) continue;
    ASSERT_EQ(found.events.size(), 2u);
    EXPECT_EQ(found.events[0].kind, AuditEvent::Kind::kCreated);
    EXPECT_EQ(found.events[1].kind, AuditEvent::Kind::kReleased);
  }
}

TEST(SequenceSinks, MayBeOneOfSeveralSequencesAndGo) {
  EngineOptions options = test_options();
  options.audit_mode = AuditMode::kDeferred;
  const auto engine = Engine::load(oracle_folder("llama"), options);
  CountingSink two;
  SequenceSinks sinks;
  run(*engine, sinks, {0, 1, 2}, [&](size_t i, SequenceId sequence) {
    if (i == 1) return;
    sinks.add(sequence, two);
    EXPECT_THROW(sinks.add(sequence, two), Error);
  });
  EXPECT_EQ(two.records().size(), 4u);
  EXPECT_EQ(two.take().size(), 3u + 7u + 2 * 3u);
  run(*engine, sinks, {0}, [&](size_t, SequenceId sequence) {
    sinks.add(sequence, two);
    sinks.remove(sequence);
  });
  EXPECT_TRUE(two.records().empty());
}

}  // namespace
}  // namespace vitrine::testing
