// SPDX-License-Identifier: Apache-2.0
// Taps: what they show is what the model computes, their sums are the plain sums of that, neither
// threads nor chunks change a bit, and a model that is tapped says what it said.
#include <cmath>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/latent_models.h"

namespace vitrine::testing {
namespace {

/// Keeps all rows of each tap, and the experts beside them.
class KeptRows final : public TapReader {
 public:
  struct OfTap {
    int64_t width = 0, per_token = 1;
    std::vector<float> rows;
    std::vector<int32_t> experts, tokens, positions;
  };
  void read(const TapRows& rows) override {
    OfTap& tap = taps[rows.tap];
    tap.width = rows.width;
    tap.per_token = rows.rows_per_token;
    tap.rows.insert(tap.rows.end(), rows.rows.begin(), rows.rows.end());
    tap.experts.insert(tap.experts.end(), rows.experts.begin(), rows.experts.end());
    tap.tokens.insert(tap.tokens.end(), rows.token_ids.begin(), rows.token_ids.end());
    tap.positions.insert(tap.positions.end(), rows.positions.begin(), rows.positions.end());
  }
  std::map<size_t, OfTap> taps;
};

bool is_sparse(const std::string& name) {
  return name != "llama" && name != "qwen3" && name != "smollm3" && name != "gemma4_text_e";
}

/// The last layer with experts, where it has some.
int tapped_layer(const std::string& name) {
  if (name == "qwen3_next") return 4;
  if (name == "lfm2_moe") return 2;
  return name == "ernie4_5_moe" ? 3 : name == "glm4_moe_lite" ? 2 : 1;
}

std::vector<Tap> all_taps(const std::string& name, int layer) {
  const auto tap = [&](const char* op, const char* value, Tap::Side side = Tap::Side::kInput) {
    Tap made;
    made.layer = layer;
    made.op = op;
    made.value = value;
    made.side = side;
    made.maximum = made.squares = made.products = true;
    return made;
  };
  constexpr auto kOutput = Tap::Side::kOutput;
  std::vector<Tap> taps = {tap("qkv", "normed"),
                           tap("qkv", "query", kOutput),
                           tap("qkv", "key", kOutput),
                           tap("attention", "value"),
                           tap("attention", "attended", kOutput),
                           tap("project", "attended"),
                           tap("project", "residual", kOutput)};
  if (is_latent(name)) {
    taps = {tap("project", "query_latent", kOutput),
            tap("project", "normed_latent"),
            tap("project", "query", kOutput),
            tap("project", "latent", kOutput),
            tap("latent_attention", "attended", kOutput),
            tap("project", "attended"),
            tap("project", "residual", kOutput)};
  }
  if (name == "flex_olmo") {  // blocks read the stream, and what they give is normed
    return {tap("qkv", "residual"),
            tap("qkv", "query", kOutput),
            tap("attention", "attended", kOutput),
            tap("project", "branch", kOutput),
            tap("router", "residual"),
            tap("experts", "expert_hidden", kOutput),
            tap("experts", "expert_slots", kOutput),
            tap("combine", "branch", kOutput),
            tap("post_norm", "residual", kOutput)};
  }
  if (name.starts_with("gemma4")) {  // the stream is post_norm's
    taps.back() = tap("post_norm", "residual", kOutput);
    taps.push_back(tap("dense_ffn", "dense_hidden", kOutput));
    if (!is_sparse(name)) return taps;
    taps.push_back(tap("router", "router_input"));
    taps.push_back(tap("experts", "expert_hidden", kOutput));
    taps.push_back(tap("experts", "expert_slots", kOutput));
    taps.push_back(tap("combine", "expert_sum", kOutput));
    taps.push_back(tap("experts", "normed"));
    taps.back().by_expert = true;
    return taps;
  }
  if (is_sparse(name)) {
    taps.push_back(tap("router", "normed"));
    taps.push_back(tap("experts", "expert_hidden", kOutput));
    taps.push_back(tap("experts", "expert_slots", kOutput));
    taps.push_back(tap("combine", "residual", kOutput));
    for (const char* value : {"normed", "expert_hidden"}) {
      taps.push_back(
          tap("experts", value, std::string(value) == "normed" ? Tap::Side::kInput : kOutput));
      taps.back().by_expert = true;
    }
  } else {
    taps.push_back(tap("dense_ffn", "normed"));
    taps.push_back(tap("dense_ffn", "dense_hidden", kOutput));
    taps.push_back(tap("dense_ffn", "residual", kOutput));
  }
  return taps;
}

EngineOptions tapped(const std::string& name, KernelPath path, int threads) {
  EngineOptions options = test_options(threads);
  options.kernels = path;
  options.kv_codecs = {"f32"};
  options.taps = all_taps(name, tapped_layer(name));
  options.taps.push_back({-1, "embed", "residual", Tap::Side::kOutput});
  if (name == "lfm2_moe") {
    options.taps.push_back({1, "short_convolution", "convolution_input"});
    options.taps.push_back({1, "short_convolution", "convolved", Tap::Side::kOutput});
  }
  return options;
}

/// The sums as anybody would write them.
struct PlainSums {
  int64_t count = 0;
  std::vector<float> maximum, products;
  std::vector<double> squares;
};

PlainSums add_up(const KeptRows::OfTap& tap, bool by_expert, int expert) {
  PlainSums sums;
  const auto width = static_cast<size_t>(tap.width);
  sums.maximum.resize(width);
  sums.squares.resize(width);
  sums.products.resize(width * width);
  const size_t tokens = tap.tokens.size();
  const size_t top_k = tap.experts.size() / tokens;
  const size_t count = by_expert ? tokens * top_k : tokens * static_cast<size_t>(tap.per_token);
  for (size_t i = 0; i < count; ++i) {
    if (by_expert && tap.experts[i] != expert) continue;
    const float* row = &tap.rows[(by_expert && tap.per_token == 1 ? i / top_k : i) * width];
    ++sums.count;
    for (size_t a = 0; a < width; ++a) {
      sums.maximum[a] = std::max(sums.maximum[a], std::fabs(row[a]));
      sums.squares[a] += double{row[a]} * double{row[a]};
      for (size_t b = 0; b < width; ++b) sums.products[a * width + b] += row[a] * row[b];
    }
  }
  return sums;
}

/// The one that the first token goes to first.
int first_expert(const KeptRows& kept, size_t tap) {
  const std::vector<int32_t>& experts = kept.taps.at(tap).experts;
  return experts.empty() ? 0 : experts[0];
}

template <typename T>
bool same(std::span<const T> found, const std::vector<T>& expected) {
  return found.size() == expected.size() &&
         std::memcmp(found.data(), expected.data(), found.size_bytes()) == 0;
}

class Taps : public ::testing::TestWithParam<std::string> {
 protected:
  std::string folder_ = oracle_folder(GetParam());
};

TEST_P(Taps, ShowTheSameHoweverASequenceIsFedAndChangeNoLogit) {
  EngineOptions untapped = tapped(GetParam(), KernelPath::kFused, 1);
  untapped.taps.clear();
  auto plain = Engine::load(folder_, untapped);
  const std::vector<int32_t> ids = prompt_ids(37, plain->summary().vocab_size);
  const Rows expected = score(*plain, ids);
  std::optional<KeptRows> first;
  std::vector<PlainSums> sums;
  for (const int threads : {1, 2}) {
    for (const size_t chunk : {0, 1, 5}) {
      const EngineOptions options = tapped(GetParam(), KernelPath::kFused, threads);
      auto engine = Engine::load(folder_, options);
      KeptRows kept;
      engine->set_tap_reader(&kept);
      EXPECT_TRUE(same_bits(expected, score(*engine, ids, chunk), ids.size()));
      ASSERT_EQ(kept.taps.size(), options.taps.size());
      if (!first) {
        first = kept;
        for (size_t i = 0; i < options.taps.size(); ++i) {
          sums.push_back(add_up(kept.taps[i], options.taps[i].by_expert, first_expert(kept, i)));
        }
      }
      for (size_t i = 0; i < options.taps.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << options.taps[i].op << " " << options.taps[i].value
                                          << ", chunks of " << chunk << ", threads " << threads);
        EXPECT_EQ(kept.taps[i].tokens, ids);
        EXPECT_EQ(kept.taps[i].positions.back(), 36);
        EXPECT_TRUE(same(std::span<const float>(kept.taps[i].rows), first->taps[i].rows));
        const TapSums found =
            engine->tap_sums(i, options.taps[i].by_expert ? first_expert(*first, i) : 0);
        EXPECT_EQ(found.count, sums[i].count);
        if (!options.taps[i].squares) continue;
        EXPECT_GT(found.count, 0);
        EXPECT_TRUE(same(found.maximum, sums[i].maximum));
        EXPECT_TRUE(same(found.squares, sums[i].squares));
        EXPECT_TRUE(same(found.products, sums[i].products));
      }
      engine->clear_tap_sums();
      EXPECT_EQ(engine->tap_sums(0).count, 0);
      EXPECT_EQ(engine->tap_sums(0).squares[0], 0.0);
    }
  }
}

TEST_P(Taps, OfBothPathsAgree) {
  std::map<KernelPath, KeptRows> kept;
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto engine = Engine::load(folder_, tapped(GetParam(), path, 2));
    engine->set_tap_reader(&kept[path]);
    score(*engine, prompt_ids(29, engine->summary().vocab_size), 6);
    EXPECT_EQ(engine->tap_sums(0).count, 29);
  }
  for (const auto& [tap, fused] : kept[KernelPath::kFused].taps) {
    const KeptRows::OfTap& reference = kept[KernelPath::kReference].taps[tap];
    SCOPED_TRACE(tap);
    EXPECT_EQ(fused.experts, reference.experts);
    ASSERT_EQ(fused.rows.size(), reference.rows.size());
    for (size_t i = 0; i < fused.rows.size(); ++i) {
      ASSERT_NEAR(fused.rows[i], reference.rows[i], 2e-4 * (1 + std::fabs(reference.rows[i]))) << i;
    }
  }
}

// What is recorded as hidden states is what a tap of the stream sees.
TEST_P(Taps, SeeTheRecordedStream) {
  EngineOptions options = tapped(GetParam(), KernelPath::kFused, 2);
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  const int entered = tapped_layer(GetParam()) + 1;
  options.hidden_state_layers = {entered};
  // What leaves the last layer is what the head's norm reads.
  const int64_t layers = read_model_facts(Checkpoint::open(folder_)).num_layers;
  options.taps = {{entered < layers ? entered : -1, "rms_norm", "residual"}};
  auto engine = Engine::load(folder_, options);
  KeptRows kept;
  VectorSink sink;
  engine->set_tap_reader(&kept);
  engine->set_audit_sink(&sink);
  const std::vector<int32_t> ids = prompt_ids(11, engine->summary().vocab_size);
  score(*engine, ids, 4);
  const std::vector<TokenRecord> records = sink.take();
  ASSERT_EQ(records.size(), ids.size());
  for (size_t i = 0; i < records.size(); ++i) {
    const std::vector<float>& state = records[i].hidden_states.at(0).values;
    EXPECT_EQ(std::memcmp(state.data(), &kept.taps[0].rows[i * state.size()], 4 * state.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Oracles, Taps, ::testing::ValuesIn(oracle_names()),
                         [](const auto& info) { return info.param; });

class Refused final : public TapReader {
 public:
  void read(const TapRows&) override { throw Error(ErrorKind::kUnsupported, "not this one"); }
};

TEST(TapErrors, AReaderThatThrowsChangesNoSequence) {
  auto engine = Engine::load(oracle_folder("olmoe"), tapped("olmoe", KernelPath::kFused, 1));
  const std::vector<int32_t> ids = prompt_ids(9, engine->summary().vocab_size);
  const Rows expected = score(*engine, ids);
  Refused refused;
  engine->set_tap_reader(&refused);
  const SequenceId sequence = engine->create_sequence();
  StepInput input{sequence, ids};
  EXPECT_THROW(engine->step({&input, 1}), Error);
  EXPECT_EQ(engine->length(sequence), 0);
  engine->set_tap_reader(nullptr);
  Rows rows;
  feed(*engine, sequence, ids, 0, ids.size(), 0, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size()));
}

std::string refusal(const Tap& tap, const std::string& model = "olmoe") {
  EngineOptions options = test_options();
  options.taps = {tap};
  try {
    Engine::load(oracle_folder(model), options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "nothing";
}

TEST(TapErrors, NameWhatThereIs) {
  EXPECT_NE(
      refusal({1, "expert", "normed"}).find("layer 1 has no op 'expert'; expected 'rms_norm'"),
      std::string::npos);
  EXPECT_NE(refusal({99, "qkv", "normed"}).find("expected layers from -1 to"), std::string::npos);
  EXPECT_NE(refusal({1, "qkv", "query"}).find("no input 'query'; expected 'normed'"),
            std::string::npos);
  Tap tap{1, "qkv", "normed"};
  tap.by_expert = true;
  EXPECT_NE(refusal(tap).find("op 'qkv' has no experts"), std::string::npos);
  auto engine = Engine::load(oracle_folder("olmoe"), tapped("olmoe", KernelPath::kFused, 1));
  EXPECT_THROW(engine->tap_sums(999), Error);
  EXPECT_THROW(engine->tap_sums(0, 1), Error);
  auto untapped = Engine::load(oracle_folder("llama"), test_options());
  EXPECT_THROW(untapped->tap_sums(0), Error);
}

}  // namespace
}  // namespace vitrine::testing
