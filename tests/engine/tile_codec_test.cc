// SPDX-License-Identifier: Apache-2.0
// Codecs of a host's own that close blocks and give tiles: the bits of the codecs whose numbers
// they give; the same bits alone, together, in chunks, behind forks, cuts and drafts; and refusals
// by name of what one can't do.
#include "tests/engine/tile_codecs.h"

#include "examples/kv_codec/hadamard_int8.h"
#include "tests/engine/draft_tree_rows.h"
#include "tests/engine/window_fixture.h"

namespace vitrine::testing {
namespace {

constexpr KvTileForm kFloats{KvTileKind::kFloat}, kInt16{KvTileKind::kInt16};
constexpr KvTileForm kGroups{KvTileKind::kInt8, 32, 16}, kChannels{KvTileKind::kInt8, 0, 0};

/// Reads the even closed blocks and the last one, and after its first pass the heaviest in float32.
class Chooser final : public FormCodec {
 public:
  Chooser(std::string name, bool refines)
      : FormCodec(std::move(name), {kFloats, kGroups, kFloats}), refines_(refines) {}
  bool chooses_blocks() const override { return !refines_; }
  bool refines_blocks() const override { return refines_; }
  void choose_blocks(KvBlockChoice& choice) const noexcept override {
    for (size_t i = 1; i + 1 < choice.readings.size(); i += 2) {
      choice.readings[i] = KvReading::kSkip;
    }
  }
  void refine_blocks(KvBlockChoice& choice) const noexcept override {
    for (size_t i = 0; i < choice.readings.size(); ++i) {
      const bool is_known = choice.masses[i].sum >= 1 && std::isfinite(choice.masses[i].max);
      if (is_known && choice.closed(i) != nullptr) choice.readings[i] = KvReading::kFine;
    }
  }

 private:
  bool refines_;
};

class Lacking final : public FormCodec {
 public:
  Lacking(std::string name, KvFeature missing)
      : FormCodec(std::move(name), {kFloats, kFloats, kFloats}), missing_(missing) {}
  bool has(KvFeature feature) const override { return feature != missing_; }

 private:
  KvFeature missing_;
};

void register_all() {
  static const bool is_done = [] {
    const auto add = [](const char* name, const FormCodec::Forms& forms) {
      register_kv_codec(std::make_shared<FormCodec>(name, forms));
    };
    add("floats", {kFloats, kFloats, kFloats, false});
    add("floats_closed", {kFloats, kFloats, kFloats});
    add("int16", {kInt16, kInt16, kInt16, false});
    add("int16_closed", {kInt16, kInt16, kInt16, true, 70, 128});
    add("groups", {kGroups, kGroups, kGroups, false});
    add("channels", {kFloats, kChannels, kFloats, true, 5});
    add("mixed", {kInt16, kGroups, kFloats, true, 130, 64});
    register_kv_codec(std::make_shared<HadamardInt8>());
    register_kv_codec(std::make_shared<Chooser>("chooser", false));
    register_kv_codec(std::make_shared<Chooser>("refiner", true));
    register_kv_codec(std::make_shared<Lacking>("no_windows", KvFeature::kWindows));
    register_kv_codec(std::make_shared<Lacking>("no_sinks", KvFeature::kSinks));
    register_kv_codec(std::make_shared<Lacking>("no_trees", KvFeature::kTrees));
    register_kv_codec(std::make_shared<Lacking>("no_depth", KvFeature::kPartialDepth));
    return true;
  }();
  ASSERT_TRUE(is_done);
}

class TileCodec : public ::testing::Test {
 protected:
  void SetUp() override { register_all(); }
};

EngineOptions options_of(const std::string& codec, int threads = 2) {
  EngineOptions options = test_options(threads, 0);
  options.max_context = 420;
  options.max_step_tokens = options.max_logit_rows = 420;
  options.kv_codecs = {codec};
  return options;
}

// Options for an oracle as it is.
EngineOptions short_options(const std::string& codec) {
  EngineOptions options = options_of(codec);
  options.max_context = 160;
  return options;
}

constexpr int kLength = 400;  // over six blocks

TEST_F(TileCodec, GivesTheBitsOfTheCodecWhoseNumbersItGives) {
  for (const char* oracle : {"qwen3_moe", "llama", "gpt_oss", "dots1"}) {
    const WindowFolder folder(oracle, nlohmann::json::object());
    const std::vector<int32_t> ids = prompt_ids(kLength, 200);
    for (const auto& [own, codec] : {std::pair("f32", "floats"),
                                     {"f32", "floats_closed"},
                                     {"i16", "int16"},
                                     {"i16", "int16_closed"}}) {
      SCOPED_TRACE(std::string(oracle) + ", " + codec);
      const Rows expected = score(*Engine::load(folder.path(), options_of(own)), ids);
      const auto engine = Engine::load(folder.path(), options_of(codec));
      EXPECT_TRUE(engine->summary().invariant);
      EXPECT_TRUE(same_bits(expected, score(*engine, ids), ids.size()));
      EXPECT_TRUE(same_bits(expected, score(*engine, ids, 37), ids.size()));
    }
  }
}

double largest_difference(const Rows& a, const Rows& b) {
  double largest = 0;
  for (const auto& [position, row] : a) {
    for (size_t i = 0; i < row.size(); ++i) {
      largest = std::max<double>(largest, std::fabs(row[i] - b.at(position)[i]));
    }
  }
  return largest;
}

TEST_F(TileCodec, IsCloseToFloat32) {
  for (const char* oracle : {"qwen3", "llama"}) {
    const WindowFolder folder(oracle, nlohmann::json::object());
    const std::vector<int32_t> ids = prompt_ids(kLength, 200);
    const Rows exact = score(*Engine::load(folder.path(), options_of("f32")), ids);
    for (const char* codec : {"hadamard_i8", "groups", "channels", "mixed"}) {
      const Rows rows = score(*Engine::load(folder.path(), options_of(codec)), ids);
      EXPECT_FALSE(same_bits(exact, rows, ids.size())) << codec;
      EXPECT_LT(largest_difference(exact, rows), 0.05) << oracle << ", " << codec;
    }
    // Within the first block nothing is closed yet.
    const std::span first = std::span(ids).first(64);
    const Rows open = score(*Engine::load(folder.path(), options_of("channels")), first);
    EXPECT_TRUE(same_bits(exact, open, first.size()));
  }
}

/// Codecs whose answers hang on tokens alone.
class TileCodecInvariance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { register_all(); }
  // One with windows in some layers, and sinks, for some.
  static std::string oracle() {
    return GetParam() == "channels" || GetParam() == "mixed" ? "gpt_oss" : "qwen3_moe";
  }
};

TEST_P(TileCodecInvariance, SameBitsHoweverThePastWasFed) {
  const WindowFolder folder(oracle(), nlohmann::json::object());
  const std::vector<int32_t> ids = prompt_ids(kLength, 200), other = prompt_ids(kLength, 200, 2);
  const auto engine = Engine::load(folder.path(), options_of(GetParam()));
  EXPECT_EQ(engine->summary().kv_codec, GetParam());
  const Rows expected = score(*Engine::load(folder.path(), options_of(GetParam(), 1)), ids);
  for (const size_t chunk : {1, 63, 64, 150}) {
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, chunk), ids.size())) << chunk;
  }
  Rows rows, ignored;
  const SequenceId one = engine->create_sequence();
  feed(*engine, one, ids, 0, 200, 0, ignored);
  // Behind a fork, cut back into closed blocks whose open forms may be gone.
  for (const size_t cut : {199, 192, 130, 63, 1}) {
    const SequenceId two = engine->fork(one);
    engine->truncate(two, static_cast<int64_t>(cut));
    feed(*engine, two, other, cut, cut + 80, 16, ignored);
    engine->truncate(two, static_cast<int64_t>(cut));
    rows.clear();
    feed(*engine, two, ids, cut, ids.size(), 90, rows);
    EXPECT_TRUE(same_bits(expected, rows, ids.size() - cut)) << cut;
    engine->release(two);
  }
  // Beside another, behind a prefix, and after its blocks were given up.
  const PrefixId prefix = engine->retain(one, 150);
  const SequenceId three = engine->attach(prefix, 100), four = engine->create_sequence();
  feed(*engine, four, other, 0, 90, 0, ignored);
  rows.clear();
  for (size_t at = 100; at < 330; at += 5) {
    if (at == 180 || at == 255) engine->preempt(three);
    const StepInput inputs[] = {{.sequence = four, .tokens = std::span(other).subspan(at - 10, 5)},
                                {.sequence = three, .tokens = std::span(ids).subspan(at, 5)}};
    std::vector<StepInput> asked(inputs, inputs + 2);
    for (StepInput& input : asked) input.rows = StepInput::Rows::kAll;
    keep_rows(engine->step(asked), three, rows);
  }
  EXPECT_TRUE(same_bits(expected, rows, 230)) << "beside another";
  rows.clear();
  feed(*engine, one, ids, 200, ids.size(), 0, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size() - 200)) << "that others shared";
}

TEST_F(TileCodec, ReadsFineFormsInASecondPass) {
  const WindowFolder folder("qwen3_moe", nlohmann::json::object());
  const std::vector<int32_t> ids = prompt_ids(kLength, 200);
  const auto rows_of = [&](const char* codec) {
    return score(*Engine::load(folder.path(), options_of(codec)), ids);
  };
  const Rows exact = rows_of("f32");
  EXPECT_TRUE(same_bits(exact, rows_of("refiner"), ids.size()));
  EXPECT_FALSE(same_bits(exact, rows_of("chooser"), ids.size()));
}

TEST_P(TileCodecInvariance, GivesEachNodeOfATreeTheBitsOfItsChain) {
  EngineOptions options = options_of(GetParam());
  options.max_step_tokens = options.max_logit_rows = 48;
  options.max_sequences = 16;
  const WindowFolder folder(oracle(), nlohmann::json::object());
  const auto engine = Engine::load(folder.path(), options);
  std::mt19937 random(5);
  for (const int past : {3, 61, 63, 126, 190}) {
    const std::vector<int32_t> prompt = prompt_ids(past, 200);
    const SequenceId base = engine->create_sequence();
    Rows ignored;
    feed(*engine, base, prompt, 0, prompt.size(), 40, ignored, StepInput::Rows::kNone);
    const TreeTokens tree(past, 23, 200, random);
    const SequenceId sequence = engine->fork(base);
    const auto rows = logits_of(engine->step({{tree.input(sequence)}}));
    expect_rows_of_chains(*engine, base, tree, rows);
    engine->release(sequence);
    engine->release(base);
  }
}

TEST_P(TileCodecInvariance, LayersMayCloseABlockAtOtherTimes) {
  const WindowFolder folder(oracle(), nlohmann::json::object());
  const std::vector<int32_t> ids = prompt_ids(200, 200);
  const auto engine = Engine::load(folder.path(), options_of(GetParam()));
  const Rows expected = score(*engine, ids);
  Rows rows;
  const SequenceId sequence = engine->create_sequence();
  feed(*engine, sequence, ids, 0, 124, 0, rows);
  std::vector<float> below;
  for (size_t at = 124; at < 132; ++at) {
    const StepInput input{.sequence = sequence, .tokens = std::span(ids).subspan(at, 1)};
    engine->step_layers({&input, 1}, {0, 1}, {});
    const std::span<const float> row = engine->residual_rows();
    below.insert(below.end(), row.begin(), row.end());
  }
  StepInput input{.sequence = sequence, .tokens = std::span(ids).subspan(124, 8)};
  input.rows = StepInput::Rows::kAll;
  keep_rows(engine->step_layers({&input, 1}, {1, -1}, below), sequence, rows);
  feed(*engine, sequence, ids, 132, ids.size(), 0, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size()));
}

INSTANTIATE_TEST_SUITE_P(All, TileCodecInvariance,
                         ::testing::Values("hadamard_i8", "groups", "channels", "mixed",
                                           "int16_closed", "chooser", "refiner"),
                         [](const auto& info) { return info.param; });

// Open forms of closed blocks are given back: what is kept of a long context is the closed ones.
TEST_F(TileCodec, KeepsOpenFormsWhereTheyAreNeededAlone) {
  const WindowFolder folder("qwen3_moe", nlohmann::json::object());
  EngineOptions options = options_of("hadamard_i8");
  options.max_context = 8192;
  options.max_step_tokens = options.max_logit_rows = 64;
  options.max_sequences = 2;
  const auto engine = Engine::load(folder.path(), options);
  options.kv_codecs = {"f32"};
  const auto wide = Engine::load(folder.path(), options);
  EXPECT_LT(engine->summary().kv_bytes, wide->summary().kv_bytes / 2);
  options.kv_codecs = {"hadamard_i8"};
  uint64_t bytes = 0;
  for (const KvMemory& kind : kv_memory(Checkpoint::open(folder.path()), options)) {
    bytes += kind.bytes;
  }
  EXPECT_EQ(bytes, engine->summary().kv_bytes);
}

TEST_F(TileCodec, IsRefusedByNameWhereMoreIsAskedFor) {
  const auto refuse = [&](const std::string& oracle, const std::string& codec,
                          const std::string& what) {
    const Error error =
        error_of([&] { Engine::load(oracle_folder(oracle), short_options(codec)); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"kv_codecs", codec, what})) << error.what();
  };
  refuse("dots1", "no_windows", "windows");
  refuse("dots1", "chooser", "windows");
  refuse("gpt_oss", "no_sinks", "sinks");
  refuse("deepseek_v2", "hadamard_i8", "latent");
  EngineOptions reference = short_options("hadamard_i8");
  reference.kernels = KernelPath::kReference;
  const Error error = error_of([&] { Engine::load(oracle_folder("qwen3_moe"), reference); });
  EXPECT_TRUE(is_one_line_with(error, {"hadamard_i8", "reference"})) << error.what();

  const auto engine = Engine::load(oracle_folder("qwen3_moe"), short_options("no_trees"));
  std::mt19937 random(5);
  const TreeTokens tree(3, 9, 200, random);
  const SequenceId sequence = engine->create_sequence();
  const Error tree_error = error_of([&] { engine->step({{tree.input(sequence)}}); });
  EXPECT_EQ(tree_error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(tree_error, {"no_trees", "tree"})) << tree_error.what();

  const auto deep = Engine::load(oracle_folder("qwen3_moe"), short_options("no_depth"));
  const std::vector<int32_t> ids = prompt_ids(3, 200);
  const StepInput input{.sequence = deep->create_sequence(), .tokens = ids};
  const Error depth_error = error_of([&] { deep->step_layers({&input, 1}, {0, 1}, {}); });
  EXPECT_EQ(depth_error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(depth_error, {"no_depth", "layers"})) << depth_error.what();
}

TEST_F(TileCodec, RegistersWhatIsOne) {
  const auto refuse = [](const char* name, const FormCodec::Forms& forms,
                         std::initializer_list<std::string_view> words) {
    const Error error =
        error_of([&] { register_kv_codec(std::make_shared<FormCodec>(name, forms)); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refuse("", {}, {"empty name"});
  refuse("f32", {}, {"f32", "known"});
  refuse("channels", {}, {"channels", "known"});
  refuse("short", {.block_length = 32}, {"short", "32", "64"});
  refuse("early", {.lag = -1}, {"early", "lag"});
  refuse("eights", {.open = {KvTileKind::kInt8, 8, 32}}, {"eights", "16, 32 or 0"});
  EXPECT_EQ(std::ranges::count(kv_codec_names(), "hadamard_i8"), 1);
  EXPECT_EQ(std::ranges::count(kv_codec_names(), "short"), 0);
}

}  // namespace
}  // namespace vitrine::testing
