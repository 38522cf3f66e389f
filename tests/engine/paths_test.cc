// SPDX-License-Identifier: Apache-2.0
// The fused path against the reference: two ways through one graph, on every architecture.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

std::unique_ptr<Engine> load(const std::string& path, KernelPath kernels, int threads = 1) {
  EngineOptions options = test_options(threads, 16);
  options.kernels = kernels;
  options.kv_codecs = {"f32"};  // rounded to integers, the paths' last bits choose other experts
  return Engine::load(path, options);
}

/// The largest |a - b| / (|b| + largest of b's row); infinite where a value is not finite.
double distance(const std::vector<float>& expected, const std::vector<float>& found) {
  double largest = 0, worst = 0;
  for (float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < found.size(); ++i) {
    if (!std::isfinite(found[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]) /
                                (std::abs(static_cast<double>(expected[i])) + largest));
  }
  return worst;
}
double distance(const Rows& expected, const Rows& found) {
  double worst = 0;
  for (const auto& [position, row] : found) {
    worst = std::max(worst, distance(expected.at(position), row));
  }
  return worst;
}

/// `most_flips`: positions that may be up to three times as far away, since another expert was
/// chosen there.
void expect_close(const Rows& expected, const Rows& found, double tolerance, int most_flips = 0) {
  ASSERT_EQ(expected.size(), found.size());
  int flips = 0;
  for (const auto& [position, row] : found) {
    ASSERT_EQ(row.size(), expected.at(position).size());
    const double away = distance(expected.at(position), row);
    if (away > tolerance && away <= 3 * tolerance && flips < most_flips) {
      ++flips;
      continue;
    }
    EXPECT_LE(away, tolerance) << "position " << position;
  }
}

/// In these a last bit grows from layer to layer or, in a state, from token to token.
bool is_sensitive(const std::string& name) {
  return name.starts_with("gemma4") || name.starts_with("qwen3_5") || name == "qwen3_next";
}

/// In these int8 inputs of the latent projections do: its router chooses groups, then experts.
bool is_sensitive_to_integers(const std::string& name) { return name == "deepseek_v2"; }

class Paths : public ::testing::TestWithParam<ModelVariant> {
 protected:
  Paths() : folder_(GetParam()) {}
  // Rounding activations to int8 turns a difference in the last bit into one step of 127.
  double tolerance() const {
    if (GetParam().scheme.empty() && is_sensitive(GetParam().name)) return 1e-3;
    return GetParam().scheme.empty() && GetParam().name != "shipped" ? 1e-4 : 2e-2;
  }
  VariantFolder folder_;
};

TEST_P(Paths, FusedAgreesWithReference) {
  auto fused = load(folder_.path(), KernelPath::kFused, 2);
  auto reference = load(folder_.path(), KernelPath::kReference);
  EXPECT_EQ(fused->summary().kernels, "fused");
  EXPECT_EQ(reference->summary().kernels, "reference");
  EXPECT_FALSE(reference->summary().invariant);
  EXPECT_EQ(fused->summary().num_parameters, reference->summary().num_parameters);
  const std::vector<int32_t> ids = prompt_ids(61, fused->summary().vocab_size);
  const Rows expected = score(*reference, ids);
  const int most_flips = GetParam().name == "shipped" ? 1 : 0;
  expect_close(expected, score(*fused, ids), tolerance(), most_flips);
  expect_close(expected, score(*fused, ids, 9), tolerance(), most_flips);
}

// Integer activations make a difference of a last bit a step of 127, which these models make large:
// their paths part no further than their own logits move with the last bits of the norms' epsilon.
class SensitivePaths : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(SensitivePaths, PartNoFurtherThanALastBitMovesThem) {
  const VariantFolder folder(GetParam());
  const auto fused = load(folder.path(), KernelPath::kFused, 2);
  const std::vector<int32_t> ids = prompt_ids(61, fused->summary().vocab_size);
  const Rows own = score(*fused, ids);
  const TemporaryFolder scratch;
  const std::string copy = scratch / "model";
  std::filesystem::copy(folder.path(), copy);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(copy + "/config.json"));
  const double eps = config.at("rms_norm_eps");
  double moved = 0;
  for (const double factor : {0.9994, 0.9997, 1.0003, 1.0006}) {
    config["rms_norm_eps"] = eps * factor;
    write_bytes(copy + "/config.json", config.dump());
    moved = std::max(moved, distance(own, score(*load(copy, KernelPath::kFused, 2), ids)));
  }
  RecordProperty("moved", std::to_string(moved));
  EXPECT_LE(distance(score(*load(folder.path(), KernelPath::kReference), ids), own), 2 * moved);
}

std::vector<ModelVariant> sensitive_variants() {
  std::vector<ModelVariant> all;
  for (const std::string& name : oracle_names()) {
    if (!is_sensitive(name) && !is_sensitive_to_integers(name)) continue;
    all.push_back({name, "int4", 32});
    all.push_back({name, "int8", 64});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, SensitivePaths, ::testing::ValuesIn(sensitive_variants()),
                         variant_name);

TEST(PathsOfKvTypes, FusedAgreesWithReference) {
  for (const std::string codec : {"f16", "bf16", "i16"}) {
    EngineOptions options = test_options(2, 16);
    options.kernels = KernelPath::kFused;
    options.kv_codecs = {codec};
    auto fused = Engine::load(oracle_folder("qwen3_moe"), options);
    options.kernels = KernelPath::kReference;
    auto reference = Engine::load(oracle_folder("qwen3_moe"), options);
    EXPECT_GT(fused->summary().kv_bytes, 0u);
    const std::vector<int32_t> ids = prompt_ids(61, fused->summary().vocab_size);
    // A key that is rounded to the other neighbour is seen.
    expect_close(score(*reference, ids), score(*fused, ids), codec == "bf16" ? 8e-3 : 1e-3);
  }
  EngineOptions options = test_options();
  options.kv_codecs = {"i8"};
  const Error error = error_of([&] { Engine::load(oracle_folder("llama"), options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"kv_codecs", "i8", "bf16"})) << error.what();
}

TEST(PathsOfKvTypes, DefaultFollowsTheWeights) {
  const auto type_of = [](const ModelVariant& variant, const std::vector<std::string>& given = {}) {
    const VariantFolder folder(variant);
    EngineOptions options = test_options();
    options.kv_codecs = given;
    const auto engine = Engine::load(folder.path(), options);
    EXPECT_EQ(engine->options().kv_codecs, std::vector{engine->summary().kv_codec});
    return engine->summary().kv_codec;
  };
  EXPECT_EQ(type_of({"llama", ""}), "f32");
  EXPECT_EQ(type_of({"llama", "int8"}), "i16");
  EXPECT_EQ(type_of({"blocks", "Q4_K"}), "i16");
  EXPECT_EQ(type_of({"blocks", "Q4_K"}, {"f32"}), "f32");
  EXPECT_EQ(type_of({"llama", ""}, {"i16"}), "i16");
}

// Ragged batches, chunks, forks and truncation on the reference path.
TEST_P(Paths, ReferenceHandlesRaggedBatches) {
  auto engine = load(folder_.path(), KernelPath::kReference);
  const int vocab = engine->summary().vocab_size;
  const std::vector<int32_t> ids = prompt_ids(45, vocab), other = prompt_ids(30, vocab, 2);
  const Rows expected = score(*engine, ids);
  Rows rows;
  const SequenceId one = engine->create_sequence(), two = engine->create_sequence();
  size_t fed = 0, other_fed = 0;
  for (size_t count : {3, 20, 1, 13}) {
    StepInput inputs[2];
    inputs[0].sequence = two;
    inputs[0].tokens = std::span(other).subspan(other_fed, count / 2 + 1);
    inputs[1].sequence = one;
    inputs[1].tokens = std::span(ids).subspan(fed, count);
    inputs[1].rows = StepInput::Rows::kAll;
    keep_rows(engine->step(inputs), one, rows);
    fed += count;
    other_fed += count / 2 + 1;
  }
  const SequenceId copy = engine->fork(one);
  engine->truncate(one, 30);
  Rows ignored;
  feed(*engine, one, other, 0, 10, 0, ignored);
  feed(*engine, copy, ids, fed, ids.size(), 4, rows);
  expect_close(expected, rows, tolerance());
  engine->truncate(one, 30);
  rows = expected;
  feed(*engine, one, ids, 30, ids.size(), 1, rows);
  expect_close(expected, rows, tolerance());
}

// What `bench generate` divides by; reading changes nothing.
TEST_P(Paths, MeasuresItsReadBandwidth) {
  auto fused = load(folder_.path(), KernelPath::kFused, 2);
  const std::vector<int32_t> ids = prompt_ids(12, fused->summary().vocab_size);
  const Rows before = score(*fused, ids);
  const std::optional<double> bandwidth = fused->measure_read_bandwidth(0.01);
  ASSERT_TRUE(bandwidth.has_value());
  EXPECT_GT(*bandwidth, 1e8);   // slower memory has not been built for decades
  EXPECT_LT(*bandwidth, 1e13);  // nor faster caches
  EXPECT_EQ(before, score(*fused, ids));
  EXPECT_FALSE(load(folder_.path(), KernelPath::kReference)->measure_read_bandwidth(0.01));
}

// A pass without rows still fills the cache.
TEST_P(Paths, PassesWithoutRows) {
  for (KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto engine = load(folder_.path(), path);
    const std::vector<int32_t> ids = prompt_ids(20, engine->summary().vocab_size);
    const Rows expected = score(*engine, ids);
    Rows rows;
    const SequenceId sequence = engine->create_sequence();
    feed(*engine, sequence, ids, 0, 19, 5, rows, StepInput::Rows::kNone);
    EXPECT_TRUE(rows.empty());
    feed(*engine, sequence, ids, 19, 20, 0, rows, StepInput::Rows::kLast);
    expect_close({{19, expected.at(19)}}, rows, tolerance());
  }
}

std::vector<ModelVariant> variants() {
  std::vector<ModelVariant> all;
  for (const std::string& name : oracle_names()) {
    all.push_back({name, "", 0});
    if (is_sensitive(name) || is_sensitive_to_integers(name)) {
      all.push_back({name, "fp8", 32});  // activations stay floats
      continue;
    }
    all.push_back({name, "int4", 32});
    all.push_back({name, "int8", 64});
  }
  for (const char* name : {"qwen3_moe", "granitemoe", "llama", "deepseek_v3"}) {
    all.push_back({name, "fp8", 32});
  }
  all.push_back({"shipped", "", 0});
  for (const ModelVariant& blocks : block_variants()) all.push_back(blocks);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Paths, ::testing::ValuesIn(variants()), variant_name);

}  // namespace
}  // namespace vitrine::testing
