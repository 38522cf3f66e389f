// SPDX-License-Identifier: Apache-2.0
// fuzz_checkpoint SECONDS [SEED]: mutates checkpoint folders and reads all that is in them.
//
// Every outcome must be success or vitrine::Error with one line; anything else ends with 1 and the
// iteration, which the same seed repeats. Meant for a build with AddressSanitizer and UBSan.
#include <stdexcept>

#include "checkpoint/column_order.h"
#include "checkpoint/model_config.h"
#include "folders.h"
#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"

namespace {

using namespace vitrine;
using testing::Files;
using testing::Mutator;

// Names and values that mean something to a reader.
std::vector<std::string> hostile_strings() {
  return {"\"\"",
          "\"F32\"",
          "\"F64\"",
          "\"I32\"",
          "\"F8_E4M3\"",
          "\"shape\"",
          "\"data_offsets\"",
          "\"__metadata__\"",
          "\"../one.safetensors\"",
          "\"/etc/passwd\"",
          "\"two.safetensors\"",
          "\"model.layers.0.mlp.experts.gate_up_proj\"",
          "\"model.layers.0.mlp.experts.gate_up_proj_shape\"",
          "\"model.layers.0.mlp.experts.gate_up_proj_zero_point\"",
          "\"m.weight\"",
          "\"m.weight_zero_point\"",
          "\"re:.*\"",
          "\"re:(a+)+$\"",
          "\"re:((((\"",
          "\"Linear\"",
          "\"group\"",
          "\"int\"",
          "\"yarn\"",
          "\"\\n\\u0000\"",
          "\"\\ud800\"",
          "\"\xff\"",
          "\"pack-quantized\"",
          "\"rope_parameters\"",
          "\"quantization_config\"",
          "\"text_config\"",
          "\"layer_types\"",
          "\"full_attention\"",
          "\"TikTokenTokenizer\"",
          "\"model.layers.0.block_sparse_moe.input_linear.weight\""};
}

void write_tensors(const std::string& path,
                   const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors,
                   DType dtype) {
  SafetensorsWriter writer(path);
  for (const auto& [name, shape] : tensors) writer.declare(name, dtype, shape);
  writer.begin({{"format", "pt"}});
  for (const auto& [name, shape] : tensors) {
    int64_t count = static_cast<int64_t>(dtype_size(dtype));
    for (int64_t extent : shape) count *= extent;
    writer.write(name, std::vector<std::byte>(static_cast<size_t>(count), std::byte{0x3c}));
  }
  writer.finish();
}

/// A tensor all of whose bytes are the same.
struct FilledTensor {
  const char* name;
  DType dtype;
  std::vector<int64_t> shape;
  uint8_t byte;
};

void write_parts(const std::string& path, const std::vector<FilledTensor>& tensors) {
  SafetensorsWriter writer(path);
  for (const FilledTensor& tensor : tensors) {
    writer.declare(tensor.name, tensor.dtype, tensor.shape);
  }
  writer.begin();
  for (const FilledTensor& tensor : tensors) {
    size_t count = dtype_size(tensor.dtype);
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    writer.write(tensor.name, std::vector<std::byte>(count, std::byte{tensor.byte}));
  }
  writer.finish();
}

/// Configs of families whose fields are read in files of their own.
std::vector<std::string> family_configs() {
  const std::string sizes = R"("vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128,
      "rms_norm_eps": 1e-6, "intermediate_size": 96)";
  const std::string experts = R"(, "num_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32)";
  const std::string latent = "\"model_type\": \"deepseek_v3\", " + sizes + R"(, "kv_lora_rank": 32,
      "q_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
      "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 4,
      "topk_group": 2, "first_k_dense_replace": 1, "rope_scaling": {"type": "yarn", "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64})";
  const std::string float8 = R"("quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
      "weight_block_size": [128, 128]})";
  return {"{" + latent + ", " + float8 + "}",
          R"({"model_type": "kimi_k25", "tie_word_embeddings": true, "text_config": {)" + latent +
              ", " + float8 + "}}",
          R"({"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text", )" +
              sizes + experts + R"(, "layer_types": ["linear_attention", "full_attention"],
      "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
      "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4, "rope_parameters": {
      "rope_theta": 1e4, "partial_rotary_factor": 0.25}}})",
          R"({"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32, )" + sizes +
              experts + R"(, "enable_moe_block": true, "top_k_experts": 2, "sliding_window": 8,
      "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
      "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention":
      {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}})",
          R"({"model_type": "lfm2_moe", "norm_eps": 1e-5, "conv_L_cache": 3, "layer_types":
      ["conv", "full_attention"], "num_dense_layers": 1, )" +
              sizes + experts + "}",
          R"({"model_type": "gpt_oss", "sliding_window": 16, "swiglu_limit": 7.0, )" + sizes +
              experts + "}"};
}

/// A vocabulary of all bytes and two more tokens: as tekken.json, and as tiktoken.model.
Files ranked_vocabulary(bool is_tekken) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.push_back({kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='});
  }
  tokens.insert(tokens.end(), {"YWI=", "YWJj"});  // "ab", "abc"
  std::string list;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string number = std::to_string(rank);
    list += is_tekken ? (rank == 0 ? R"({"rank": )" : R"(, {"rank": )") + number +
                            R"(, "token_bytes": ")" + tokens[rank] + "\"}"
                      : tokens[rank] + " " + number + "\n";
  }
  if (is_tekken) {
    return {{"tekken.json", R"({"config": {"pattern": "\\s+|\\S+", "default_vocab_size": 260,
        "default_num_special_tokens": 2}, "special_tokens": [{"rank": 1, "token_str": "<s>"}],
        "vocab": [)" + list + "]}"}};
  }
  return {{"tiktoken.model", list},
          {"tokenizer_config.json", R"({"tokenizer_class": "TikTokenTokenizer",
              "added_tokens_decoder": {"258": {"content": "[BOS]", "special": true}}})"}};
}

/// Folders that read well: plain, in shards, fused, quantized; of each family; with vocabularies.
std::vector<Files> healthy_folders() {
  const testing::TemporaryFolder folder;
  const auto content = [&](const char* name) { return testing::read_bytes(folder / name); };
  const std::string config = testing::small_config();
  const std::string generation = R"({"eos_token_id": [1, 2], "bos_token_id": 0})";

  write_tensors(folder / "plain", {{"model.norm.weight", {8}}, {"lm_head.weight", {4, 8}}},
                DType::kBF16);
  write_tensors(folder / "one", {{"a", {2, 3}}}, DType::kF16);
  write_tensors(folder / "two", {{"b", {4}}, {"c", {}}}, DType::kF32);
  write_tensors(folder / "fused",
                {{"model.layers.0.block_sparse_moe.input_linear.weight", {2, 4, 3}},
                 {"model.layers.0.block_sparse_moe.output_linear.weight", {2, 3, 2}},
                 {"model.layers.1.mlp.experts.gate_up_proj", {2, 4, 3}},
                 {"model.layers.1.mlp.experts.down_proj", {2, 3, 2}}},
                DType::kF32);
  SafetensorsWriter packed(folder / "packed");
  packed.declare("m.weight_packed", DType::kI32, {2, 8});
  packed.declare("m.weight_scale", DType::kBF16, {2, 2});
  packed.declare("m.weight_shape", DType::kI64, {2});
  packed.declare("z.weight_packed", DType::kI32, {9, 5});  // with zero points, a short last group
  packed.declare("z.weight_scale", DType::kF32, {9, 2});
  packed.declare("z.weight_shape", DType::kI64, {2});
  packed.declare("z.weight_zero_point", DType::kI32, {2, 2});
  packed.begin();
  packed.write("m.weight_packed", std::vector<std::byte>(64, std::byte{0x71}));
  packed.write("m.weight_scale", std::vector<std::byte>(8, std::byte{0x3c}));
  const int64_t shape[] = {2, 64};
  packed.write("m.weight_shape", std::as_bytes(std::span(shape)));
  packed.write("z.weight_packed", std::vector<std::byte>(180, std::byte{0x71}));
  packed.write("z.weight_scale", std::vector<std::byte>(72, std::byte{0x3c}));
  const int64_t short_shape[] = {9, 40};
  packed.write("z.weight_shape", std::as_bytes(std::span(short_shape)));
  packed.write("z.weight_zero_point", std::vector<std::byte>(16, std::byte{0x5a}));
  packed.finish();
  std::string quantized = config;
  quantized.insert(quantized.rfind('}'), R"(, "quantization_config": {
      "quant_method": "compressed-tensors", "format": "pack-quantized",
      "quantization_status": "compressed", "ignore": ["lm_head", "re:.*gate$"],
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
        "type": "int", "symmetric": true, "group_size": 32, "strategy": "group",
        "dynamic": false, "actorder": null}, "input_activations": null},
        "group_1": {"targets": ["re:.*head"], "weights": {"num_bits": 8, "group_size": 64,
        "type": "int"}}, "group_2": {"targets": ["z"], "weights": {"num_bits": 4,
        "type": "int", "symmetric": false, "group_size": 32}}}, "kv_cache_scheme": null, "sparsity_config": {}})");

  SafetensorsWriter float8(folder / "float8");
  float8.declare("language_model.model.m.weight", DType::kF8E4M3, {3, 130});
  float8.declare("language_model.model.m.weight_scale_inv", DType::kF32, {1, 2});
  float8.declare("vision_tower.a", DType::kF8E4M3, {4});
  float8.begin();
  float8.write("language_model.model.m.weight", std::vector<std::byte>(390, std::byte{0x3c}));
  float8.write("language_model.model.m.weight_scale_inv",
               std::vector<std::byte>(8, std::byte{0x3c}));
  float8.write("vision_tower.a", std::vector<std::byte>(4));
  float8.finish();

  // Small modules of other writers' layouts.
  write_parts(folder / "words", {{"m.g_idx", DType::kI32, {32}, 0x00},
                                 {"m.qweight", DType::kI32, {4, 8}, 0x71},
                                 {"m.qzeros", DType::kI32, {1, 1}, 0x77},
                                 {"m.scales", DType::kF16, {1, 8}, 0x3c}});
  write_parts(folder / "nibbles", {{"m.qweight", DType::kI32, {8, 2}, 0x71},
                                   {"m.qzeros", DType::kI32, {1, 2}, 0x77},
                                   {"m.scales", DType::kF16, {1, 16}, 0x3c}});
  write_parts(folder / "floats4", {{"m.weight", DType::kU8, {2, 16}, 0x71},
                                   {"m.weight_scale", DType::kF8E4M3, {2, 2}, 0x3c},
                                   {"m.weight_scale_2", DType::kF32, {}, 0x3c}});
  // A gate and an up that ask for scales of activations.
  write_parts(folder / "rounded", {{"m.gate_proj.input_scale", DType::kF32, {1}, 0x3c},
                                   {"m.gate_proj.weight", DType::kI8, {4, 40}, 0x71},
                                   {"m.gate_proj.weight_scale", DType::kF32, {4, 1}, 0x3c},
                                   {"m.up_proj.input_scale", DType::kBF16, {}, 0x3d},
                                   {"m.up_proj.weight", DType::kI8, {4, 40}, 0x71},
                                   {"m.up_proj.weight_scale", DType::kF32, {4, 1}, 0x3c}});
  // Experts of a layer in one tensor.
  write_parts(folder / "stacked8",
              {{"model.layers.0.mlp.experts.gate_up_proj", DType::kF8E4M3, {2, 4, 32}, 0x3c},
               {"model.layers.0.mlp.experts.gate_up_proj_scale_inv", DType::kF32, {2, 2, 1}, 0x3c},
               {"model.layers.0.mlp.experts.down_proj", DType::kF8E4M3, {2, 32, 2}, 0x3c},
               {"model.layers.0.mlp.experts.down_proj_scale_inv", DType::kF32, {2, 16, 1}, 0x3c}});
  write_parts(
      folder / "stacked4",
      {{"model.layers.0.mlp.experts.gate_up_proj.weight_packed", DType::kI32, {2, 16, 4}, 0x71},
       {"model.layers.0.mlp.experts.gate_up_proj.weight_scale", DType::kF16, {2, 8, 2}, 0x3c},
       {"model.layers.0.mlp.experts.gate_up_proj.weight_zero_point",
        DType::kI32,
        {2, 2, 1},
        0x77}});
  SafetensorsWriter lines(folder / "lines");  // 3 bits in 32 columns, 2 in 8
  lines.declare("m.q_groups", DType::kI16, {4});
  lines.declare("m.q_invperm", DType::kI32, {40});
  lines.declare("m.q_scale", DType::kI32, {2, 4});
  lines.declare("m.q_scale_max", DType::kF16, {2});
  lines.declare("m.q_weight", DType::kI32, {4, 32});
  lines.begin();
  const int16_t ends[] = {3, 0, 2, 3};
  lines.write("m.q_groups", std::as_bytes(std::span(ends)));
  int32_t order[40];
  for (int32_t i = 0; i < 40; ++i) order[i] = 39 - i;
  lines.write("m.q_invperm", std::as_bytes(std::span(order)));
  lines.write("m.q_scale", std::vector<std::byte>(32, std::byte{0x71}));
  lines.write("m.q_scale_max", std::vector<std::byte>(4, std::byte{0x3c}));
  lines.write("m.q_weight", std::vector<std::byte>(512, std::byte{0x71}));
  lines.finish();
  const auto quantized_by = [&](const std::string& fields) {
    std::string with = config;
    with.insert(with.rfind('}'), R"(, "quantization_config": {)" + fields + "}");
    return with;
  };

  std::vector<Files> folders = {
      {{"config.json", quantized_by(R"("quant_method": "gptq", "bits": 4, "group_size": 32,
          "sym": true, "dynamic": {"-:x": {}, "y.*": {"bits": 8}})")},
       {"model.safetensors", content("words")}},
      {{"config.json", quantized_by(R"("quant_method": "auto-round", "bits": 4, "group_size": 32,
          "sym": false, "packing_format": "auto_round", "extra_config": {"z": {"bits": 16}})")},
       {"model.safetensors", content("words")}},
      {{"config.json", quantized_by(R"("quant_method": "awq", "bits": 4, "group_size": 8,
          "version": "gemm", "modules_to_not_convert": ["gate"])")},
       {"model.safetensors", content("nibbles")}},
      {{"config.json", quantized_by(R"("quant_method": "compressed-tensors",
          "format": "int-quantized", "config_groups": {"a": {"targets": ["Linear"], "weights": {
          "num_bits": 8, "type": "int", "strategy": "channel"}, "input_activations": {
          "num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": false}}})")},
       {"model.safetensors", content("rounded")}},
      {{"config.json", quantized_by(R"("quant_method": "fp8", "weight_block_size": [2, 32])")},
       {"model.safetensors", content("stacked8")}},
      {{"config.json", quantized_by(R"("quant_method": "compressed-tensors",
          "format": "pack-quantized", "config_groups": {"a": {"targets": ["Linear"], "weights": {
          "num_bits": 4, "type": "int", "symmetric": false, "group_size": 32}}})")},
       {"model.safetensors", content("stacked4")}},
      {{"config.json", quantized_by(R"("quant_method": "exl2", "bits": 2.5, "head_bits": 6)")},
       {"output-00001-of-00001.safetensors", content("lines")}},
      {{"config.json", config},
       {"hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16,
          "exclude_modules": ["lm_head*"]}})"},
       {"model.safetensors", content("floats4")}},
      {{"config.json", config},
       {"generation_config.json", generation},
       {"model.safetensors", content("plain")}},
      {{"config.json", config},
       {"model.safetensors.index.json",
        R"({"metadata": {"total_size": 1}, "weight_map": {"a": "one.safetensors",
            "b": "two.safetensors", "c": "two.safetensors"}})"},
       {"one.safetensors", content("one")},
       {"two.safetensors", content("two")}},
      {{"config.json", config}, {"model.safetensors", content("fused")}},
      {{"config.json", quantized}, {"model.safetensors", content("packed")}},
  };
  for (const std::string& family : family_configs()) {
    const bool is_float8 = family.find("fp8") != std::string::npos;
    folders.push_back(
        {{"config.json", family}, {"model.safetensors", content(is_float8 ? "float8" : "plain")}});
  }
  for (const bool is_tekken : {true, false}) {
    folders.push_back({{"config.json", config}, {"model.safetensors", content("plain")}});
    for (const auto& file : ranked_vocabulary(is_tekken)) folders.back().insert(file);
  }
  return folders;
}

/// Reads all of a folder; true where nothing was refused.
bool read_all(const std::string& path) {
  bool is_clean = true;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      is_clean = false;
      testing::check_message(error);
    }
  };
  attempt([&] {
    const Checkpoint checkpoint = Checkpoint::open(path);
    attempt([&] { parse_model_config(checkpoint); });
    attempt([&] { checkpoint.tokenizer_json(); });
    attempt([&] { checkpoint.quantized_module("model.layers.0.self_attn.q_proj"); });
    for (const TensorInfo& info : checkpoint.tensors()) {
      std::vector<std::byte> bytes(info.num_bytes);
      attempt([&] { checkpoint.read(info, bytes); });
      const bool is_float =
          info.dtype == DType::kF32 || info.dtype == DType::kF16 || info.dtype == DType::kBF16;
      if (is_float) attempt([&] { checkpoint.read_f32(info); });
      const std::string base = info.name.substr(0, info.name.rfind('.'));
      attempt([&] {
        const auto tensors = checkpoint.find_quantized_tensors(base);
        if (!tensors) return;
        checkpoint.read_quantized_floats(*tensors, 0, tensors->rows);
        if (checkpoint::is_sortable(*tensors)) {
          checkpoint.read_quantized_rows(checkpoint::sorted(*tensors), 0, tensors->rows);
        }
        if (!tensors->floats) dequantize_matrix(*checkpoint.read_quantized(base));
      });
    }
  });
  return is_clean;
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(argc, argv, "fuzz_checkpoint", "folders", [](uint64_t seed) {
    const auto healthy = healthy_folders();
    const auto run = [healthy, mutator = Mutator(seed, hostile_strings())](
                         long iteration) mutable -> std::optional<bool> {
      const bool is_mutated = iteration >= static_cast<long>(healthy.size());
      Files files = healthy[static_cast<size_t>(iteration) % healthy.size()];
      if (is_mutated) mutator.mutate(files);
      const testing::TemporaryFolder folder;
      for (const auto& [name, bytes] : files) testing::write_bytes(folder / name, bytes);
      const bool is_clean = read_all(folder.path());
      if (!is_mutated && !is_clean) throw std::runtime_error("a healthy folder was refused");
      return is_clean;
    };
    return testing::FuzzTarget{run, static_cast<long>(healthy.size())};
  });
}
