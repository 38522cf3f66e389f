// SPDX-License-Identifier: Apache-2.0
// GGUF files with Gated DeltaNet as models: tensors that do not fit, adapters, one token, one
// result where value heads are tiled.
#include "tests/engine/adapter_fixture.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

/// A dense model of two layers (qwen35), the first with a state: 2 key heads of 16, 6 value heads
/// of
/// 24. Its tensors can be edited before it is written.
class DeltaFile {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> extents;
    float middle = 0.0F;
  };

  std::vector<Tensor> tensors = {
      {"token_embd.weight", {64, 100}},
      {"output_norm.weight", {64}, 1.0F},
      {"blk.0.attn_norm.weight", {64}, 1.0F},
      {"blk.0.attn_qkv.weight", {64, 208}},
      {"blk.0.attn_gate.weight", {64, 144}},
      {"blk.0.ssm_beta.weight", {64, 6}},
      {"blk.0.ssm_alpha.weight", {64, 6}},
      {"blk.0.ssm_conv1d.weight", {4, 208}, 0.3F},
      {"blk.0.ssm_a", {6}, -1.0F},
      {"blk.0.ssm_dt.bias", {6}},
      {"blk.0.ssm_norm.weight", {24}, 1.0F},
      {"blk.0.ssm_out.weight", {144, 64}},
      {"blk.1.attn_norm.weight", {64}, 1.0F},
      {"blk.1.attn_q.weight", {64, 256}},
      {"blk.1.attn_k.weight", {64, 64}},
      {"blk.1.attn_v.weight", {64, 64}},
      {"blk.1.attn_output.weight", {128, 64}},
      {"blk.1.attn_q_norm.weight", {32}, 1.0F},
      {"blk.1.attn_k_norm.weight", {32}, 1.0F},
      {"blk.0.post_attention_norm.weight", {64}, 1.0F},
      {"blk.0.ffn_gate.weight", {64, 96}},
      {"blk.0.ffn_up.weight", {64, 96}},
      {"blk.0.ffn_down.weight", {96, 64}},
      {"blk.1.post_attention_norm.weight", {64}, 1.0F},
      {"blk.1.ffn_gate.weight", {64, 96}},
      {"blk.1.ffn_up.weight", {64, 96}},
      {"blk.1.ffn_down.weight", {96, 64}},
  };

  Tensor& find(std::string_view name) { return *std::ranges::find(tensors, name, &Tensor::name); }

  std::string bytes() const {
    const std::string key = "qwen35.";
    GgufFile file;
    file.entries = {gguf_text("general.architecture", "qwen35"),
                    gguf_u32(key + "context_length", 512),
                    gguf_u32(key + "embedding_length", 64),
                    gguf_u32(key + "block_count", 2),
                    gguf_u32(key + "full_attention_interval", 2),
                    gguf_u32(key + "feed_forward_length", 96),
                    gguf_u32(key + "attention.head_count", 4),
                    gguf_u32(key + "attention.head_count_kv", 2),
                    gguf_f32(key + "attention.layer_norm_rms_epsilon", 1e-6F),
                    gguf_u32(key + "attention.key_length", 32),
                    gguf_u32(key + "attention.value_length", 32),
                    gguf_u32(key + "rope.dimension_count", 8),
                    gguf_u32(key + "ssm.conv_kernel", 4),
                    gguf_u32(key + "ssm.state_size", 16),
                    gguf_u32(key + "ssm.group_count", 2),
                    gguf_u32(key + "ssm.time_step_rank", 6),
                    gguf_u32(key + "ssm.inner_size", 144)};
    std::string data;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      file.tensors.push_back(gguf_tensor(tensor.name, tensor.extents, 0, data.size()));
      size_t count = 1;
      for (const uint64_t extent : tensor.extents) count *= extent;
      for (const float value : spread_values(count, static_cast<uint32_t>(i), 0.3F)) {
        data += le(tensor.middle + value);
      }
      data.resize((data.size() + 31) / 32 * 32, '\0');
    }
    return file.bytes() + data;
  }
};

class DeltaGguf : public ::testing::Test {
 protected:
  std::string write(const DeltaFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return folder_ / "model.gguf";
  }
  void expect_refused(const DeltaFile& file, std::string_view tensor) {
    const std::string path = write(file);
    for (const KernelPath kernels : {KernelPath::kFused, KernelPath::kReference}) {
      EngineOptions options = test_options();
      options.kernels = kernels;
      const Error error = error_of([&] { Engine::load(path, options); });
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
      EXPECT_TRUE(is_one_line_with(error, {"model.gguf", tensor, "expected"})) << error.what();
    }
  }
  TemporaryFolder folder_;
};

TEST_F(DeltaGguf, OneTokenOneResult) {
  const std::string path = write({});
  const std::vector<int32_t> ids = prompt_ids(90, 100);
  const Rows expected = score(*Engine::load(path, test_options()), ids);
  for (const bool mmap : {false, true}) {
    for (const char* isa : {"portable", ""}) {
      const ScopedEnvironment forced("VITRINE_CPU_ISA", isa);
      EngineOptions options = test_options(2);
      options.mmap_weights = mmap;
      const auto engine = Engine::load(path, options);
      for (const size_t chunk : {0, 1, 7, 64}) {
        EXPECT_TRUE(same_bits(expected, score(*engine, ids, chunk), ids.size()))
            << chunk << isa << mmap;
      }
    }
  }
}

TEST_F(DeltaGguf, DraftsAreTakenBack) {
  const auto engine = Engine::load(write({}), test_options());
  const std::vector<int32_t> ids = prompt_ids(40, 100);
  const Rows expected = score(*engine, ids);
  Rows rows;
  const SequenceId sequence = engine->create_sequence();
  feed(*engine, sequence, ids, 0, 20, 0, rows);
  std::vector<int32_t> tokens(ids.begin() + 20, ids.begin() + 23);
  tokens.insert(tokens.end(), {1, 2, 3});
  StepInput input;
  input.sequence = sequence;
  input.tokens = tokens;
  input.num_drafts = 5;
  engine->step({&input, 1});
  engine->keep(sequence, 3);
  rows.clear();
  feed(*engine, sequence, ids, 23, ids.size(), 5, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size() - 23));
}

TEST_F(DeltaGguf, ATensorThatIsMissingOrOfAnotherShapeIsNamed) {
  const DeltaFile whole;
  for (const DeltaFile::Tensor& tensor : whole.tensors) {
    if (tensor.name == "token_embd.weight") continue;  // the config reads it
    SCOPED_TRACE(tensor.name);
    DeltaFile without = whole;
    std::erase_if(without.tensors, [&](const auto& other) { return other.name == tensor.name; });
    expect_refused(without, "'" + tensor.name + "'");
    DeltaFile wider = whole;
    wider.find(tensor.name).extents.back() += 1;
    expect_refused(wider, "'" + tensor.name + "'");
    DeltaFile higher = whole;
    higher.find(tensor.name).extents.push_back(2);
    expect_refused(higher, "'" + tensor.name + "'");
  }
}

// Their rows and columns stand in the order of the published folder.
TEST_F(DeltaGguf, AdaptersOfTiledHeadsAreRefused) {
  const std::string path = write({});
  const auto load = [&](const AdapterModule& module) {
    const std::string adapter = folder_ / module.module;
    write_adapter(adapter, R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})",
                  adapter_tensors({module}, 2, 1));
    EngineOptions options = test_options();
    options.adapters = {adapter};
    Engine::load(path, options);
  };
  load({"model.layers.1.self_attn.v_proj", 64, 64});
  const std::string part = "model.layers.0.linear_attn.";
  for (const AdapterModule& module : {AdapterModule{part + "in_proj_qkv", 208, 64},
                                      {part + "in_proj_z", 144, 64},
                                      {part + "in_proj_b", 6, 64},
                                      {part + "in_proj_a", 6, 64},
                                      {part + "out_proj", 64, 144}}) {
    const Error error = error_of([&] { load(module); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {module.module, "cannot change here"})) << error.what();
  }
}

}  // namespace
}  // namespace vitrine::testing
