// SPDX-License-Identifier: Apache-2.0
// Heads that cannot be: one line each that names the file, the field and what was expected.
#include <gtest/gtest.h>

#include "draft_heads/head_kind.h"
#include "tests/draft_heads/head_folders.h"

namespace vitrine::testing {
namespace {

class BadHeads : public ::testing::Test {
 protected:
  BadHeads() { write_target(target()); }
  std::string target() const { return folder_ / "target"; }
  std::string heads() const { return folder_ / "heads"; }

  void load(const char* kind, const std::vector<int>& layers = {}) {
    draft_heads::make_heads(kind, heads(), target(), layers);
  }
  void refuse(const char* kind, ErrorKind error_kind, std::initializer_list<std::string_view> parts,
              const std::vector<int>& layers = {}) {
    const Error error = error_of([&] { load(kind, layers); });
    EXPECT_EQ(error.kind(), error_kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
  }
  /// Heads whose config has other fields.
  void refuse_eagle(const Json& fields, ErrorKind kind,
                    std::initializer_list<std::string_view> parts,
                    const char* heads_kind = "eagle3") {
    Json config = eagle_config();
    config.update(fields);
    write_checkpoint(heads(), config, eagle_tensors(heads_kind == std::string("peagle")));
    refuse(heads_kind, kind, parts);
  }
  void refuse_medusa(const Json& fields, ErrorKind kind,
                     std::initializer_list<std::string_view> parts) {
    Json config = medusa_config();
    config.update(fields);
    write_checkpoint(heads(), config, medusa_tensors());
    refuse("medusa", kind, parts);
  }

  TemporaryFolder folder_;
};

constexpr ErrorKind kBad = ErrorKind::kBadFile, kNot = ErrorKind::kUnsupported,
                    kWrong = ErrorKind::kInvalidArgument;

TEST_F(BadHeads, AreKnownByName) {
  EXPECT_EQ(draft_heads::head_names(), (std::vector<std::string>{"eagle3", "medusa", "peagle"}));
  refuse("eagle3", kWrong, {"heads' are no folder", "expected"});
  write_checkpoint(heads(), eagle_config(), eagle_tensors());
  refuse("eagle", kWrong, {"'eagle'", "eagle3, medusa, peagle"});
  const auto drafter = draft_heads::make_heads("eagle3", heads(), target());
  EXPECT_EQ(drafter->name(), "eagle3");
  EXPECT_TRUE(std::ranges::equal(drafter->feature_layers(), std::vector{2, 3, 4}));
}

TEST_F(BadHeads, OfAnotherModel) {
  refuse_eagle({{"hidden_size", 32}}, kBad,
               {"config.json", "'hidden_size' is 32", "expected 24", "target"});
  refuse_eagle({{"target_hidden_size", 48}}, kBad,
               {"config.json", "'target_hidden_size' is 48", "expected 24", "target"});
  refuse_eagle({{"vocab_size", 100}}, kBad, {"'vocab_size' is 100", "expected 67", "target"});
  refuse_eagle({{"hidden_size", 32}, {"target_hidden_size", 24}}, kBad,
               {"heads", "'fc.weight'", "[24, 72]", "[32, 72]"});
  refuse_medusa({{"hidden_size", 32}}, kBad, {"'hidden_size' is 32", "expected 24"});
  refuse_medusa({{"vocab_size", 100}}, kBad, {"'vocab_size' is 100", "expected 67"});
}

TEST_F(BadHeads, WithLayersThatAModelHasNot) {
  for (const bool by_outputs : {false, true}) {
    const auto fields = [&](const Json& layers) {
      const Json named = {{"eagle_aux_hidden_state_layer_ids", layers}};
      return by_outputs ? Json{{"eagle_config", named}} : named;
    };
    refuse_eagle(fields({2, 3, 9}), kBad,
                 {"config.json", "eagle_aux_hidden_state_layer_ids", "names layer", "0 to 7"});
    refuse_eagle(fields({2, 3, 3}), kBad, {"twice", "0 to 7"});
    refuse_eagle(fields({2, -1, 3}), kBad, {"eagle_aux_hidden_state_layer_ids", "-1"});
    refuse_eagle(fields("all"), kBad, {"eagle_aux_hidden_state_layer_ids", "'all'"});
    refuse_eagle(fields({2, 3}), kBad, {"'fc.weight'", "[24, 72]", "[24, 48]"});
  }
  refuse_eagle({{"eagle_config", {{"use_aux_hidden_state", false}}}}, kNot,
               {"use_aux_hidden_state", "true"});
  write_checkpoint(heads(), eagle_config(), eagle_tensors());
  refuse("eagle3", kWrong, {"option 'layers'", "layer 8", "0 to 7"}, {1, 2, 8});
  refuse("eagle3", kWrong, {"option 'layers'", "layer -1", "0 to 7"}, {1, 2, -1});
  refuse("eagle3", kWrong, {"option 'layers'", "layer 2 twice", "0 to 7"}, {1, 2, 2});
  load("eagle3", {7, 0, 5});
  Json shallow = target_config();
  shallow["num_hidden_layers"] = 4;
  HeadTensors tensors;
  add_tensor(tensors, "model.embed_tokens.weight", {kVocabulary, kHidden});
  write_checkpoint(target(), shallow, tensors);
  refuse("eagle3", kBad, {"eagle_aux_hidden_state_layer_ids", "4", "--head-layers"});
  write_checkpoint(heads(), medusa_config(), medusa_tensors());
  refuse("medusa", kWrong, {"option 'layers'", "expected", "leaves the last layer"}, {{3}});
}

TEST_F(BadHeads, OfAnotherKind) {
  HeadTensors older = eagle_tensors();
  older.erase("midlayer.hidden_norm.weight");
  older["fc.weight"].shape = {36, 48};
  write_checkpoint(heads(), eagle_config(), older);
  refuse("eagle3", kNot, {"EAGLE-1 or EAGLE-2", "expected EAGLE-3"});
  const auto written_as = [&](const char* kind, const char* name, std::string_view part) {
    refuse_eagle({{"speculators_model_type", name}}, kNot,
                 {"config.json", "speculators_model_type", name, part}, kind);
  };
  written_as("eagle3", "eagle", "EAGLE-1 and EAGLE-2");
  written_as("eagle3", "dflash", "expected 'eagle3'");
  written_as("eagle3", "peagle", "expected 'eagle3'");
  written_as("peagle", "eagle3", "expected 'peagle'");
  write_checkpoint(heads(), eagle_config(), eagle_tensors(true));
  refuse("eagle3", kBad, {"mask_hidden", "'peagle'"});
  write_checkpoint(heads(), eagle_config(), eagle_tensors());
  refuse("peagle", kBad, {"mask_hidden", "'eagle3'"});
  refuse("medusa", kBad, {"blocks.0.layers.0.weight", "Medusa"});
  write_checkpoint(heads(), medusa_config(), medusa_tensors());
  refuse("eagle3", kNot, {"config.json", "'model_type' is 'medusa'"});
}

TEST_F(BadHeads, Pickles) {
  std::filesystem::create_directories(heads());
  write_bytes(heads() + "/config.json", "{}");
  for (const char* name : {"medusa_lm_head.pt", "pytorch_model.bin"}) {
    write_bytes(heads() + "/" + name, "\x80\x02}q");
    refuse("medusa", kNot, {name, "pickle", "scripts/convert_heads"});
    refuse("eagle3", kNot, {name, "pickle", "scripts/convert_heads"});
    std::filesystem::remove(heads() + "/" + name);
  }
  refuse("medusa", kBad, {"model.safetensors"});
}

TEST_F(BadHeads, WhoseAcceptanceWouldChangeTheText) {
  const auto proposal = [](const Json& fields) {
    Json layer = eagle_config();
    Json method = {{"proposal_type", "greedy"}};
    method.update(fields);
    return Json{{"speculators_model_type", "eagle3"},
                {"transformer_layer_config", layer},
                {"speculators_config", {{"proposal_methods", {method}}}}};
  };
  refuse_eagle(proposal({{"verifier_accept_k", 5}}), kNot,
               {"config.json", "'verifier_accept_k' is 5", "expected 1"});
  refuse_eagle(proposal({{"accept_tolerance", 0.5}}), kNot,
               {"config.json", "'accept_tolerance' is 0.5", "expected 0"});
  refuse_eagle(proposal({{"speculative_tokens", 0}}), kBad, {"speculative_tokens"});
  refuse_eagle({{"speculators_config", {{"proposal_methods", 3}}}}, kBad, {"proposal_methods"});
  refuse_eagle({{"speculators_config", {{"proposal_methods", {3}}}}}, kBad, {"proposal_methods"});
  refuse_eagle({{"speculators_model_type", "eagle3"}}, kBad, {"transformer_layer_config"});
  Json config = eagle_config();
  config.update(proposal({{"verifier_accept_k", 1}, {"accept_tolerance", 0.0}}));
  write_checkpoint(heads(), config, eagle_tensors());
  load("eagle3");
}

TEST_F(BadHeads, WithTokensThatAVocabularyHasNot) {
  for (const int64_t offset : {int64_t{-6}, int64_t{62}, INT64_MAX, INT64_MIN}) {
    HeadTensors tensors = eagle_tensors();
    tensors["d2t"].integers[5] = offset;
    write_checkpoint(heads(), eagle_config(), tensors);
    refuse("eagle3", kBad, {"heads", "'d2t'", std::to_string(offset), "at 5", "0 to 66"});
  }
  HeadTensors tensors = eagle_tensors();
  tensors["d2t"] = {{kDraftVocabulary - 1}, {}, std::vector<int64_t>(kDraftVocabulary - 1)};
  write_checkpoint(heads(), eagle_config(), tensors);
  refuse("eagle3", kBad, {"d2t", "[28]", "[29]"});
  tensors["d2t"] = {{kDraftVocabulary}, std::vector<float>(kDraftVocabulary), {}};
  write_checkpoint(heads(), eagle_config(), tensors);
  refuse("eagle3", kBad, {"'d2t' is F32", "expected I64"});
  tensors.erase("d2t");
  write_checkpoint(heads(), eagle_config(), tensors);
  refuse("eagle3", kBad, {"d2t"});
  refuse_eagle({{"draft_vocab_size", 68}}, kBad, {"draft_vocab_size", "68"});
  refuse_eagle({{"draft_vocab_size", 30}}, kBad, {"[29, 24]", "[30, 24]"});

  HeadTensors medusa = medusa_tensors();
  Json config = medusa_config();
  config["truncated_vocab_size"] = 2;
  for (const std::string head : {"0", "1", "2"}) {
    add_tensor(medusa, "lm_heads." + head + ".weight", {2, kHidden});
  }
  write_checkpoint(heads(), config, medusa);
  refuse("medusa", kBad, {"token_map"});
  medusa["token_map"] = {{2}, {}, {3, 67}};
  write_checkpoint(heads(), config, medusa);
  refuse("medusa", kBad, {"token_map", "67", "0 to 66"});
  medusa["token_map"].integers[1] = 66;
  write_checkpoint(heads(), config, medusa);
  load("medusa");
}

TEST_F(BadHeads, WithoutATensor) {
  for (const char* name :
       {"fc.weight", "norm.weight", "lm_head.weight", "layers.1.mlp.up_proj.weight",
        "midlayer.self_attn.q_proj.weight", "layers.1.input_layernorm.weight"}) {
    HeadTensors tensors = eagle_tensors();
    tensors.erase(name);
    write_checkpoint(heads(), eagle_config(), tensors);
    const std::string module = std::string(name).substr(0, std::string(name).rfind(".weight"));
    refuse("eagle3", kBad, {"heads", module});
  }
  refuse_eagle({{"model_type", "qwen3"}}, kBad, {"q_norm.weight"});
  refuse_eagle({{"attention_bias", true}}, kBad, {"q_proj.bias"});
  refuse_eagle({{"norm_before_fc", true}}, kBad, {"input_norm.weight"});
  refuse_eagle({{"fc_norm", true}}, kBad, {"fc_norm.0.weight"});
  refuse_eagle({{"hidden_size", 32}, {"target_hidden_size", 24}, {"head_dim", 6}}, kBad, {"fc"});
  for (const char* name : {"blocks.1.layers.0.weight", "lm_heads.2.weight"}) {
    HeadTensors tensors = medusa_tensors();
    tensors.erase(name);
    write_checkpoint(heads(), medusa_config(), tensors);
    refuse("medusa", kBad, {"heads", std::string(name).substr(0, 8)});
  }
  refuse_medusa({{"num_heads", 4}}, kBad, {"blocks.3.layers.0"});
  refuse_medusa({{"num_hidden_layers", 2}}, kBad, {"blocks.0.layers.1"});
  refuse_medusa({{"medusa_fc_bias", true}}, kBad, {"blocks.0.layers.0.bias"});
  refuse_medusa({{"num_heads", 3}, {"medusa_num_heads", 2}}, kBad, {"medusa_num_heads", "3"});
}

TEST_F(BadHeads, WithFieldsThatAreNone) {
  refuse_eagle({{"model_type", "gpt2"}}, kNot, {"'model_type' is 'gpt2'", "'llama' or 'qwen3'"});
  refuse_eagle({{"model_type", nullptr}}, kNot, {"model_type"});
  refuse_eagle({{"head_dim", 514}}, kNot, {"head_dim", "512"});
  refuse_eagle({{"num_experts", 4}, {"num_experts_per_tok", 1}}, kNot, {"num_experts"});
  refuse_eagle({{"norm_output", 1}}, kBad, {"norm_output", "true or false"});
  refuse_eagle({{"norm_before_fc", true}, {"fc_norm", true}}, kBad, {"fc_norm", "norm_before_fc"});
  refuse_eagle({{"eagle_config", 3}}, kBad, {"eagle_config"});
  for (const char* name : {"pard_token", "ptd_token_id", "mask_token_id"}) {
    refuse_eagle({{name, 67}}, kBad, {name, "0 to 66"}, "peagle");
  }
  refuse_eagle({{"dflash_config", {{"mask_token_id", -1}}}}, kBad, {"mask_token_id"}, "peagle");
  refuse_eagle({{"mask_token_id", nullptr}}, kBad, {"mask_token_id", "missing"}, "peagle");
  HeadTensors tensors = eagle_tensors(true);
  add_tensor(tensors, "mask_hidden", {1, 1, 48});
  write_checkpoint(heads(), eagle_config(), tensors);
  refuse("peagle", kBad, {"mask_hidden", "[1, 1, 48]", "[1, 1, 72]"});
}

}  // namespace
}  // namespace vitrine::testing
