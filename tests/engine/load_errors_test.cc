// SPDX-License-Identifier: Apache-2.0
// Models and options that Engine::load refuses, each with one line that says what to do.
#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/engine/edited_model.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;

class LoadErrors : public ::testing::TestWithParam<KernelPath> {
 protected:
  EngineOptions options() {
    EngineOptions options = test_options();
    options.kernels = GetParam();
    return options;
  }
  void expect_refused(const EditedModel& model, ErrorKind kind,
                      std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { Engine::load(model.path(), options()); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {model.path()})) << error.what();
    // Those that read no weights find it, too.
    EXPECT_STREQ(error_of([&] { Engine::check(model.path()); }).what(), error.what());
    EXPECT_STREQ(error_of([&] { Engine::describe(model.path(), options()); }).what(), error.what());
  }
};

// The copy itself is good, so what follows fails for its edits alone.
TEST_P(LoadErrors, AnUneditedCopyLoads) {
  const EditedModel model("qwen3_moe");
  Engine::check(model.path());
  EXPECT_EQ(Engine::load(model.path(), options())->summary().num_experts, 8);
}

TEST_P(LoadErrors, MissingTensors) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "model.layers.1.self_attn.q_proj.weight", "model.layers.2.self_attn.k_norm.weight",
        "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.experts.7.down_proj.weight"}) {
    const EditedModel model("qwen3_moe", {}, [&](EditedModel::Tensors& tensors) {
      ASSERT_EQ(tensors.erase(name), 1u);
    });
    expect_refused(model, ErrorKind::kBadFile, {name});
  }
  const EditedModel biases("qwen2_moe", {}, [](EditedModel::Tensors& tensors) {
    ASSERT_EQ(tensors.erase("model.layers.0.self_attn.v_proj.bias"), 1u);
  });
  expect_refused(biases, ErrorKind::kBadFile, {"model.layers.0.self_attn.v_proj.bias"});
}

TEST_P(LoadErrors, ShapesThatContradictTheConfig) {
  const EditedModel hidden("llama", [](nlohmann::json& config) { config["hidden_size"] = 128; });
  expect_refused(hidden, ErrorKind::kBadFile, {"64", "128"});
  const EditedModel head("llama", [](nlohmann::json& config) { config["head_dim"] = 32; });
  expect_refused(head, ErrorKind::kBadFile, {"q_proj"});
  const EditedModel experts("qwen3_moe", [](nlohmann::json& config) {
    config.erase("num_experts");
    config["num_local_experts"] = 9;
  });
  expect_refused(experts, ErrorKind::kBadFile, {"model.layers.0.mlp"});
  const EditedModel types("qwen3", [](nlohmann::json& config) { config["num_hidden_layers"] = 4; });
  expect_refused(types, ErrorKind::kBadFile, {"'layer_types'", "each of 4 layers, found 3"});
  const EditedModel layers("qwen3", [](nlohmann::json& config) {
    config["num_hidden_layers"] = 4;
    config.erase("layer_types");
  });
  expect_refused(layers, ErrorKind::kBadFile, {"model.layers.3."});
  const EditedModel fewer("qwen3", [](nlohmann::json& config) {
    config["num_hidden_layers"] = 2;
    config.erase("layer_types");
  });
  expect_refused(fewer, ErrorKind::kBadFile, {"num_hidden_layers", "is 2", "model.layers.2."});
}

TEST(LoadErrorsOfShapes, HeadsThatNoFusedKernelTakes) {
  const EditedModel model("llama", [](nlohmann::json& config) { config["head_dim"] = 514; });
  const Error error = error_of([&] { Engine::load(model.path(), test_options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"514", "at most 512", "--kernels reference"}))
      << error.what();
}

TEST(LoadErrorsOfShapes, LatentsThatNoFusedKernelTakes) {
  const EditedModel wide("deepseek_v3",
                         [](nlohmann::json& config) { config["kv_lora_rank"] = 514; });
  const Error error = error_of([&] { Engine::load(wide.path(), test_options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(
      error, {"config.json: 'kv_lora_rank' is 514", "at most 512", "--kernels reference"}))
      << error.what();
  const EditedModel other("deepseek_v3", [](nlohmann::json& config) { config["v_head_dim"] = 32; });
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    EngineOptions options = test_options();
    options.kernels = path;
    const Error shape = error_of([&] { Engine::load(other.path(), options); });
    EXPECT_EQ(shape.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(shape, {"self_attn.kv_b_proj", "[256, 32]"})) << shape.what();
  }
}

TEST(LoadErrorsOfBlocks, AScaleThatIsNotFinite) {
  for (const auto& [type, offset] :
       {std::pair{"Q8_0", 0}, {"Q4_1", 2}, {"Q4_K", 2}, {"Q6_K", 208}}) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.gguf";
    std::string bytes = BlockModel(type).bytes();
    write_bytes(path, bytes);
    const Checkpoint checkpoint = Checkpoint::open(path);
    const TensorInfo& info = checkpoint.require("model.layers.0.mlp.experts.1.up_proj.weight");
    const uint64_t row_bytes = info.stored_bytes / 256;
    bytes[info.file_offset + 37 * row_bytes + offset + 1] = '\x7c';  // an infinity or no number
    write_bytes(path, bytes);
    const Error error = error_of([&] { Engine::load(path, test_options(2)); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {path, info.name, "row 37", "expected finite"}))
        << error.what();
  }
}

TEST_P(LoadErrors, VocabularyThatDisagreesWithTheEmbedding) {
  for (int size : {255, 257}) {
    const EditedModel model("qwen3_moe",
                            [&](nlohmann::json& config) { config["vocab_size"] = size; });
    expect_refused(model, ErrorKind::kBadFile,
                   {"model.embed_tokens.weight", "256", std::to_string(size)});
  }
}

TEST_P(LoadErrors, VectorsOfATypeThatIsNoFloat) {
  for (const char* name : {"model.norm.weight", "model.layers.2.self_attn.k_norm.weight"}) {
    const EditedModel model("qwen3_moe", {}, [&](EditedModel::Tensors& tensors) {
      EditedModel::Tensor& tensor = tensors.at(name);
      tensor.dtype = DType::kI16;
      tensor.bytes.resize(static_cast<size_t>(tensor.shape[0]) * 2);
    });
    expect_refused(model, ErrorKind::kUnsupported, {name, "I16", "F32, F16 or BF16"});
  }
}

TEST_P(LoadErrors, UnknownArchitecture) {
  const EditedModel model("llama", [](nlohmann::json& config) { config["model_type"] = "mamba2"; });
  expect_refused(model, ErrorKind::kUnsupported, {"config.json", "model_type", "mamba2", "llama"});
}

// What would be needed is said, whatever else the config holds.
TEST_P(LoadErrors, FamiliesThatAreKnownAndNotHere) {
  for (const auto& [type, reason] : {std::pair{"phimoe", "sparsemixer"},
                                     {"llama4", "temperature"},
                                     {"llama4_text", "temperature"}}) {
    const EditedModel model("llama", [&](nlohmann::json& config) {
      config["model_type"] = type;
      config["text_config"] = config;
      config.erase("rms_norm_eps");
    });
    expect_refused(model, ErrorKind::kUnsupported, {"config.json", "model_type", type, reason});
  }
}

TEST_P(LoadErrors, MissingFolder) {
  const Error error = error_of([&] { Engine::load("/nonexistent/model", options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"/nonexistent/model", "is not there"})) << error.what();
}

// A NaN in a weight is found before it becomes a token.
TEST_P(LoadErrors, NanWeights) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.gate.weight",
        "model.layers.2.mlp.experts.3.down_proj.weight"}) {
    const EditedModel model("qwen3_moe", {}, [&](EditedModel::Tensors& tensors) {
      EditedModel::Tensor& tensor = tensors.at(name);
      ASSERT_EQ(tensor.dtype, DType::kBF16);
      for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
        tensor.bytes[i] = std::byte{0xc0};
        tensor.bytes[i + 1] = std::byte{0x7f};  // NaN in bfloat16
      }
    });
    const std::vector<int32_t> ids = prompt_ids(20, 256);
    const Error error = error_of([&] {
      auto engine = Engine::load(model.path(), options());
      GenerateOptions generate_options;
      generate_options.max_new_tokens = 3;
      generate_options.sampler.temperature = 0;
      generate(*engine, ids, generate_options);
    });
    EXPECT_TRUE(is_one_line_with(error, {"not numbers"}) || is_one_line_with(error, {"NaN"}))
        << name << ": " << error.what();
  }
}

TEST_P(LoadErrors, NanLogitsNameTheFirstLayer) {
  const EditedModel model("qwen3_moe", {}, [&](EditedModel::Tensors& tensors) {
    EditedModel::Tensor& tensor = tensors.at("model.layers.1.self_attn.o_proj.weight");
    for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
      tensor.bytes[i] = std::byte{0xc0};
      tensor.bytes[i + 1] = std::byte{0x7f};  // NaN in bfloat16
    }
  });
  const std::vector<int32_t> ids = prompt_ids(20, 256);
  for (const float temperature : {0.0f, 0.8f}) {
    for (const auto& [has_sink, threads] :
         {std::pair(true, 1), std::pair(true, 2), std::pair(false, 2)}) {
      SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kOverwrite);
      EngineOptions recording = options();
      recording.audit_mode = AuditMode::kDeferred;
      recording.threads = threads;
      auto engine = Engine::load(model.path(), recording);
      if (has_sink) engine->set_audit_sink(&ring);
      GenerateOptions generate_options;
      generate_options.max_new_tokens = 3;
      generate_options.sampler.temperature = temperature;
      const Error error = error_of([&] { generate(*engine, ids, generate_options); });
      EXPECT_TRUE(is_one_line_with(error, {"position"})) << error.what();
      // What layer 1 adds is in what enters layer 2.
      const bool names_layer =
          std::string_view(error.what()).find("entry of layer 2 on") != std::string_view::npos;
      EXPECT_EQ(names_layer, has_sink) << error.what();
    }
  }
}

TEST_P(LoadErrors, OptionsOutOfRange) {
  const std::string path = oracle_folder("llama");
  auto refuse = [&](auto change, std::initializer_list<std::string_view> words) {
    EngineOptions bad = options();
    change(bad);
    const Error error = error_of([&] { Engine::load(path, bad); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refuse([](EngineOptions& o) { o.max_context = 257; }, {"max_context", "257", "256"});
  refuse([](EngineOptions& o) { o.max_context = -1; }, {"max_context"});
  refuse([](EngineOptions& o) { o.max_sequences = 0; }, {"max_sequences"});
  refuse([](EngineOptions& o) { o.max_step_tokens = 0; }, {"max_step_tokens"});
  refuse([](EngineOptions& o) { o.max_logit_rows = -2; }, {"max_logit_rows"});
  refuse([](EngineOptions& o) { o.kv_block_size = 24; }, {"kv_block_size", "16"});
  refuse([](EngineOptions& o) { o.kv_block_size = -16; }, {"kv_block_size"});
  refuse([](EngineOptions& o) { o.threads = -1; }, {"threads"});
}

INSTANTIATE_TEST_SUITE_P(Kernels, LoadErrors,
                         ::testing::Values(KernelPath::kFused, KernelPath::kReference),
                         [](const auto& info) {
                           return info.param == KernelPath::kFused ? "fused" : "reference";
                         });

}  // namespace
}  // namespace vitrine::testing
