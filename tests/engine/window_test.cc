// SPDX-License-Identifier: Apache-2.0
// Layers within a window give blocks back: the bits stay, however a sequence came to be, and the
// memory is what windows need. Rows are compared with those of a text that was one step.
#include "tests/engine/speculated_answer.h"
#include "tests/engine/window_fixture.h"

namespace vitrine::testing {
namespace {

constexpr int kTokens = 421;

/// An oracle, its window and how its blocks are.
struct Shape {
  std::string oracle;
  int64_t window;
  int block_size;
  std::string codec;
  bool has_full_layers = true;
  int max_context = 700;

  std::string label() const {
    return oracle + "_" + std::to_string(window) + "_" + std::to_string(block_size) + "_" + codec;
  }
};

class Windows : public ::testing::TestWithParam<Shape> {
 protected:
  Windows() : folder_(GetParam().oracle, GetParam().window) {
    EngineOptions options = options_of();
    engine_ = Engine::load(folder_.path(), options);
    ids_ = prompt_ids(kTokens, engine_->summary().vocab_size);
    expected_ = score_whole(folder_.path(), ids_, {GetParam().codec});
    blocks_ = engine_->kv_blocks();
    const int64_t size = GetParam().block_size;
    const int64_t all = options.max_sequences * ((options.max_context + size - 1) / size);
    EXPECT_LT(blocks_.second, GetParam().has_full_layers ? 2 * all : all)
        << "nothing is given back";
  }
  void TearDown() override { EXPECT_EQ(engine_->kv_blocks(), blocks_) << "blocks were lost"; }

  EngineOptions options_of() const {
    EngineOptions options = window_options(GetParam().block_size, 2, GetParam().max_context);
    options.kv_codecs = {GetParam().codec};
    return options;
  }
  SequenceId begin(size_t length, size_t chunk) {
    Rows ignored;
    const SequenceId sequence = engine_->create_sequence();
    feed(*engine_, sequence, ids_, 0, length, chunk, ignored, StepInput::Rows::kNone);
    return sequence;
  }
  /// The rest of the text has the bits that it has as one step.
  void expect_rest(SequenceId sequence, size_t chunk, const std::string& what,
                   size_t end = kTokens) {
    const auto begin = static_cast<size_t>(engine_->length(sequence));
    Rows rows;
    feed(*engine_, sequence, ids_, begin, end, chunk, rows);
    EXPECT_TRUE(same_bits(expected_, rows, end - begin)) << what;
  }
  /// Blocks that a sequence alone needs at most, once it has so many positions.
  int64_t most_blocks(int64_t length) const {
    const int64_t size = GetParam().block_size, all = (length + size - 1) / size;
    const int64_t seen = GetParam().window + 62 + 2 * size;
    return (GetParam().has_full_layers ? all : 0) + std::min(all, seen / size + 1);
  }
  int64_t used() const { return blocks_.second - engine_->kv_blocks().first; }

  WindowFolder folder_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  Rows expected_;
  std::pair<int64_t, int64_t> blocks_;
};

TEST_P(Windows, ChunksHaveTheBitsOfOneStepAndHoldWhatTheySee) {
  for (const size_t chunk : {1, 7, 33, 48}) {
    Rows rows;
    const SequenceId sequence = engine_->create_sequence();
    for (size_t first = 0; first < ids_.size(); first += chunk) {
      const size_t end = std::min(first + chunk, ids_.size());
      feed(*engine_, sequence, ids_, first, end, 0, rows);
      EXPECT_LE(used(), most_blocks(engine_->length(sequence))) << first;
    }
    EXPECT_TRUE(same_bits(expected_, rows, ids_.size())) << "in chunks of " << chunk;
    engine_->release(sequence);
  }
}

TEST_P(Windows, ForksGoApart) {
  const std::vector<int32_t> apart = prompt_ids(150, engine_->summary().vocab_size, 9);
  for (const size_t at : {203, 256}) {
    Rows ignored;
    const SequenceId first = begin(at, 41), second = engine_->fork(first);
    feed(*engine_, first, apart, 0, apart.size(), 13, ignored);
    const SequenceId third = engine_->fork(second);
    expect_rest(second, 17, "a fork");
    engine_->release(second);
    expect_rest(third, 1, "a fork of it", at + 90);
    engine_->truncate(first, static_cast<int64_t>(at));
    expect_rest(first, 48, "its source");
    engine_->release(first);
    engine_->release(third);
  }
}

TEST_P(Windows, PositionsGo) {
  for (const size_t length : {420, 419, 407, 350, 333, 299, 120, 3, 0}) {
    const SequenceId sequence = begin(300, 48);
    Rows ignored;
    feed(*engine_, sequence, ids_, 300, ids_.size(), 1, ignored);
    engine_->truncate(sequence, static_cast<int64_t>(length));
    expect_rest(sequence, 23, "truncated to " + std::to_string(length));
    engine_->release(sequence);
  }
}

TEST_P(Windows, SequencesThatAreBehindShareAStep) {
  const SequenceId one = begin(390, 48), two = begin(310, 31), three = engine_->fork(one);
  engine_->truncate(one, 200);
  engine_->truncate(three, 380);
  Rows rows[3];
  StepInput inputs[3];
  const SequenceId sequences[] = {one, two, three};
  for (int i = 0; i < 3; ++i) {
    inputs[i].sequence = sequences[i];
    inputs[i].tokens =
        std::span(ids_).subspan(static_cast<size_t>(engine_->length(sequences[i])), 11);
    inputs[i].rows = StepInput::Rows::kAll;
  }
  EXPECT_TRUE(engine_->fits(inputs).fits());
  const std::span<const StepOutput> outputs = engine_->step(inputs);
  for (int i = 0; i < 3; ++i) keep_rows(outputs, sequences[i], rows[i]);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(expected_, rows[i], 11)) << i;
    expect_rest(sequences[i], 29, "behind a shared step");
    engine_->release(sequences[i]);
  }
}

TEST_P(Windows, PrefixesBeginOthers) {
  SequenceId sequence = begin(260, 48);
  Rows ignored;
  feed(*engine_, sequence, ids_, 260, 400, 1, ignored);
  const PrefixId whole = engine_->retain(sequence, 400), part = engine_->retain(sequence, 150);
  expect_rest(sequence, 1, "whose beginning was retained");
  engine_->release(sequence);
  for (const auto& [prefix, length] :
       {std::pair{whole, 400}, {whole, 399}, {whole, 271}, {whole, 100}, {part, 150}, {part, 0}}) {
    sequence = engine_->attach(prefix, length);
    expect_rest(sequence, 37, "attached");
    engine_->release(sequence);
  }
  engine_->release_prefix(whole);
  engine_->release_prefix(part);
}

TEST_P(Windows, DraftsAreKeptInPart) {
  const SequenceId sequence = begin(190, 48);
  for (int round = 0; round < 20; ++round) {
    const int64_t kept = 1 + round % 9;
    const auto length = static_cast<size_t>(engine_->length(sequence));
    std::vector<int32_t> tokens(ids_.begin() + static_cast<ptrdiff_t>(length),
                                ids_.begin() + static_cast<ptrdiff_t>(length) + kept);
    while (tokens.size() < 40) tokens.push_back((ids_[0] + 1) % engine_->summary().vocab_size);
    StepInput input;
    input.sequence = sequence;
    input.tokens = tokens;
    input.num_drafts = 39;
    engine_->step({&input, 1});
    engine_->keep(sequence, kept);
  }
  expect_rest(sequence, 5, "kept in part");
  engine_->release(sequence);
}

TEST_P(Windows, AStepThatFailsChangesNothing) {
  class Refuses : public VectorSink {
   public:
    void commit() override {
      if (refuses) throw Error(ErrorKind::kIo, "no room");
      VectorSink::commit();
    }
    bool refuses = false;
  };
  EngineOptions options = options_of();
  options.audit_mode = AuditMode::kDeferred;
  engine_ = Engine::load(folder_.path(), options);
  Refuses sink;
  engine_->set_audit_sink(&sink);
  const SequenceId sequence = begin(330, 48);
  for (const int back : {0, 250, 40}) {
    engine_->truncate(sequence, engine_->length(sequence) - back);
    sink.refuses = true;
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span(ids_).first(40);
    EXPECT_THROW(engine_->step({&input, 1}), Error);
    sink.refuses = false;
    expect_rest(sequence, 19, "behind a step that failed", 340);
  }
  engine_->release(sequence);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Windows,
    ::testing::Values(Shape{"gpt_oss", 37, 16, "f32"}, Shape{"gpt_oss", 37, 64, "i16"},
                      Shape{"gpt_oss", 64, 48, "f16", true, 1000}, Shape{"gpt_oss", 1, 32, "bf16"},
                      Shape{"gpt_oss", 129, 128, "f32", true, 4096},
                      Shape{"gemma4_text_e", 21, 16, "i16"}, Shape{"gemma4_text", 50, 64, "f32"},
                      Shape{"mixtral", 45, 16, "f32", false},
                      Shape{"mixtral", 70, 64, "i16", false, 1000}),
    [](const ::testing::TestParamInfo<Shape>& info) { return info.param.label(); });

TEST(WindowSteps, OfAPartOfTheDepth) {
  const WindowFolder folder("gpt_oss", 37);
  const auto engine = Engine::load(folder.path(), window_options(16));
  const std::vector<int32_t> ids = prompt_ids(kTokens, engine->summary().vocab_size);
  const Rows expected = score_whole(folder.path(), ids);
  const auto blocks = engine->kv_blocks();
  const SequenceId sequence = engine->create_sequence();
  Rows rows;
  // The layers above are two hundred positions late.
  std::vector<std::vector<float>> residuals;
  const auto input_of = [&](size_t first) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span(ids).subspan(first, std::min<size_t>(40, ids.size() - first));
    input.rows = StepInput::Rows::kNone;
    return input;
  };
  for (size_t first = 0; first < ids.size() + 200; first += 40) {
    if (first < ids.size()) {
      const StepInput input = input_of(first);
      engine->step_layers({&input, 1}, {0, 2});
      const std::span<const float> residual = engine->residual_rows();
      residuals.emplace_back(residual.begin(), residual.end());
    }
    if (first < 200 || first - 200 >= ids.size()) continue;
    StepInput input = input_of(first - 200);
    input.rows = StepInput::Rows::kAll;
    keep_rows(engine->step_layers({&input, 1}, {2, 3}, residuals[(first - 200) / 40]), sequence,
              rows);
  }
  EXPECT_TRUE(same_bits(expected, rows, ids.size()));
  engine->release(sequence);
  EXPECT_EQ(engine->kv_blocks(), blocks);
}

TEST(WindowSteps, TokensWithForcedRoutesAreNotRunAgain) {
  const WindowFolder folder("gpt_oss", 37);
  const auto engine = Engine::load(folder.path(), window_options(16));
  const std::vector<int32_t> ids = prompt_ids(kTokens, engine->summary().vocab_size);
  std::vector<ForcedRoute> routes;
  routes.reserve(static_cast<size_t>(engine->summary().num_experts_per_token));
  for (int32_t slot = 0; slot < engine->summary().num_experts_per_token; ++slot) {
    routes.push_back({0, 0, slot});
  }
  Rows ignored;
  const SequenceId sequence = engine->create_sequence();
  feed(*engine, sequence, ids, 0, 20, 0, ignored);
  StepInput input;
  input.sequence = sequence;
  input.routes = routes;
  input.tokens = std::span(ids).subspan(20, 10);
  engine->step({&input, 1});
  feed(*engine, sequence, ids, 30, 300, 40, ignored);
  engine->truncate(sequence, 290);
  feed(*engine, sequence, ids, 290, 300, 0, ignored);
  engine->truncate(sequence, 100);
  input.routes = {};
  const Error error = error_of([&] { engine->step({&input, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"sequence", "windows", "forced", "new sequence"}))
      << error.what();
  engine->truncate(sequence, 0);
  EXPECT_EQ(engine->step({&input, 1}).size(), 1U);
}

TEST(WindowSpeculation, ChangesNothing) {
  for (const Shape& shape : {Shape{"gpt_oss", 37, 16, "i16"}, Shape{"mixtral", 45, 64, "f32"}}) {
    SCOPED_TRACE(shape.label());
    const WindowFolder folder(shape.oracle, shape.window);
    EngineOptions options = window_options(shape.block_size, 2, 1000);
    options.kv_codecs = {shape.codec};
    options.audit_mode = AuditMode::kDeferred;
    const auto engine = Engine::load(folder.path(), options);
    AskedAnswer asked;
    asked.name = "drawn";
    asked.prompt = prompt_ids(140, engine->summary().vocab_size);
    asked.options.sampler = all_samplers()[1].second;
    asked.options.max_new_tokens = 220;
    asked.options.ignore_end_of_text = true;
    EXPECT_GT(expect_same_however_guessed(*engine, asked, {3, 31}), 100);
    EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
  }
}

}  // namespace
}  // namespace vitrine::testing
