// SPDX-License-Identifier: Apache-2.0
// What uses a sequence of its own releases it at its end and throws nothing there, whatever a sink,
// a log or a stepper throws.
#include <stdexcept>

#include "tests/engine/engine_fixture.h"
#include "vitrine/embed.h"
#include "vitrine/generate.h"
#include "vitrine/quality.h"

namespace vitrine::testing {
namespace {

/// The warnings of its lifetime. Like a host's log that is broken, it may throw.
class Warnings {
 public:
  explicit Warnings(bool throws = false) {
    set_log_callback([this, throws](LogLevel level, std::string_view message) {
      if (level == LogLevel::kWarning) all.emplace_back(message);
      if (throws) throw std::runtime_error("a host's log");
    });
  }
  ~Warnings() { set_log_callback({}); }
  std::vector<std::string> all;
};

class ReleaseAtEnd : public ::testing::Test {
 protected:
  ReleaseAtEnd() : ids_(prompt_ids(7, 256)) {
    EngineOptions options = test_options();
    options.keep_hidden_state = true;
    options.audit_mode = AuditMode::kDeferred;
    engine_ = Engine::load(oracle_folder("qwen3_moe"), options);
    free_ = engine_->kv_blocks().first;
    options_.max_new_tokens = 3;
  }
  ~ReleaseAtEnd() override { engine_->set_audit_sink(nullptr); }

  std::unique_ptr<Generation> begun() {
    auto generation = std::make_unique<Generation>(*engine_, ids_, options_);
    StepInput input = generation->next_input();
    generation->accept(engine_->step({&input, 1}));
    return generation;
  }
  void expect_gone(SequenceId sequence) {
    const Error error = error_of([&] { static_cast<void>(engine_->length(sequence)); });
    EXPECT_TRUE(is_one_line_with(error, {"does not exist or was released"})) << error.what();
    EXPECT_EQ(engine_->kv_blocks().first, free_);
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  GenerateOptions options_;
  int64_t free_ = 0;
};

/// Throws what it must not, when a sequence is gone.
class ThrowingAtEnd final : public VectorSink {
 public:
  void on_event(const AuditEvent& event) override {
    if (event.kind == AuditEvent::Kind::kReleased) throw std::runtime_error("a host's sink");
  }
};

TEST_F(ReleaseAtEnd, WhateverTheSinkThrows) {
  ThrowingAtEnd sink;
  engine_->set_audit_sink(&sink);
  Warnings warnings;
  auto generation = begun();
  SequenceId sequence = generation->sequence();
  generation.reset();
  expect_gone(sequence);
  sequence = engine_->create_sequence();
  engine_->release(sequence);
  expect_gone(sequence);
  ASSERT_EQ(warnings.all.size(), 2u);
  for (const std::string& warning : warnings.all) {
    EXPECT_NE(warning.find("on_event() threw at sequence "), warning.npos) << warning;
  }
}

TEST_F(ReleaseAtEnd, WhateverTheLogThrows) {
  ThrowingAtEnd sink;
  engine_->set_audit_sink(&sink);
  Warnings warnings(/*throws=*/true);
  auto generation = begun();
  const SequenceId sequence = generation->sequence();
  generation.reset();
  expect_gone(sequence);
}

TEST_F(ReleaseAtEnd, WhereTheHostWasFaster) {
  Warnings warnings;
  auto generation = begun();
  const SequenceId sequence = generation->sequence();
  engine_->release(sequence);
  generation.reset();
  expect_gone(sequence);
  ASSERT_EQ(warnings.all.size(), 1u);
  EXPECT_NE(warnings.all[0].find("does not exist or was released"), std::string::npos);
}

/// Ends an answer in the middle of a step of others.
class EndingSink final : public VectorSink {
 public:
  void commit() override {
    VectorSink::commit();
    generation.reset();
  }
  std::unique_ptr<Generation> generation;
};

// The engine cannot release it then, and says so to the host, who can as soon as the step is over.
TEST_F(ReleaseAtEnd, WithinAStepTheSequenceStaysWithTheHost) {
  EndingSink sink;
  sink.generation = begun();
  const SequenceId left = sink.generation->sequence(), other = engine_->create_sequence();
  engine_->set_audit_sink(&sink);
  Warnings warnings;
  const StepInput input{other, ids_};
  EXPECT_EQ(engine_->step({&input, 1}).size(), 1u);
  EXPECT_EQ(sink.generation, nullptr);
  ASSERT_EQ(warnings.all.size(), 1u);
  const std::string named = "releasing sequence " + std::to_string(left) + " ";
  EXPECT_NE(warnings.all[0].find(named), std::string::npos) << warnings.all[0];
  engine_->release(left);
  engine_->release(other);
  expect_gone(left);
}

class ThrowingStepper final : public ForwardingStepper {
 public:
  using ForwardingStepper::ForwardingStepper;
  void release(SequenceId sequence) override {
    ForwardingStepper::release(sequence);
    last = sequence;
    throw std::runtime_error("a host's stepper");
  }
  SequenceId last = 0;
};

TEST_F(ReleaseAtEnd, WhateverAHostsStepperThrows) {
  ThrowingStepper stepper(*engine_);
  Warnings warnings;
  EXPECT_EQ(generate(stepper, ids_, options_).prompt_tokens, 7);
  expect_gone(stepper.last);
  const std::vector<std::vector<int32_t>> texts = {ids_};
  EXPECT_EQ(embed(stepper, texts).size(), 1u);
  expect_gone(stepper.last);
  EXPECT_EQ(score_tokens(stepper, ids_).logprobs.size(), 6u);
  expect_gone(stepper.last);
  ASSERT_EQ(warnings.all.size(), 3u);
  for (const std::string& warning : warnings.all) {
    EXPECT_NE(warning.find("failed: a host's stepper"), warning.npos) << warning;
  }
}

}  // namespace
}  // namespace vitrine::testing
