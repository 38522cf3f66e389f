// SPDX-License-Identifier: Apache-2.0
// Sinks of single sequences: each gets what the sequence leaves alone, whoever steps beside it.
#include "vitrine/audit.h"

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

/// Has no room for one of its records.
class FullSink final : public VectorSink {
 public:
  std::byte* reserve(size_t num_bytes) override {
    if (room-- == 0) throw Error(ErrorKind::kIo, "the disk is full");
    return VectorSink::reserve(num_bytes);
  }
  int room = 2;
};

TEST(SequenceSinks, FailTheirOwnSequenceWhereOneHasNoRoom) {
  EngineOptions options = test_options(2);
  options.audit_mode = AuditMode::kDeferred;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const auto plain = Engine::load(oracle_folder("qwen3_moe"), options);
  VectorSink others, first, of_plain;
  FullSink full;
  SequenceSinks sinks(&others);
  engine->set_audit_sink(&sinks);
  plain->set_audit_sink(&of_plain);
  std::vector<StepInput> inputs;
  const std::vector<int32_t> tokens = {3, 5, 8};
  for (int i = 0; i < 3; ++i) {
    inputs.push_back({engine->create_sequence(), tokens});
    ASSERT_EQ(plain->create_sequence(), inputs.back().sequence);
  }
  sinks.add(inputs[0].sequence, first);
  sinks.add(inputs[1].sequence, full);
  for (size_t step = 1; step <= 4; ++step) {
    plain->step(inputs);
    const std::span<const StepOutput> outputs = engine->step(inputs);
    const bool fails = step == 3;  // for one: the others have kept theirs, and it is stepped again
    ASSERT_EQ(outputs.size(), 3U);
    ASSERT_EQ(engine->failures().size(), fails ? 1U : 0U);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(outputs[i].failed, fails && i == 1);
    EXPECT_EQ(first.records().size(), step);
    EXPECT_EQ(others.records().size(), step);
    EXPECT_EQ(full.records().size(), fails ? 2 : step);
    if (fails) {
      EXPECT_EQ(engine->failures()[0].sequence, inputs[1].sequence);
      EXPECT_EQ(engine->failures()[0].kind, ErrorKind::kIo);
      EXPECT_EQ(engine->failures()[0].message, "the disk is full");
      EXPECT_EQ(engine->length(inputs[1].sequence), 6);
      engine->step({&inputs[1], 1});
    }
    for (const StepInput& input : inputs) {
      EXPECT_EQ(engine->length(input.sequence), plain->length(input.sequence));
    }
  }
  const auto row_digests = [](VectorSink& sink) {
    std::vector<uint64_t> digests;
    for (const TokenRecord& record : sink.take()) {
      if (record.has_prediction) digests.push_back(record.prediction.logits_digest);
    }
    return digests;
  };
  const std::vector<uint64_t> all = row_digests(of_plain);
  for (size_t i = 0; VectorSink * sink : {&first, static_cast<VectorSink*>(&full), &others}) {
    const std::vector<uint64_t> own = row_digests(*sink);
    ASSERT_EQ(own.size(), 4U);
    for (size_t step = 0; step < own.size(); ++step) EXPECT_EQ(own[step], all[3 * step + i]);
    ++i;
  }
  engine->set_audit_sink(nullptr);
  plain->set_audit_sink(nullptr);
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
