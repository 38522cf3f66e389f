// SPDX-License-Identifier: Apache-2.0
// Folders that ask for activations of 8 bits: their rule beside what transformers computes where it
// rounds so (tests/checkpoint/make_activation_folders.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/stored_tensors.h"
#include "tests/engine/quantized_answers.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

void copy_activation_folder(const std::string& name, const TemporaryFolder& to) {
  std::filesystem::copy(activation_folder(name), to.path(),
                        std::filesystem::copy_options::recursive);
}

StoredTensors tensors_of(const TemporaryFolder& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  StoredTensors tensors;
  for (const TensorInfo& info : checkpoint.tensors()) {
    std::vector<std::byte> bytes(info.num_bytes);
    checkpoint.read(info, 0, bytes);
    tensors[info.name] = {info.dtype, info.shape, bytes};
  }
  return tensors;
}

/// Writes another scale of a module's activations.
void change_scale(const TemporaryFolder& folder, const std::string& module,
                  const StoredTensor& scale) {
  StoredTensors tensors = tensors_of(folder);
  tensors.at(module + ".input_scale") = scale;
  write_stored(folder / "model.safetensors", tensors);
}

class RoundedInputs : public ::testing::TestWithParam<const char*> {
 protected:
  RoundedInputs() : path_(activation_folder(GetParam())) {}

  /// Returns the answers of a copy whose config says something else of activations.
  std::vector<float> run_with(const std::function<void(json&)>& change) const {
    const TemporaryFolder copy;
    copy_activation_folder(GetParam(), copy);
    json config = json::parse(read_bytes(path_ + "/config.json"));
    for (json& group : config["quantization_config"]["config_groups"]) change(group);
    write_bytes(copy / "config.json", config.dump());
    return run_model(copy.path(), tokens_);
  }

  std::string path_;
  json expected_ = json::parse(read_bytes(path_ + "/expected.json"));
  std::vector<int32_t> tokens_ = expected_["tokens"].get<std::vector<int32_t>>();
  std::vector<float> logits_ = decode_floats(expected_["logits"]);
  std::vector<float> float_logits_ = decode_floats(expected_["float_logits"]);
  size_t vocabulary_ = logits_.size() / tokens_.size();
};

/// A folder's rule for activations is what transformers computes where it rounds so, far closer
/// than either is to floats, or than groups are.
TEST_P(RoundedInputs, AreWhatTheFolderAsksFor) {
  EngineOptions options;
  options.kv_codecs = {"f32"};  // other rounding than that of inputs would part the two, too
  const std::vector<float> logits = run_model(path_, tokens_, options);
  const double rounding = divergence(float_logits_, logits_, vocabulary_);
  EXPECT_GT(rounding, 1e-5);
  EXPECT_LE(divergence(logits_, logits, vocabulary_), 1e-3 * rounding);
  const std::vector<float> grouped =
      run_with([](json& group) { group.erase("input_activations"); });
  EXPECT_GT(divergence(logits_, grouped, vocabulary_), 0.1 * rounding);
  EXPECT_LT(divergence(float_logits_, grouped, vocabulary_), rounding);
}

TEST_P(RoundedInputs, AreTheSameHoweverTheModelRuns) {
  const std::vector<float> logits = run_model(path_, tokens_);
  EngineOptions mapped, cached;
  mapped.mmap_weights = true;
  EXPECT_EQ(run_model(path_, tokens_, mapped), logits);
  if (std::string_view(GetParam()) != "token") {  // it has experts
    cached.expert_cache_bytes = 1 << 20;
    EXPECT_EQ(run_model(path_, tokens_, cached), logits);
  }
  // Token by token, on two threads.
  EngineOptions two;
  two.threads = 2;
  two.keep_logits = true;
  two.strict = true;
  const auto engine = Engine::load(path_, two);
  StepInput input;
  input.sequence = engine->create_sequence();
  std::vector<float> one_by_one;
  for (const int32_t token : tokens_) {
    input.tokens = {&token, 1};
    const auto outputs = engine->step({&input, 1});
    one_by_one.insert(one_by_one.end(), outputs[0].scores.begin(), outputs[0].scores.end());
  }
  EXPECT_EQ(one_by_one, logits);
  const bool has_head = std::string_view(GetParam()) == "token";
  for (const PlanEntry& entry : engine->plan()) {
    const bool is_product = entry.op == "qkv" || entry.op == "project" || entry.op == "dense_ffn" ||
                            entry.op == "experts" || (entry.op == "head" && has_head);
    EXPECT_EQ(entry.kernel.find("+row_scale") != entry.kernel.npos, is_product)
        << entry.op << " " << entry.kernel;
  }
}

TEST_P(RoundedInputs, AreGroupsWhereNoRuleOfARowIsAskedFor) {
  const std::vector<float> grouped =
      run_with([](json& group) { group["input_activations"] = nullptr; });
  const json others[] = {{{"symmetric", false}},
                         {{"num_bits", 4}},
                         {{"type", "float"}},
                         {{"dynamic", "local"}},
                         {{"strategy", "group"}}};
  for (const json& other : others) {
    EXPECT_EQ(run_with([&](json& group) { group["input_activations"].update(other); }), grouped)
        << other;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RoundedInputs, ::testing::Values("token", "file", "experts"),
                         [](const auto& info) { return std::string(info.param); });

/// Gives each row of the matrices with `part` in their names `groups` scales in place of one.
void split_scales(const TemporaryFolder& folder, const std::string& part, size_t groups) {
  StoredTensors tensors = tensors_of(folder);
  for (auto& [name, tensor] : tensors) {
    if (!name.ends_with(".weight_scale") || name.find(part) == name.npos) continue;
    std::vector<std::byte> all;
    for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(float)) {
      for (size_t i = 0; i < groups; ++i) {
        all.insert(all.end(), &tensor.bytes[at], &tensor.bytes[at] + sizeof(float));
      }
    }
    tensor.bytes = all;
    tensor.shape[1] = static_cast<int64_t>(groups);
  }
  write_stored(folder / "model.safetensors", tensors);
}

/// A gate and an up, which one kernel takes together, have one rule.
TEST(RoundedInputsOf, AGateAndAnUpThatAreUnlike) {
  constexpr int kGroup = 32, kGroups = 5;  // of 136 columns
  const json changes[] = {
      {{"weights", {{"strategy", "group"}, {"group_size", kGroup}}}},        // floats
      {{"input_activations", {{"dynamic", true}, {"strategy", "token"}}}}};  // groups
  for (const json& change : changes) {
    SCOPED_TRACE(change.dump());
    const bool is_float = change.contains("weights");
    const TemporaryFolder copy;
    copy_activation_folder("file", copy);
    json config = json::parse(read_bytes(copy / "config.json"));
    json& groups = config["quantization_config"]["config_groups"];
    groups["group_1"] = groups["group_0"];
    groups["group_1"]["targets"] = {"re:.*gate_proj$"};
    groups["group_1"].merge_patch(change);
    if (is_float) split_scales(copy, ".gate_proj.", kGroups);
    write_bytes(copy / "config.json", config.dump());
    for (const float logit : run_model(copy.path(), {3, 17, 8})) ASSERT_TRUE(std::isfinite(logit));
    const Checkpoint checkpoint = Checkpoint::open(copy.path());
    for (const char* name : {"gate_proj", "up_proj"}) {
      const auto tensors =
          checkpoint.find_quantized_tensors(std::string("model.layers.0.mlp.experts.0.") + name);
      EXPECT_EQ(tensors->activations, ActivationUse::kFloat) << name;
      EXPECT_EQ(tensors->floats.has_value(), is_float) << name;
    }
    EngineOptions cached;
    cached.expert_cache_bytes = 1 << 20;
    EXPECT_EQ(run_model(copy.path(), {3, 17, 8}, cached), run_model(copy.path(), {3, 17, 8}));
  }
}

TEST(RoundedInputScales, AreThoseOfTheMatrixThatWasLoaded) {
  const std::string file = activation_folder("file");
  const std::string module = "model.layers.0.self_attn.q_proj";
  const auto engine = Engine::load(file, {});
  engine->replace_matrix(module, Checkpoint::open(file));
  const TemporaryFolder other;
  copy_activation_folder("file", other);
  change_scale(other, module, stored<float>(DType::kF32, {1}, {0.25f}));
  const Error error =
      error_of([&] { engine->replace_matrix(module, Checkpoint::open(other.path())); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {module, "another scale of activations", "expected"}))
      << error.what();
}

TEST(RoundedInputScales, AreRefusedWhereTheyAreNone) {
  const std::string module = "model.layers.0.self_attn.q_proj";
  // A folder whose config says that there are scales.
  const TemporaryFolder without;
  copy_activation_folder("token", without);
  json config = json::parse(read_bytes(without / "config.json"));
  config["quantization_config"]["config_groups"]["group_0"]["input_activations"].update(
      {{"dynamic", false}, {"strategy", "tensor"}});
  write_bytes(without / "config.json", config.dump());
  const Error missing = error_of([&] { run_model(without.path(), {1}); });
  EXPECT_TRUE(is_one_line_with(missing, {"model.safetensors", ".input_scale", "is missing",
                                         "expected it", "a config without"}))
      << missing.what();
  const auto refused = [&](const StoredTensor& scale, const char* where, const char* expected) {
    const TemporaryFolder copy;
    copy_activation_folder("file", copy);
    change_scale(copy, module, scale);
    const Error error = error_of([&] { run_model(copy.path(), {1}); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(
        is_one_line_with(error, {"model.safetensors", module + ".input_scale", where, expected}))
        << error.what();
  };
  for (const float scale : {0.0f, -0.5f, 1e-40f, INFINITY, NAN}) {
    SCOPED_TRACE(scale);
    refused(stored<float>(DType::kF32, {1}, {scale}), "element 0", "expected a");
  }
  refused(stored<float>(DType::kF32, {2}, {0.5f, 0.5f}), "[2]", "scale of all activations");
  refused(stored<int32_t>(DType::kI32, {1}, {1}), "I32", "scale of all activations");
}

}  // namespace
}  // namespace vitrine::testing
