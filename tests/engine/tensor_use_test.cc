// SPDX-License-Identifier: Apache-2.0
// Every tensor of a checkpoint is used, named as not needed, or the load is refused.
#include "checkpoint/model_config.h"
#include "tests/engine/edited_model.h"

namespace vitrine::testing {
namespace {

using Tensors = EditedModel::Tensors;

EditedModel::Tensor small_tensor() { return {DType::kF32, {2}, std::vector<std::byte>(8)}; }

EditedModel with_tensors(const std::string& oracle, const std::vector<std::string>& names) {
  return EditedModel(oracle, {}, [&](Tensors& tensors) {
    for (const std::string& name : names) ASSERT_TRUE(tensors.emplace(name, small_tensor()).second);
  });
}

EngineOptions lenient_options() {
  EngineOptions options = test_options();
  options.lenient_weights = true;
  return options;
}

void expect_refused(const EditedModel& model, std::initializer_list<std::string_view> words) {
  EngineOptions strict = test_options();
  strict.strict = true;
  for (const EngineOptions& options : {test_options(), strict}) {
    const Error error = error_of([&] { Engine::load(model.path(), options); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_STREQ(error_of([&] { Engine::check(model.path()); }).what(), error.what());
    EXPECT_STREQ(error_of([&] { Engine::describe(model.path(), options); }).what(), error.what());
  }
}

/// Answers of a model, to the bit.
Rows answers_of(const std::string& path, const EngineOptions& options) {
  const auto engine = Engine::load(path, options);
  return score(*engine, prompt_ids(20, engine->summary().vocab_size));
}

TEST(TensorUse, OraclesUseAllOfTheirs) {
  for (const std::string& name : oracle_names()) {
    const Checkpoint checkpoint = Checkpoint::open(oracle_folder(name));
    const TensorUse use = Engine::describe(oracle_folder(name), test_options()).tensors;
    uint64_t bytes = 0;
    for (const TensorInfo& info : checkpoint.tensors()) bytes += info.stored_bytes;
    EXPECT_EQ(use.used.tensors, std::ssize(checkpoint.tensors())) << name;
    EXPECT_EQ(use.used.bytes, bytes) << name;
    EXPECT_TRUE(use.not_needed.empty()) << name;
    EXPECT_EQ(use.unused.tensors, 0) << name;
  }
}

TEST(TensorUse, QuantizedOnesToo) {
  for (const char* scheme : {"int4", "int8-asymmetric", "fp8"}) {
    const VariantFolder folder({"deepseek_v3", scheme, 32});
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    const TensorUse use = Engine::describe(folder.path(), test_options()).tensors;
    EXPECT_EQ(use.used.tensors, std::ssize(checkpoint.tensors())) << scheme;
  }
}

TEST(TensorUse, ExpertsOfAConfigWithoutThem) {
  const EditedModel model("gemma4_text",
                          [](nlohmann::json& config) { config.erase("enable_moe_block"); });
  expect_refused(model, {model.path(), "config.json", "model.layers.0.experts.0.down_proj.weight",
                         " more)", "--lenient-weights", "lenient_weights"});
  const EditedModel empty("gemma4_text", [](nlohmann::json& config) { config["num_experts"] = 0; });
  EXPECT_THROW(Engine::check(empty.path()), Error);
  const TensorUse use = Engine::describe(model.path(), lenient_options()).tensors;
  EXPECT_EQ(use.unused.tensors, std::ssize(use.unused_names));
  EXPECT_GT(use.unused.tensors, 100);
  EXPECT_EQ(use.used.tensors + use.unused.tensors,
            std::ssize(Checkpoint::open(model.path()).tensors()));
  EXPECT_NE(answers_of(model.path(), lenient_options()),
            answers_of(oracle_folder("gemma4_text"), test_options()));
}

TEST(TensorUse, BiasesOfAConfigWithoutThem) {
  const EditedModel biases(
      "qwen3", [](nlohmann::json& config) { config["attention_bias"] = false; },
      [](Tensors& tensors) { tensors["model.layers.1.self_attn.q_proj.bias"] = small_tensor(); });
  expect_refused(biases, {"1 tensor ", "'model.layers.1.self_attn.q_proj.bias'"});
}

TEST(TensorUse, AFusedTensorIsNamedOnce) {
  const EditedModel model("granitemoe", {}, [](Tensors& tensors) {
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = {
        DType::kF32, {2, 4, 2}, std::vector<std::byte>(64)};
  });
  expect_refused(model, {"1 tensor ", "'model.layers.0.mlp.experts.gate_up_proj'"});
}

// Where the name of something that is passed over stands in a layer of the text model, or where it
// is a part of another word, it is none of these.
TEST(TensorUse, WhatIsNotNeededIsToldByItsWholeName) {
  for (const char* name :
       {"model.layers.0.mlp.visual.weight", "model.visualize.weight", "model.norm.bias",
        "lm_head.bias", "model.layers.0.self_attn.rotary_emb.weight", "score.weight",
        "model.layers.0.mlp.gate_proj.weight_scale", "model.layers.1.mlp.mtp.weight"}) {
    expect_refused(with_tensors("qwen3", {name}), {"1 tensor ", name});
  }
  const EditedModel layer("qwen3", {}, [](Tensors& tensors) {
    tensors["model.layers.3.mlp.up_proj.weight"] = small_tensor();
  });
  expect_refused(layer, {"'num_hidden_layers' is 3", "model.layers.3."});
  EXPECT_EQ(Engine::describe(layer.path(), lenient_options()).tensors.unused.tensors, 1);
}

TEST(TensorUse, WhatIsNotNeededIsCounted) {
  const Rows expected = answers_of(oracle_folder("qwen3"), test_options());
  const std::vector<std::pair<std::string, std::vector<std::string>>> kinds = {
      {"vision and audio",
       {"model.visual.blocks.0.attn.qkv.weight", "vision_tower.patch_conv.weight",
        "multi_modal_projector.linear_1.weight", "model.embed_audio.norm.weight"}},
      {"drafting", {"mtp.fc.weight", "model.mtp_block.0.mlp.up_proj.weight"}},
      {"rotary tables", {"model.layers.0.self_attn.rotary_emb.inv_freq"}},
      {"activation scales",
       {"model.layers.0.self_attn.q_proj.input_scale", "model.layers.1.self_attn.k_scale"}}};
  for (const auto& [purpose, names] : kinds) {
    const EditedModel model = with_tensors("qwen3", names);
    const TensorUse use = Engine::describe(model.path(), test_options()).tensors;
    ASSERT_EQ(use.not_needed.size(), 1u) << purpose;
    EXPECT_EQ(use.not_needed[0].purpose, purpose);
    EXPECT_EQ(use.not_needed[0].count.tensors, std::ssize(names)) << purpose;
    EXPECT_EQ(use.not_needed[0].count.bytes, 8 * names.size()) << purpose;
    EXPECT_EQ(use.unused.tensors, 0) << purpose;
    EXPECT_EQ(answers_of(model.path(), test_options()), expected) << purpose;
  }
}

TEST(TensorUse, LayersThatReadTheKeysOfOthers) {
  const EditedModel model = with_tensors(
      "gemma4_text_e",
      {"model.layers.5.self_attn.k_proj.weight", "model.layers.5.self_attn.k_norm.weight"});
  const ModelConfig config = parse_model_config(Checkpoint::open(model.path()));
  ASSERT_NE(config.kv_source(5), 5);
  const TensorUse use = Engine::describe(model.path(), test_options()).tensors;
  ASSERT_EQ(use.not_needed.size(), 1u);
  EXPECT_EQ(use.not_needed[0].purpose, "shared layers");
  expect_refused(with_tensors("gemma4_text_e", {"model.layers.0.self_attn.k_norm.bias"}),
                 {"model.layers.0.self_attn.k_norm.bias"});
}

// A missing tensor says more than one without a use, which it may have been renamed to.
TEST(TensorUse, MissingOnesAreToldFirst) {
  const EditedModel model("qwen3", {}, [](Tensors& tensors) {
    auto node = tensors.extract("model.layers.1.self_attn.q_norm.weight");
    node.key() = "model.layers.1.self_attn.query_norm.weight";
    tensors.insert(std::move(node));
  });
  const Error error = error_of([&] { Engine::check(model.path()); });
  EXPECT_TRUE(is_one_line_with(error, {"model.layers.1.self_attn.q_norm.weight", "is missing"}))
      << error.what();
}

// As transformers does it: a config that says otherwise is not true of this file.
TEST(TensorUse, AHeadThatIsThereIsUsed) {
  const EditedModel tied("llama",
                         [](nlohmann::json& config) { config["tie_word_embeddings"] = true; });
  ASSERT_NE(Checkpoint::open(tied.path()).find("lm_head.weight"), nullptr);
  EXPECT_FALSE(parse_model_config(Checkpoint::open(tied.path())).tie_word_embeddings);
  EXPECT_EQ(answers_of(tied.path(), test_options()),
            answers_of(oracle_folder("llama"), test_options()));
  const EditedModel without(
      "llama", [](nlohmann::json& config) { config["tie_word_embeddings"] = true; },
      [](Tensors& tensors) { ASSERT_EQ(tensors.erase("lm_head.weight"), 1u); });
  EXPECT_NE(answers_of(without.path(), test_options()),
            answers_of(oracle_folder("llama"), test_options()));
}

}  // namespace
}  // namespace vitrine::testing
