// SPDX-License-Identifier: Apache-2.0
// Models that keep a state in place of keys and values: prefixes, drafts, forced routes, failures
// and wrappers, beside what the tests of all models check.
#include <nlohmann/json.hpp>

#include "tests/engine/engine_fixture.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {
namespace {

class State : public ::testing::TestWithParam<std::string> {
 protected:
  void load(int max_sequences = 8) {
    EngineOptions options = test_options(2);
    options.max_sequences = max_sequences;
    engine_ = Engine::load(oracle_folder(GetParam()), options);
    ids_ = prompt_ids(70, engine_->summary().vocab_size);
    expected_ = score(*engine_, ids_);
  }
  void expect_rest(SequenceId sequence, const char* what) {
    const auto begin = static_cast<size_t>(engine_->length(sequence));
    Rows rows;
    feed(*engine_, sequence, ids_, begin, ids_.size(), 9, rows);
    EXPECT_TRUE(same_bits(expected_, rows, ids_.size() - begin)) << what;
  }

  /// Routes of so many tokens of a step through the first experts of the first layer that has some.
  std::vector<ForcedRoute> forced_routes(size_t tokens) const {
    std::vector<ForcedRoute> routes;
    for (size_t token = 0; token < tokens; ++token) {
      for (int32_t slot = 0; slot < engine_->summary().num_experts_per_token; ++slot) {
        routes.push_back({static_cast<int32_t>(token), GetParam() == "lfm2_moe" ? 1 : 0, slot});
      }
    }
    return routes;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  Rows expected_;
};

TEST_P(State, PrefixesBeginOthers) {
  load(2);
  Rows ignored;
  SequenceId sequence = engine_->create_sequence();
  feed(*engine_, sequence, ids_, 0, 40, 0, ignored);
  const PrefixId whole = engine_->retain(sequence, 40), part = engine_->retain(sequence, 23);
  expect_rest(sequence, "whose beginning was retained");
  engine_->release(sequence);
  for (const auto& [prefix, length] :
       {std::pair{whole, 40}, {part, 23}, {whole, 11}, {whole, 0}, {part, 23}, {whole, 40}}) {
    sequence = engine_->attach(prefix, length);
    expect_rest(sequence, "attached");
    engine_->release(sequence);
  }
  engine_->release_prefix(whole);
  engine_->release_prefix(part);
}

TEST_P(State, StepsAreKeptInPart) {
  load(1);
  Rows ignored;
  const SequenceId sequence = engine_->create_sequence();
  feed(*engine_, sequence, ids_, 0, 20, 0, ignored);
  for (int64_t kept : {4, 0, 3, 1}) {
    // A token that is known and drafts behind it, of which some are wrong.
    std::vector<int32_t> tokens(ids_.begin() + engine_->length(sequence),
                                ids_.begin() + engine_->length(sequence) + kept);
    while (tokens.size() < 6) tokens.push_back((ids_[0] + 1) % engine_->summary().vocab_size);
    StepInput input;
    input.sequence = sequence;
    input.tokens = tokens;
    input.num_drafts = 5;
    engine_->step({&input, 1});
    engine_->keep(sequence, kept);
  }
  expect_rest(sequence, "kept in part");
}

TEST_P(State, TokensWithForcedRoutesAreNotRunAgain) {
  load();
  const std::vector<ForcedRoute> routes = forced_routes(1);
  Rows ignored;
  const SequenceId sequence = engine_->create_sequence();
  feed(*engine_, sequence, ids_, 0, 5, 0, ignored);
  StepInput input;
  input.sequence = sequence;
  input.routes = routes;
  for (const size_t position : {5, 6, 7}) {
    input.tokens = std::span(ids_).subspan(position, 1);
    engine_->step({&input, 1});
  }
  engine_->truncate(sequence, 6);
  input = {};
  input.sequence = sequence;
  input.tokens = std::span(ids_).subspan(6, 1);
  const Error error = error_of([&] { engine_->step({&input, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"sequence", "state", "forced", "new sequence"}))
      << error.what();
  expect_rest(engine_->create_sequence(), "a new sequence, after a refusal");
}

// What drafts bring to a state is kept until the next step: no token is run again, so that forced
// routes do not stand in the way, and the bits are those of steps without drafts.
TEST_P(State, DraftsGoWithoutRunningTokensAgain) {
  load();
  Rows ignored, kept_in_part, alone;
  const SequenceId drafted = engine_->create_sequence(), plain = engine_->create_sequence();
  const size_t prompt = 20;
  for (const SequenceId sequence : {drafted, plain}) {
    feed(*engine_, sequence, ids_, 0, prompt, 0, ignored);
  }
  size_t length = prompt;
  for (const size_t kept : {3, 0, 5, 1}) {
    const std::vector<ForcedRoute> routes = forced_routes(5), fewer = forced_routes(kept);
    StepInput input;
    input.sequence = drafted;
    input.tokens = std::span(ids_).subspan(length, 5);
    input.num_drafts = 4;
    input.routes = routes;
    engine_->step({&input, 1});
    if (kept == 3) {
      engine_->truncate(drafted, static_cast<int64_t>(length + kept));
    } else {
      engine_->keep(drafted, static_cast<int64_t>(kept));
    }
    if (kept == 0) continue;
    input = {};
    input.sequence = plain;
    input.tokens = std::span(ids_).subspan(length, kept);
    input.routes = fewer;
    engine_->step({&input, 1});
    length += kept;
  }
  feed(*engine_, drafted, ids_, length, ids_.size(), 9, kept_in_part);
  feed(*engine_, plain, ids_, length, ids_.size(), 9, alone);
  EXPECT_TRUE(same_bits(alone, kept_in_part, ids_.size() - length));
}

TEST_P(State, APartOfTheDepthIsRefused) {
  load();
  StepInput input;
  input.sequence = engine_->create_sequence();
  input.tokens = std::span(ids_).first(2);
  const Error error = error_of([&] { engine_->step_layers({&input, 1}, {0, 2}, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"state", "part of the layers", "a step of all layers"}));
  expect_rest(input.sequence, "after a refusal");
}

TEST_P(State, CountsItsBytes) {
  EngineOptions options = test_options();
  const auto bytes = [&](int sequences, int context) {
    options.max_sequences = sequences;
    options.max_context = context;
    auto engine = Engine::load(oracle_folder(GetParam()), options);
    EXPECT_EQ(engine->summary().kv_bytes, engine->options().kv_bytes);
    return engine->summary().kv_bytes;
  };
  const uint64_t taps = GetParam() == "qwen3_next" ? 3 : 4;
  uint64_t floats = 6 * 2 * 16 * 16 + (taps - 1) * 208;  // of a layer and slot
  uint64_t block = 2 * 2 * 2 * 32 * 64 * 4;              // two layers, keys and values, two heads
  if (GetParam() == "lfm2_moe") {
    floats = (taps - 1) * 64;
    block = 2 * 2 * 16 * 64 * 4;  // one layer
  }
  const uint64_t layers = 3, slot = layers * floats * 4;
  const uint64_t states = 4 * slot;  // of one sequence; each further one adds two
  EXPECT_EQ(bytes(1, 64), states + block);
  EXPECT_EQ(bytes(1, 128), states + 2 * block);
  EXPECT_EQ(bytes(3, 64), states + 4 * slot + 3 * block);
  options.kv_bytes = states + block - 1;
  options.max_sequences = 1;
  const Error error = error_of([&] { Engine::load(oracle_folder(GetParam()), options); });
  EXPECT_TRUE(is_one_line_with(error, {"kv_bytes", std::to_string(states + block), "states"}))
      << error.what();
}

INSTANTIATE_TEST_SUITE_P(Oracles, State,
                         ::testing::Values("qwen3_next", "qwen3_5_moe_text", "lfm2_moe"));

// A model with vision: its text has the names and the config of a wrapper, and what else is in the
// file is passed over.
TEST(StateWrappers, HaveTheBitsOfTheTextModel) {
  const std::string path = oracle_folder("qwen3_5_moe_text");
  const Checkpoint source = Checkpoint::open(path);
  const TemporaryFolder folder;
  const nlohmann::json config = {{"model_type", "qwen3_5_moe"},
                                 {"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                                 {"vision_config", {{"depth", 2}}},
                                 {"text_config", nlohmann::json::parse(source.config_json())}};
  write_bytes(folder / "config.json", config.dump());
  {
    SafetensorsWriter writer(folder / "model.safetensors");
    const auto wrapped = [](const std::string& name) {
      return name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
    };
    for (const TensorInfo& info : source.tensors()) {
      writer.declare(wrapped(info.name), info.dtype, info.shape);
    }
    writer.declare("model.visual.patch_embed.proj.weight", DType::kF32, {2, 2});
    writer.declare("mtp.layers.0.input_layernorm.weight", DType::kF32, {4});
    writer.begin();
    for (const TensorInfo& info : source.tensors()) {
      std::vector<std::byte> bytes(info.num_bytes);
      source.read(info, bytes);
      writer.write(wrapped(info.name), bytes);
    }
    const std::vector<std::byte> zeros(16);
    writer.write("model.visual.patch_embed.proj.weight", zeros);
    writer.write("mtp.layers.0.input_layernorm.weight", zeros);
    writer.finish();
  }
  auto plain = Engine::load(path, test_options());
  auto wrapper = Engine::load(folder.path(), test_options());
  const std::vector<int32_t> ids = prompt_ids(30, plain->summary().vocab_size);
  EXPECT_TRUE(same_bits(score(*plain, ids), score(*wrapper, ids), ids.size()));
  EXPECT_NE(Checkpoint::open(folder.path()).find("model.visual.patch_embed.proj.weight"), nullptr);
}

}  // namespace
}  // namespace vitrine::testing
