// SPDX-License-Identifier: Apache-2.0
// Steps and answers that a host ends: wherever they stand, sequences are as they were before the
// step, and going on gives the bits of a run that nobody ended.
#include <atomic>
#include <optional>
#include <thread>

#include "tests/engine/federation_fixture.h"
#include "tests/engine/speculated_answer.h"
#include "tests/engine/window_fixture.h"
#include "vitrine/speculate.h"

namespace vitrine::testing {
namespace {

constexpr size_t kHeld = 37, kStepEnd = 81, kAll = 120;

/// Raises a flag in the middle of a step: where the n-th tap is read.
class Raiser final : public TapReader {
 public:
  void read(const TapRows&) override {
    if (++reads_ == raises_at_) raised = true;
  }
  void begin(int raises_at) {
    raised = false;
    reads_ = 0;
    raises_at_ = raises_at;
  }
  int reads() const { return reads_; }
  std::atomic<bool> raised{false};

 private:
  int reads_ = 0, raises_at_ = 0;
};

/// Taps of each layer, at what the kind of model has there.
std::vector<Tap> places_of(const std::string& path) {
  constexpr auto kInput = Tap::Side::kInput, kOutput = Tap::Side::kOutput;
  const std::vector<Tap> kinds = {{0, "qkv", "normed", kInput},
                                  {0, "gated_delta", "normed", kInput},
                                  {0, "project", "normed_latent", kInput},
                                  {0, "short_convolution", "convolved", kOutput},
                                  {0, "project", "residual", kOutput},
                                  {0, "experts", "normed", kInput},
                                  {0, "combine", "residual", kOutput}};
  const int layers = Engine::describe(path, {}).summary.num_layers;
  std::vector<Tap> found;
  for (int layer = 0; layer < layers; ++layer) {
    for (Tap tap : kinds) {
      EngineOptions one;
      tap.layer = layer;
      one.taps = {tap};
      try {
        Engine::describe(path, one);
        found.push_back(tap);
      } catch (const Error&) {  // this layer has none
      }
    }
  }
  return found;
}

struct CancelledModel {
  std::string name;
  std::string path;
  KernelPath kernels = KernelPath::kFused;
  std::shared_ptr<WindowFolder> folder = nullptr;
};
void PrintTo(const CancelledModel& model, std::ostream* out) { *out << model.name; }

CancelledModel with_window(const std::string& oracle, int64_t window) {
  const auto folder = std::make_shared<WindowFolder>(oracle, window);
  return {oracle + "_window", folder->path(), KernelPath::kFused, folder};
}

class Cancel : public ::testing::TestWithParam<CancelledModel> {
 protected:
  EngineOptions options() const {
    EngineOptions options = test_options(2, 16);
    options.kernels = GetParam().kernels;
    options.kv_codecs = {"f32"};
    return options;
  }
  void load(EngineOptions options) {
    options.taps = places_of(GetParam().path);
    engine_ = Engine::load(GetParam().path, options);
    engine_->set_tap_reader(&raiser_);
    ids_ = prompt_ids(static_cast<int>(kAll), engine_->summary().vocab_size);
    SequenceId whole = engine_->create_sequence();
    for (const auto& [begin, end] :
         {std::pair{size_t{0}, kHeld}, {kHeld, kStepEnd}, {kStepEnd, kAll}}) {
      feed(*engine_, whole, ids_, begin, end, 0, expected_);
    }
    engine_->release(whole);
  }
  SequenceId begin(size_t length) {
    Rows ignored;
    const SequenceId sequence = engine_->create_sequence();
    feed(*engine_, sequence, ids_, 0, length, 0, ignored, StepInput::Rows::kNone);
    return sequence;
  }
  StepInput input(SequenceId sequence, size_t begin, size_t end) const {
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span(ids_).subspan(begin, end - begin);
    input.rows = StepInput::Rows::kAll;
    return input;
  }
  void expect_rest(SequenceId sequence, size_t begin) {
    EXPECT_EQ(engine_->length(sequence), static_cast<int64_t>(begin));
    Rows rows;
    feed(*engine_, sequence, ids_, begin, kStepEnd, 0, rows);
    feed(*engine_, sequence, ids_, kStepEnd, kAll, 0, rows);
    EXPECT_TRUE(same_bits(expected_, rows, kAll - begin));
  }

  Raiser raiser_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  Rows expected_;
};

// Both sequences of the step, whosever flag it is; one of them is alone in the steps that follow.
TEST_P(Cancel, EndsAStepAnywhere) {
  load(options());
  const SequenceId sequence = begin(kHeld), other = begin(kHeld);
  StepInput inputs[2] = {input(sequence, kHeld, kStepEnd), input(other, kHeld, kHeld + 9)};
  raiser_.begin(0);
  engine_->step(inputs);
  const int places = raiser_.reads();
  ASSERT_GE(places, 2 * engine_->summary().num_layers);
  engine_->truncate(sequence, kHeld);
  engine_->truncate(other, kHeld);
  inputs[0].cancelled = &raiser_.raised;
  for (int place = 1; place <= places; ++place) {
    raiser_.begin(place);
    const auto blocks = engine_->kv_blocks();
    const Error error = error_of([&] { engine_->step(inputs); });
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << place;
    EXPECT_TRUE(is_one_line_with(error, {"cancelled", "before"})) << error.what();
    EXPECT_EQ(raiser_.reads(), place) << "the step went on";
    EXPECT_EQ(engine_->kv_blocks(), blocks) << place;
    for (const StepInput& each : inputs) {
      ASSERT_EQ(engine_->length(each.sequence), static_cast<int64_t>(kHeld)) << place;
      ASSERT_TRUE(std::ranges::equal(engine_->tokens(each.sequence), std::span(ids_).first(kHeld)));
    }
    // It stays raised: no other step begins.
    EXPECT_EQ(error_of([&] { engine_->step(inputs); }).kind(), ErrorKind::kCancelled);
    EXPECT_EQ(raiser_.reads(), place);
  }
  expect_rest(other, kHeld);  // while the flag is raised, which is the other one's
  raiser_.begin(0);
  expect_rest(sequence, kHeld);
}

// A thread raises it at any time, also while pieces are run, and while states are made again.
TEST_P(Cancel, EndsAStepAtAnyTime) {
  load(options());
  const SequenceId sequence = begin(kHeld);
  std::atomic<bool> flag{false};
  std::atomic<int> steps{0};
  std::atomic<bool> ends{false};
  std::thread host([&] {
    uint32_t random = 1;
    for (int seen = 0; !ends;) {
      if (steps.load() == seen) continue;
      seen = steps.load();
      random = random * 1664525u + 1013904223u;
      for (uint32_t i = 0; i < random >> 13; ++i)
        std::atomic_signal_fence(std::memory_order_seq_cst);
      flag = true;
    }
  });
  Rows rows;
  int cancelled = 0;
  const int rounds = GetParam().kernels == KernelPath::kFused ? 60 : 6;
  for (int round = 0; round < rounds; ++round) {
    flag = false;
    ++steps;
    StepInput one = input(sequence, kHeld, kStepEnd);
    one.cancelled = &flag;
    rows.clear();
    try {
      keep_rows(engine_->step({&one, 1}), sequence, rows);
      EXPECT_TRUE(same_bits(expected_, rows, kStepEnd - kHeld)) << round;
      engine_->truncate(sequence, kHeld);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
      ++cancelled;
    }
    while (!flag) std::this_thread::yield();  // that was meant for this step
    ASSERT_EQ(engine_->length(sequence), static_cast<int64_t>(kHeld)) << round;
  }
  ends = true;
  host.join();
  RecordProperty("cancelled", cancelled);
  expect_rest(sequence, kHeld);
}

// What a log is told is what it is told where nobody cancels.
TEST_P(Cancel, LeavesNothingInALog) {
  EngineOptions options = this->options();
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  const auto run = [&](int place, VectorSink& sink) {
    load(options);
    const SequenceId sequence = begin(kHeld);
    engine_->set_audit_sink(&sink);
    StepInput one = input(sequence, kHeld, kStepEnd);
    one.cancelled = &raiser_.raised;
    raiser_.begin(place);
    if (place > 0) {
      EXPECT_EQ(error_of([&] { engine_->step({&one, 1}); }).kind(), ErrorKind::kCancelled);
    }
    raiser_.begin(0);
    engine_->step({&one, 1});
    engine_->set_audit_sink(nullptr);
  };
  VectorSink plain;
  run(0, plain);
  ASSERT_EQ(plain.records().size(), 1u);
  for (const int place : {1, 3}) {
    VectorSink sink;
    run(place, sink);
    EXPECT_EQ(sink.records(), plain.records());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Cancel,
    ::testing::Values(CancelledModel{"qwen3_moe", oracle_folder("qwen3_moe")},
                      CancelledModel{"deepseek_v3", oracle_folder("deepseek_v3")},
                      CancelledModel{"qwen3_next", oracle_folder("qwen3_next")},
                      CancelledModel{"lfm2_moe", oracle_folder("lfm2_moe")},
                      with_window("gpt_oss", 20),
                      CancelledModel{"reference", oracle_folder("qwen3_moe"),
                                     KernelPath::kReference}),
    [](const auto& info) { return info.param.name; });

// A flag of the engine's ends all of its steps, and loading.
TEST(CancelledEngine, ByItsOwnFlag) {
  std::atomic<bool> flag{true};
  EngineOptions options = test_options(2);
  options.cancelled = &flag;
  const std::string path = oracle_folder("qwen3_moe");
  const Error loading = error_of([&] { Engine::load(path, options); });
  EXPECT_EQ(loading.kind(), ErrorKind::kCancelled);
  EXPECT_TRUE(is_one_line_with(loading, {path, "cancelled"})) << loading.what();
  flag = false;
  const auto engine = Engine::load(path, options);
  const std::vector<int32_t> ids = prompt_ids(30, engine->summary().vocab_size);
  const Rows expected = score(*engine, ids);
  StepInput input{engine->create_sequence(), ids};
  flag = true;
  EXPECT_EQ(error_of([&] { engine->step({&input, 1}); }).kind(), ErrorKind::kCancelled);
  EXPECT_EQ(generate(*engine, ids, {}).reason, StopReason::kCancelled);
  EXPECT_EQ(error_of([&] { measure_pass_costs(*engine, 4, 1); }).kind(), ErrorKind::kCancelled);
  EXPECT_EQ(error_of([&] { engine->measure_read_bandwidth(0.01); }).kind(), ErrorKind::kCancelled);
  flag = false;
  EXPECT_TRUE(same_bits(expected, score(*engine, ids), ids.size()));
}

// Steps whose tokens took routes that nothing makes again: the state before is kept.
TEST(CancelledState, BehindForcedRoutes) {
  EngineOptions options = test_options(2);
  const std::string path = oracle_folder("qwen3_next");
  options.taps = {{3, "experts", "normed"}};
  const auto engine = Engine::load(path, options);
  const std::vector<int32_t> ids = prompt_ids(24, engine->summary().vocab_size);
  std::vector<ForcedRoute> routes;
  for (int32_t token = 0; token < 8; ++token) {
    for (int32_t slot = 0; slot < engine->summary().num_experts_per_token; ++slot) {
      routes.push_back({token, 0, slot});
    }
  }
  Raiser raiser;
  engine->set_tap_reader(&raiser);
  Rows rows[2];
  for (const bool is_cancelled : {false, true}) {
    const SequenceId sequence = engine->create_sequence();
    for (size_t first = 0; first < ids.size(); first += 8) {
      StepInput input{sequence, std::span(ids).subspan(first, 8), StepInput::Rows::kAll};
      input.routes = routes;
      input.cancelled = &raiser.raised;
      if (is_cancelled) {
        raiser.begin(1);
        EXPECT_EQ(error_of([&] { engine->step({&input, 1}); }).kind(), ErrorKind::kCancelled);
      }
      raiser.begin(0);
      keep_rows(engine->step({&input, 1}), sequence, rows[is_cancelled ? 1 : 0]);
    }
  }
  EXPECT_TRUE(same_bits(rows[0], rows[1], ids.size()));
}

class CancelledAnswer : public ::testing::Test {
 protected:
  CancelledAnswer() {
    EngineOptions options = test_options(2);
    options.max_step_tokens = 16;
    options.taps = {{0, "qkv", "normed"}, {1, "qkv", "normed"}};
    engine_ = Engine::load(oracle_folder("qwen3_moe"), options);
    engine_->set_tap_reader(&raiser_);
    prompt_ = prompt_ids(70, engine_->summary().vocab_size);
    asked_.max_new_tokens = 30;
    asked_.ignore_end_of_text = true;
    asked_.sampler = {.temperature = 0.9f, .seed = 3};
    expected_ = generate(*engine_, prompt_, asked_).tokens;
  }
  /// What is left of the prompt and of the answer, in the sequence that was cancelled.
  void expect_rest(GenerateOptions options, const GenerateResult& result) {
    raiser_.begin(0);
    std::vector<int32_t> text = prompt_;
    text.insert(text.end(), result.tokens.begin(), result.tokens.end());
    const auto held = static_cast<size_t>(engine_->length(options.sequence));
    ASSERT_LT(held, text.size());
    EXPECT_TRUE(std::ranges::equal(engine_->tokens(options.sequence), std::span(text).first(held)));
    options.max_new_tokens -= static_cast<int>(result.tokens.size());
    options.speculation = {};
    const auto rest = generate(*engine_, std::span(text).subspan(held), options);
    std::vector<int32_t> all = result.tokens;
    all.insert(all.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(all, expected_);
    engine_->release(options.sequence);
  }

  Raiser raiser_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> prompt_, expected_;
  GenerateOptions asked_;
};

TEST_F(CancelledAnswer, InItsPromptAndBehind) {
  for (const int place : {1, 2, 3, 6, 9, 10, 11, 12, 21, 40}) {
    SCOPED_TRACE(place);
    GenerateOptions options = asked_;
    options.sequence = engine_->create_sequence();
    options.cancelled = &raiser_.raised;
    raiser_.begin(place);
    const GenerateResult result = generate(*engine_, prompt_, options);
    EXPECT_EQ(result.reason, StopReason::kCancelled);
    // Two taps a step, five steps of the prompt, the last of which chooses.
    const int steps = (place - 1) / 2;
    EXPECT_EQ(std::ssize(result.tokens), std::max(0, steps - 4));
    EXPECT_EQ(engine_->length(options.sequence),
              steps < 5 ? 16 * steps : 70 + std::ssize(result.tokens) - 1);
    expect_rest(options, result);
  }
}

TEST_F(CancelledAnswer, WithGuesses) {
  for (const int place : {7, 11, 12, 13, 15, 18}) {
    SCOPED_TRACE(place);
    OracleDrafter drafter(expected_, 0.8, engine_->summary().vocab_size);
    GenerateOptions options = asked_;
    options.sequence = engine_->create_sequence();
    options.cancelled = &raiser_.raised;
    options.speculation.drafter = &drafter;
    options.speculation.max_drafts = 3;
    raiser_.begin(place);
    const GenerateResult result = generate(*engine_, prompt_, options);
    EXPECT_EQ(result.reason, StopReason::kCancelled);
    EXPECT_TRUE(result.speculation.problem.empty()) << result.speculation.problem;
    expect_rest(options, result);
  }
}

TEST_F(CancelledAnswer, TellsHowFarItsPromptIs) {
  std::vector<int64_t> done;
  GenerateOptions options = asked_;
  options.on_progress = [&](const PromptProgress& progress) {
    EXPECT_EQ(progress.total, 70);
    done.push_back(progress.done);
    return true;
  };
  EXPECT_EQ(generate(*engine_, prompt_, options).tokens, expected_);
  EXPECT_EQ(done, (std::vector<int64_t>{16, 32, 48, 64, 70}));
  for (const int64_t last : done) {
    options.sequence = engine_->create_sequence();
    options.on_progress = [&](const PromptProgress& progress) { return progress.done < last; };
    const GenerateResult result = generate(*engine_, prompt_, options);
    EXPECT_EQ(result.reason, StopReason::kCancelled);
    EXPECT_TRUE(result.tokens.empty());
    EXPECT_EQ(engine_->length(options.sequence), last);
    engine_->release(options.sequence);
  }
}

// One of two answers that share steps: the other goes on.
TEST_F(CancelledAnswer, BesideAnother) {
  GenerateOptions options = asked_;
  options.cancelled = &raiser_.raised;
  Generation one(*engine_, prompt_, options), other(*engine_, prompt_, asked_);
  raiser_.begin(13);
  while (!other.finished()) {
    std::vector<StepInput> inputs;
    std::vector<Generation*> those;
    for (Generation* each : {&one, &other}) {
      if (each->finished()) continue;
      inputs.push_back(each->next_input(8));
      those.push_back(each);
    }
    try {
      const auto outputs = engine_->step(inputs);
      size_t first = 0;
      for (size_t i = 0; i < those.size(); ++i) {
        const size_t count = inputs[i].rows == StepInput::Rows::kNone ? 0 : 1;
        those[i]->accept(outputs.subspan(first, count));
        first += count;
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kCancelled);
      ASSERT_FALSE(one.finished());
      one.cancel();
    }
  }
  EXPECT_EQ(one.result().reason, StopReason::kCancelled);
  EXPECT_EQ(other.result().tokens, expected_);
}

/// The first specialist's distribution; raises a flag at the n-th row.
class RaisingCombiner final : public Combiner {
 public:
  RaisingCombiner(int raises_at, std::atomic<bool>& flag) : left_(raises_at), flag_(flag) {}
  std::string_view name() const override { return "raising"; }
  void combine(const CombinerInput& input, std::span<float> joint) override {
    if (--left_ == 0) flag_ = true;
    const SpecialistRow& row = input.specialists[0];
    for (size_t t = 0; t < joint.size(); ++t) {
      joint[t] = static_cast<float>(double{row.logits[t]} - row.log_sum_exp);
    }
  }
  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    for (size_t i = 0; i < shares.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      shares[i] = {double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp,
                   i == 0 ? 1.0 : 0.0, i == 0 ? 1.0 : 0.0};
    }
    return {shares[0].logprob, 0.0};
  }

 private:
  int left_;
  std::atomic<bool>& flag_;
};

class CancelledFederation : public FederationTest {};

TEST_F(CancelledFederation, NoSpecialistIsFurtherThanTheOthers) {
  for (const FederationSpec& spec : {separate_, adapted_}) {
    for (const bool attribution : {false, true}) {
      std::atomic<bool> flag{false};
      EngineOptions options = test_options(2);
      options.attribution = attribution;
      options.audit_mode = attribution ? AuditMode::kDeferred : AuditMode::kNone;
      const auto load = [&](int raises_at) {
        return Federation::load(spec, options, std::make_unique<RaisingCombiner>(raises_at, flag));
      };
      const Rows expected = feed_all(*load(0), 25);
      for (const int row : {1, 24, 25, 26, 49}) {
        SCOPED_TRACE(row);
        const auto federation = load(row);
        VectorSink sink;
        federation->set_audit_sink(&sink);
        flag = false;
        Rows rows;
        int cancelled = 0;
        const SequenceId sequence = federation->create_sequence();
        for (size_t first = 0; first < prompt_.size();) {
          StepInput input{sequence, std::span(prompt_).subspan(first, 25), StepInput::Rows::kAll};
          input.cancelled = &flag;
          try {
            keep_rows(federation->step({&input, 1}), sequence, rows);
            first += 25;
          } catch (const Error& error) {
            ASSERT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
            ASSERT_EQ(federation->length(sequence), static_cast<int64_t>(first));
            flag = false;
            ++cancelled;
          }
        }
        EXPECT_EQ(cancelled, 1);
        EXPECT_TRUE(same_bits(expected, rows, prompt_.size()));
        EXPECT_EQ(sink.records().size(), attribution ? 2u : 0u);
        federation->set_audit_sink(nullptr);
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
