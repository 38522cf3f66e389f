// SPDX-License-Identifier: Apache-2.0
// What somebody adds by one file: an architecture (example_architecture.cc) and a drafter
// (example_drafter.cc). A codec of keys and values is mixed_codec.cc, which kv_codec_test.cc tests.
// tests/house/check_new_things.py counts the files that know them.
#include <gtest/gtest.h>

#include "tests/checkpoint/gguf_builder.h"
#include "tests/engine/edited_model.h"
#include "vitrine/generate.h"

namespace vitrine {
namespace {

using testing::EditedModel;
using testing::GgufFile;
using testing::Rows;

constexpr const char* kMirrored = "qwen3";  // which the example computes, too

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

void rename_tensors(EditedModel::Tensors& tensors) {
  EditedModel::Tensors renamed;
  for (auto& [name, tensor] : tensors) {
    const std::string own = replaced(replaced(name, "post_attention_layernorm", "second_norm"),
                                     "input_layernorm", "first_norm");
    renamed[own] = std::move(tensor);
  }
  tensors = std::move(renamed);
}

/// The example's words for what the config of the mirrored model says.
void rename_fields(nlohmann::json& config) {
  config["model_type"] = "example";
  config["norm_epsilon"] = config["rms_norm_eps"];
  for (const char* name : {"rms_norm_eps", "num_key_value_heads", "head_dim", "rope_parameters"}) {
    config.erase(name);  // the family's defaults stand for the last two
  }
}

/// The mirrored model as a GGUF file of the example.
std::string gguf_of(const std::string& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const auto config = nlohmann::json::parse(checkpoint.config_json());
  const auto number = [&](const char* key, const char* field) {
    return testing::gguf_u32("example-gguf." + std::string(key), config.at(field).get<uint32_t>());
  };
  GgufFile file;
  file.entries = {
      testing::gguf_text("general.architecture", "example-gguf"),
      number("context_length", "max_position_embeddings"),
      number("embedding_length", "hidden_size"),
      number("block_count", "num_hidden_layers"),
      number("feed_forward_length", "intermediate_size"),
      number("attention.head_count", "num_attention_heads"),
      number("attention.head_count_kv", "num_key_value_heads"),
      number("attention.key_length", "head_dim"),
      testing::gguf_f32("example-gguf.attention.layer_norm_rms_epsilon",
                        config.at("rms_norm_eps").get<float>()),
  };
  const std::map<std::string, std::string> modules = {
      {"input_layernorm", "attn_norm"},     {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},       {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},       {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},  {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},        {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},        {"lm_head", "output"},
      {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}};
  std::string data;
  for (const TensorInfo& info : checkpoint.tensors()) {
    std::string name = replaced(info.name, "model.layers.", "blk.");
    for (const auto& [module, own] : modules) name = replaced(name, module, own);
    constexpr uint32_t kBf16 = 30;
    EXPECT_EQ(info.dtype, DType::kBF16);
    file.tensors.push_back(testing::gguf_tensor(
        name, std::vector<uint64_t>(info.shape.rbegin(), info.shape.rend()), kBf16, data.size()));
    std::string bytes(info.num_bytes, '\0');
    checkpoint.read(info, std::as_writable_bytes(std::span(bytes)));
    data += bytes;
    data.resize((data.size() + file.alignment - 1) / file.alignment * file.alignment, '\0');
  }
  return file.bytes() + data;
}

struct Answer {
  Rows rows;                    // of a prompt
  std::vector<int32_t> tokens;  // greedily chosen behind it
};

Answer answer_of(const std::string& model) {
  const auto engine = Engine::load(model, testing::test_options());
  const std::vector<int32_t> prompt = testing::prompt_ids(40, engine->summary().vocab_size);
  GenerateOptions options;
  options.max_new_tokens = 24;
  return {testing::score(*engine, prompt), generate(*engine, prompt, options).tokens};
}

void expect_mirrored(const std::string& model) {
  const Answer expected = answer_of(testing::oracle_folder(kMirrored)), found = answer_of(model);
  ASSERT_FALSE(expected.tokens.empty());
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_TRUE(testing::same_bits(expected.rows, found.rows, 40));
}

TEST(NewThings, AnArchitectureIsReadFromAFolder) {
  const EditedModel model(kMirrored, rename_fields, rename_tensors);
  EXPECT_EQ(read_model_facts(Checkpoint::open(model.path())).model_type, "example");
  expect_mirrored(model.path());
}

TEST(NewThings, AnArchitectureIsReadFromAWrapper) {
  const EditedModel model(
      kMirrored,
      [](nlohmann::json& config) {
        rename_fields(config);
        config.erase("model_type");
        config = {{"model_type", "example_that_sees"}, {"text_config", config}};
      },
      rename_tensors);
  EXPECT_EQ(read_model_facts(Checkpoint::open(model.path())).model_type, "example_text");
  expect_mirrored(model.path());
}

TEST(NewThings, AnArchitectureIsReadFromAGgufFile) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "example.gguf";
  testing::write_bytes(path, gguf_of(testing::oracle_folder(kMirrored)));
  const Checkpoint checkpoint = Checkpoint::open(path);
  EXPECT_EQ(read_model_facts(checkpoint).model_type, "example_text");
  EXPECT_EQ(checkpoint.name_in_file("model.layers.1.second_norm.weight"), "blk.1.ffn_norm.weight");
  expect_mirrored(path);
}

TEST(NewThings, ADrafterIsMadeByName) {
  const auto engine = Engine::load(testing::oracle_folder(kMirrored), testing::test_options());
  const std::vector<int32_t> prompt = testing::prompt_ids(40, engine->summary().vocab_size);
  GenerateOptions options;
  options.max_new_tokens = 24;
  const std::vector<int32_t> expected = generate(*engine, prompt, options).tokens;
  const std::unique_ptr<Drafter> drafter = make_drafter("example-drafter");
  options.speculation.drafter = drafter.get();
  const GenerateResult found = generate(*engine, prompt, options);
  EXPECT_EQ(found.tokens, expected);
  EXPECT_EQ(found.speculation.problem, "");
  EXPECT_GT(found.speculation.num_draft_tokens, 0);
}

}  // namespace
}  // namespace vitrine
