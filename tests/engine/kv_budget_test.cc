// SPDX-License-Identifier: Apache-2.0
// Keys and values in a budget of bytes: how much it is, what a step would take of it, and that
// sequences which share it have the rows that they have alone.
#include "tests/engine/engine_fixture.h"
#include "tests/engine/federation_fixture.h"

namespace vitrine::testing {
namespace {

constexpr KernelPath kPaths[] = {KernelPath::kFused, KernelPath::kReference};

EngineOptions options_of(KernelPath kernels, const std::string& codec = "f32") {
  EngineOptions options = test_options(1, 16);
  options.kernels = kernels;
  options.kv_codecs = {codec};
  return options;
}

uint64_t bytes_of_block(const std::string& path, EngineOptions options) {
  options.max_sequences = 1;
  options.max_context = options.kv_block_size;
  return Engine::describe(path, options).options.kv_bytes;
}

TEST(KvBudget, IsWholeBlocks) {
  const std::string path = oracle_folder("qwen3_moe");
  for (const KernelPath kernels : kPaths) {
    for (const char* codec : {"f32", "f16", "bf16", "i16"}) {
      EngineOptions options = options_of(kernels, codec);
      const uint64_t block = bytes_of_block(path, options);
      auto whole = Engine::load(path, options);  // 8 sequences of 160 positions
      EXPECT_EQ(whole->kv_blocks(), (std::pair<int64_t, int64_t>(80, 80)));
      EXPECT_EQ(whole->options().kv_bytes, 80 * block);
      options.kv_bytes = 7 * block - 1;
      auto part = Engine::load(path, options);
      EXPECT_EQ(part->kv_blocks().second, 6);
      EXPECT_EQ(part->options().kv_bytes, 6 * block);
      EXPECT_EQ(part->options().max_context, 96) << "no sequence can have more";
      options.kv_bytes = 200 * block;
      auto more = Engine::load(path, options);
      EXPECT_EQ(more->kv_blocks().second, 200);
      EXPECT_EQ(more->options().max_context, 160);
      // The reference path has a block of its own.
      const uint64_t spare = kernels == KernelPath::kReference ? block : 0;
      EXPECT_EQ(more->summary().kv_bytes, 200 * block + spare);
      options.kv_bytes = block - 1;
      const Error error = error_of([&] { Engine::load(path, options); });
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_TRUE(
          is_one_line_with(error, {"kv_bytes", std::to_string(block), std::to_string(10 * block)}))
          << error.what();
    }
  }
}

TEST(KvBudget, DraftersHaveAPart) {
  const std::string path = oracle_folder("qwen3_moe");
  EngineOptions options = options_of(KernelPath::kFused);
  const uint64_t block = bytes_of_block(path, options);
  options.draft_kv_bytes = 3 * block;
  EXPECT_EQ(Engine::load(path, options)->options().kv_bytes, (80 + 3) * block);
  options.kv_bytes = 13 * block + 1;
  const auto engine = Engine::load(path, options);
  EXPECT_EQ(engine->kv_blocks().second, 10);
  EXPECT_EQ(engine->options().kv_bytes, 13 * block);
  EXPECT_EQ(engine->options().draft_kv_bytes, 3 * block);
  EXPECT_EQ(engine->summary().kv_bytes, 10 * block);
  const std::vector<KvMemory> kinds = kv_memory(Checkpoint::open(path), options);
  EXPECT_EQ(kinds.back().layers, 0);
  EXPECT_EQ(kinds.back().bytes, 3 * block);
  EXPECT_EQ(kinds.front().bytes, 10 * block);
  for (const uint64_t bytes : {4 * block - 1, 2 * block}) {
    options.kv_bytes = bytes;
    const Error error = error_of([&] { Engine::load(path, options); });
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_TRUE(is_one_line_with(error, {"'kv_bytes' is " + std::to_string(bytes),
                                         "'draft_kv_bytes'", std::to_string(3 * block)}))
        << error.what();
  }
  options.draft_kv_bytes.reset();
  EXPECT_EQ(Engine::load(path, options)->options().draft_kv_bytes, 0U);
  options.kv_bytes = 0;
  EXPECT_EQ(Engine::load(path, options)->options().draft_kv_bytes, std::nullopt);
}

// A thousand sequences, each with a few tokens, in a pool that holds a few whole contexts.
TEST(KvBudget, AThousandSequencesShareIt) {
  constexpr size_t kCount = 1000, kTokens = 3;
  const std::string path = oracle_folder("qwen3_moe");
  EngineOptions options = options_of(KernelPath::kFused);
  const uint64_t block = bytes_of_block(path, options);
  options.max_sequences = kCount;
  options.max_step_tokens = kTokens * kCount;
  options.max_logit_rows = kCount;
  options.kv_bytes = (kCount + 20) * block;
  auto engine = Engine::load(path, options);
  auto alone = Engine::load(path, test_options(1, 16));
  std::vector<std::vector<int32_t>> ids;
  std::vector<StepInput> inputs(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    ids.push_back(prompt_ids(20, 256, static_cast<uint32_t>(i)));
    inputs[i].sequence = engine->create_sequence();
    inputs[i].tokens = std::span(ids[i]).first(kTokens);
  }
  const Error error = error_of([&] { engine->create_sequence(); });
  EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(is_one_line_with(error, {"1000 sequences", "max_sequences"})) << error.what();
  const auto expect_rows = [&](std::span<const StepOutput> outputs, size_t length, size_t every) {
    for (size_t i = 0; i < outputs.size(); i += every) {
      const size_t of = static_cast<size_t>(outputs[i].sequence - inputs[0].sequence);
      Rows found, whole = score(*alone, std::span(ids[of]).first(length));
      keep_rows(outputs.subspan(i, 1), outputs[i].sequence, found);
      EXPECT_TRUE(same_bits(whole, found, 1)) << "sequence " << of;
    }
  };
  expect_rows(engine->step(inputs), kTokens, 97);
  EXPECT_EQ(engine->kv_blocks().first, 20);
  // Twenty of them can go on into another block, and no more.
  for (size_t i = 0; i < kCount; ++i) inputs[i].tokens = std::span(ids[i]).subspan(kTokens, 14);
  const std::span<StepInput> few = std::span(inputs).first(21);
  EXPECT_EQ(engine->fits(few).blocks, 21);
  EXPECT_FALSE(engine->fits(few).fits());
  EXPECT_EQ(error_of([&] { engine->step(few); }).kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(engine->fits(few.first(20)).fits());
  expect_rows(engine->step(few.first(20)), kTokens + 14, 7);
  EXPECT_EQ(engine->kv_blocks().first, 0);
  engine->release(inputs[999].sequence);
  EXPECT_TRUE(engine->fits(few.last(1)).fits());
  expect_rows(engine->step(few.last(1)), kTokens + 14, 1);
}

class Fits : public ::testing::TestWithParam<KernelPath> {};

// What fits() says is what step() does.
TEST_P(Fits, TellsWhatAStepWouldTake) {
  const std::string path = oracle_folder("llama");
  EngineOptions options = options_of(GetParam());
  options.max_context = 64;
  options.max_step_tokens = 40;
  options.max_logit_rows = 24;
  options.kv_bytes = 9 * bytes_of_block(path, options);
  auto engine = Engine::load(path, options);
  const std::vector<int32_t> ids = prompt_ids(64, engine->summary().vocab_size);
  const SequenceId one = engine->create_sequence(), two = engine->create_sequence();
  Rows ignored;
  feed(*engine, one, ids, 0, 20, 0, ignored);
  const SequenceId three = engine->fork(one);  // 2 blocks, then 1 more
  engine->truncate(three, 7);                  // within the one that both have
  const auto input = [&](SequenceId sequence, size_t count, StepInput::Rows rows) {
    StepInput made;
    made.sequence = sequence;
    made.tokens = std::span(ids).first(count);
    made.rows = rows;
    return made;
  };
  constexpr auto kLast = StepInput::Rows::kLast, kAll = StepInput::Rows::kAll,
                 kNone = StepInput::Rows::kNone;
  struct Case {
    std::vector<StepInput> inputs;
    int64_t tokens, rows, blocks;
    bool fits;
  };
  const Case cases[] = {
      {{}, 0, 0, 0, false},
      {{input(two, 16, kLast)}, 16, 1, 1, true},
      {{input(two, 17, kLast), input(three, 1, kNone)},
       18,
       1,
       3,
       true},  // a copy of the shared one
      {{input(one, 12, kAll), input(two, 12, kAll)}, 24, 24, 1, true},
      {{input(one, 13, kAll), input(two, 12, kAll)}, 25, 25, 2, false},
      {{input(one, 41, kNone)}, 41, 0, 2, false},
      {{input(two, 40, kNone)}, 40, 0, 3, true},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(::testing::Message() << each.tokens << " tokens, " << each.rows << " rows");
    const StepFit fit = engine->fits(each.inputs);
    const auto before = engine->kv_blocks();
    EXPECT_EQ(fit.tokens, each.tokens);
    EXPECT_EQ(fit.max_tokens, 40);
    EXPECT_EQ(fit.rows, each.rows);
    EXPECT_EQ(fit.max_rows, 24);
    EXPECT_EQ(fit.blocks, each.blocks);
    EXPECT_EQ(fit.free_blocks, before.first);
    EXPECT_EQ(fit.full_sequence, 0u);
    EXPECT_EQ(fit.fits(), each.fits);
    if (!each.fits) {
      EXPECT_THROW(engine->step(each.inputs), Error);
      EXPECT_EQ(engine->kv_blocks(), before);
      continue;
    }
    std::vector<int64_t> lengths;
    for (const StepInput& of : each.inputs) lengths.push_back(engine->length(of.sequence));
    engine->step(each.inputs);
    EXPECT_EQ(before.first - engine->kv_blocks().first, fit.blocks);
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      if (each.inputs[i].sequence != three) engine->truncate(each.inputs[i].sequence, lengths[i]);
    }
  }
  // The context is full, or nearly.
  feed(*engine, two, ids, 0, 40, 0, ignored, kNone);
  const StepInput inputs[] = {input(one, 1, kLast), input(two, 25, kNone)};
  EXPECT_EQ(engine->fits(inputs).full_sequence, two);
  EXPECT_FALSE(engine->fits(inputs).fits());
  EXPECT_TRUE(engine->fits(std::span(inputs).first(1)).fits());
  const StepInput unknown = input(777, 1, kLast);
  EXPECT_EQ(error_of([&] { engine->fits({&unknown, 1}); }).kind(), ErrorKind::kInvalidArgument);
  const StepInput twice[] = {inputs[0], inputs[0]};
  EXPECT_TRUE(is_one_line_with(error_of([&] { engine->fits(twice); }), {"twice"}));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Fits, ::testing::ValuesIn(kPaths), [](const auto& info) {
  return info.param == KernelPath::kFused ? "fused" : "reference";
});

// Several checkpoints have it together, as many positions each; adapters of one have it as one.
class KvBudgetOfFederation : public FederationTest {};

TEST_F(KvBudgetOfFederation, IsDivided) {
  const FederationSpec& spec = separate_;
  EngineOptions options = test_options(1, 16);
  options.keep_logits = false;
  uint64_t both = 0;
  for (const SpecialistSpec& specialist : spec.specialists) {
    both += bytes_of_block(specialist.model, options);
  }
  options.kv_bytes = 5 * both + both / 2;
  const auto federation = Federation::load(spec, options);
  EXPECT_EQ(federation->options().kv_bytes, 5 * both);
  EXPECT_EQ(federation->summary().kv_bytes, 5 * both);
  EXPECT_EQ(federation->options().max_context, 80);
  EXPECT_EQ(federation->options().draft_kv_bytes, 0U);
  options.draft_kv_bytes = both;
  const auto guessed = Federation::load(spec, options);
  EXPECT_EQ(guessed->options().kv_bytes, 5 * both);
  EXPECT_EQ(guessed->options().draft_kv_bytes, both);
  EXPECT_EQ(guessed->summary().kv_bytes, 4 * both);
  options.draft_kv_bytes.reset();
  options.kv_bytes = both - 1;
  const Error error = error_of([&] { Federation::load(spec, options); });
  EXPECT_TRUE(is_one_line_with(error, {"kv_bytes", std::to_string(both)})) << error.what();
  // What one engine refuses leaves nothing behind in the others.
  options.kv_bytes = 0;
  options.max_sequences = 1;
  const auto narrow = Federation::load(spec, options);
  const SequenceId first = narrow->create_sequence();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { narrow->create_sequence(); }).kind(), ErrorKind::kOutOfMemory);
  }
  narrow->release(first);
  narrow->release(narrow->create_sequence());

  options.max_sequences = 8;
  const uint64_t block = bytes_of_block(adapted_.base, options);
  options.kv_bytes = 9 * block;
  const auto of_one = Federation::load(adapted_, options);
  EXPECT_EQ(of_one->options().kv_bytes, 9 * block);
  EXPECT_EQ(of_one->engines()[0]->kv_blocks().second, 9);
}

}  // namespace
}  // namespace vitrine::testing
