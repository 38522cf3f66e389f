// SPDX-License-Identifier: Apache-2.0
// Steps with bf16 and E4M3 activations on the emulated device: another result than the CPU's, near
// the float32 reference, and the same whatever else is in a step.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cuda/executor_fixture.h"

namespace vitrine::testing {
namespace {

using kernels::cuda::emulator::Traffic;

EngineOptions bf16_options(const std::string& kv = "f32") {
  EngineOptions options;
  options.device = Device::parse("cuda");
  options.kernels = KernelPath::kFused;
  options.activation_dtype = DType::kBF16;
  options.kv_codecs = {kv};
  return options;
}

EngineOptions reference_options() {
  EngineOptions options;
  options.kernels = KernelPath::kReference;
  return options;
}

double norm_of(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}
double norm_of(const std::vector<float>& a) { return norm_of(a, std::vector<float>(a.size())); }

/// The same model with weights as float32: what neither way of multiplying has rounded. `only`: of
/// modules of that name alone; the others stay as they are.
void write_widened(const std::string& from, const std::string& folder,
                   const std::string& only = "") {
  const Checkpoint checkpoint = Checkpoint::open(from);
  nlohmann::json config = nlohmann::json::parse(checkpoint.config_json());
  if (only.empty()) config.erase("quantization_config");
  SafetensorsWriter writer(folder + "/model.safetensors");
  std::vector<std::pair<std::string, std::vector<std::byte>>> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       const std::vector<float>& values) {
    writer.declare(name, DType::kF32, std::move(shape));
    const auto bytes = std::as_bytes(std::span(values));
    tensors.emplace_back(name, std::vector<std::byte>(bytes.begin(), bytes.end()));
  };
  for (const TensorInfo& info : checkpoint.tensors()) {
    const std::string base = info.name.substr(0, info.name.rfind('.'));
    const bool widens = base.find(only) != std::string::npos;
    const bool is_beside = info.name.find(".weight_") != std::string::npos;
    const bool has_numbers = checkpoint.find_quantized(base) == &info;
    if (widens && !is_beside && !has_numbers) {
      add(info.name, info.shape, checkpoint.read_f32(info));
    } else if (widens && has_numbers) {
      const QuantizedMatrix matrix = checkpoint.read_quantized(base).value();
      add(base + ".weight", {matrix.rows, matrix.cols}, dequantize_matrix(matrix));
      if (!only.empty()) config["quantization_config"]["ignore"].push_back(base);
    } else if (!widens) {
      writer.declare(info.name, info.dtype, info.shape);
      tensors.emplace_back(info.name, std::vector<std::byte>(info.num_bytes));
      checkpoint.read(info, tensors.back().second);
    }
  }
  write_bytes(folder + "/config.json", config.dump());
  writer.begin();
  for (const auto& [name, bytes] : tensors) writer.write(name, bytes);
  writer.finish();
}

enum class Share { kNoSuchOp, kNone, kSome, kAll };

/// How many of the plan's launches for an op run a kernel of that name.
Share share_of(const std::vector<PlanEntry>& plan, const std::string& op,
               const std::string& kernel) {
  size_t ops = 0, found = 0;
  for (const PlanEntry& entry : plan) {
    if (entry.op != op) continue;
    ++ops;
    found += entry.kernel.find(kernel) != std::string::npos ? 1 : 0;
  }
  return ops == 0      ? Share::kNoSuchOp
         : found == 0  ? Share::kNone
         : found < ops ? Share::kSome
                       : Share::kAll;
}

class CudaExecutorBf16 : public ::testing::TestWithParam<ModelVariant> {
 protected:
  CudaExecutorBf16() : folder_(GetParam()) {}
  VariantFolder folder_;
};

// Half a percent of the logits' norm, where int8 rows err by one to two. The tokens are such as no
// model routes by a near tie: one other expert makes all the difference.
TEST_P(CudaExecutorBf16, IsNearerToFloatsThanInt8) {
  const ModelUnderTest model(folder_.path(), bf16_options());
  const ModelUnderTest plain(folder_.path());
  const TemporaryFolder widened;
  write_widened(folder_.path(), widened.path());
  const ModelUnderTest exact(widened.path(), reference_options());
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  const auto cpu = engine::make_fused_executor(plain.inputs());
  const auto reference = engine::make_reference_executor(exact.inputs());
  StepDriver found(model, *device), quantized(plain, *cpu), expected(exact, *reference);
  for (const std::vector<Part>& parts :
       std::vector<std::vector<Part>>{{{0, {3, 1, 4, 1, 5}}},
                                      {{0, {9}}, {2, {2, 6, 5}}},
                                      {{2, {3}}, {0, {5}}, {1, {11, 9}}}}) {
    const StepResult ours = found.step(parts), theirs = quantized.step(parts),
                     truth = expected.step(parts);
    const double error = norm_of(ours.logits, truth.logits) / norm_of(truth.logits);
    EXPECT_LT(error, 0.01);
    EXPECT_LT(norm_of(ours.hidden_states, truth.hidden_states),
              0.01 * norm_of(truth.hidden_states));
    // The CPU multiplies 8-bit floats with float32.
    if (!GetParam().scheme.empty() && GetParam().scheme != "fp8") {
      EXPECT_LT(error, norm_of(theirs.logits, truth.logits) / norm_of(truth.logits));
    }
    EXPECT_GT(norm_of(ours.logits, theirs.logits), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaExecutorBf16,
                         ::testing::ValuesIn(std::vector<ModelVariant>{
                             {"qwen3_moe", "int4", 32},
                             {"qwen3_moe", "int4-asymmetric", 64},
                             {"qwen3_moe", "int3", 32},
                             {"qwen2_moe", "int8", 64},
                             {"olmoe", "", 0},
                             {"gpt_oss", "int4", 32},
                             {"glm4_moe", "int8", 64},
                             {"llama", "int8", 32},
                             {"qwen3_moe", "fp8", 32},
                             {"blocks", "Q4_K", 32},
                             {"blocks", "MXFP4", 32}}),
                         [](const auto& info) { return info.param.label(); });

TEST(CudaExecutorBf16Plan, NamesItsKernels) {
  const VariantFolder folder({"qwen3_moe", "int4", 32});
  Traffic traffic;
  const auto plan_of = [&](const std::string& path) {
    return make_on_device(ModelUnderTest(path, bf16_options()), traffic)->plan();
  };
  const std::vector<PlanEntry> plan = plan_of(folder.path());
  EXPECT_EQ(share_of(plan, "qkv", "linear_int4g32_a16"), Share::kAll);
  EXPECT_EQ(share_of(plan, "experts", "grouped_gate_up_linear_int4g32_a16"), Share::kAll);
  EXPECT_EQ(share_of(plan, "experts", "round_bf16"), Share::kAll);
  const VariantFolder wide({"blocks", "Q4_K", 32});
  EXPECT_EQ(share_of(plan_of(wide.path()), "experts", "round_bf16"), Share::kNone)
      << "a hidden layer of 256 columns is written as it is read";
  EXPECT_EQ(share_of(plan, "router", "_a16"), Share::kNone) << "experts are chosen as on the CPU";
  const VariantFolder q6k({"blocks", "Q6_K", 32});
  EXPECT_EQ(share_of(plan_of(q6k.path()), "qkv", "_a16"), Share::kNone)
      << "has scales for 16 columns";
}

TEST(CudaExecutorBf16Plan, LeavesQ6KWithTheBitsOfTheCpu) {
  const VariantFolder folder({"blocks", "Q6_K", 32});
  const ModelUnderTest model(folder.path(), bf16_options());
  const ModelUnderTest plain(folder.path());
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  const auto cpu = engine::make_fused_executor(plain.inputs());
  StepDriver found(model, *device), expected(plain, *cpu);
  const std::vector<Part> parts = {{0, {3, 1, 4, 1, 5}}};
  EXPECT_TRUE(same_floats(expected.step(parts).logits, found.step(parts).logits));
}

TEST(CudaExecutorBf16Contract, OneTokenOneResult) {
  // The blocks' heads are of 64: their prefill takes other tiles on tensor cores than their decode.
  for (const ModelVariant& variant : {ModelVariant{"qwen3_moe", "int4", 32},
                                      {"olmoe", "", 0},
                                      {"gpt_oss", "int4", 32},
                                      {"blocks", "Q4_K", 32},
                                      {"qwen3_moe", "fp8", 32}}) {
    SCOPED_TRACE(variant.label());
    const VariantFolder folder(variant);
    EngineOptions options = bf16_options("f16");
    if (variant.scheme == "fp8") options.activation_dtype = DType::kF8E4M3;
    const ModelUnderTest model(folder.path(), options);
    Traffic traffic;
    const std::vector<int32_t> ids = {7, 1, 12, 30, 2,  5,  9,  11, 4,
                                      6, 3, 8,  10, 13, 14, 15, 16, 17};
    const auto whole = make_on_device(model, traffic);
    EXPECT_EQ(share_of(whole->plan(), "attention", "attention_mma_f16"),
              variant.name == "blocks" ? Share::kAll : Share::kNone);
    const StepResult expected = StepDriver(model, *whole).step({{0, ids}});
    const auto chunked = make_on_device(model, traffic);
    StepDriver driver(model, *chunked);
    size_t row = 0;
    for (const size_t count : {4, 1, 12, 1}) {
      const std::vector<int32_t> chunk(ids.begin() + static_cast<ptrdiff_t>(row),
                                       ids.begin() + static_cast<ptrdiff_t>(row + count));
      const StepResult part =
          driver.step({{3, {static_cast<int32_t>(40 + row)}}, {0, chunk}, {1, {5, 6}}},
                      row % 2 == 0 ? AuditMode::kNone : AuditMode::kDeferred);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(same_floats(expected.logits_of(row + i), part.logits_of(1 + i)))
            << "token " << row + i;
      }
      row += count;
    }
  }
}

// Three bits of mantissa: each element errs by up to a sixteenth, the logits of this small model by
// about a tenth.
TEST(CudaExecutorE4M3, IsNearTheFloats) {
  const VariantFolder folder({"qwen3_moe", "fp8", 32});
  EngineOptions options = bf16_options();
  options.activation_dtype = DType::kF8E4M3;
  const ModelUnderTest model(folder.path(), options), plain(folder.path());
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  const auto cpu = engine::make_fused_executor(plain.inputs());
  EXPECT_EQ(share_of(device->plan(), "qkv", "linear_e4m3_a8"), Share::kAll);
  EXPECT_EQ(share_of(device->plan(), "experts", "grouped_gate_up_linear_e4m3_a8"), Share::kAll);
  EXPECT_EQ(share_of(device->plan(), "router", "_a8"), Share::kNone);
  StepDriver found(model, *device), exact(plain, *cpu);
  const std::vector<Part> parts = {{0, {3, 1, 4, 1, 5}}, {2, {2, 6, 5}}};
  const StepResult ours = found.step(parts), truth = exact.step(parts);
  const double error = norm_of(ours.logits, truth.logits) / norm_of(truth.logits);
  EXPECT_LT(error, 0.2);
  EXPECT_GT(error, 0.001);
}

// What is not stored as E4M3 is multiplied with bf16, as by --activation-type bf16.
TEST(CudaExecutorE4M3, LeavesOtherWeightsToBf16) {
  const VariantFolder folder({"qwen3_moe", "int4", 32});
  EngineOptions options = bf16_options();
  const ModelUnderTest bf16(folder.path(), options);
  options.activation_dtype = DType::kF8E4M3;
  const ModelUnderTest e4m3(folder.path(), options);
  Traffic traffic;
  const auto device = make_on_device(e4m3, traffic), other = make_on_device(bf16, traffic);
  const std::vector<Part> parts = {{0, {3, 1, 4}}};
  EXPECT_TRUE(same_floats(StepDriver(bf16, *other).step(parts).logits,
                          StepDriver(e4m3, *device).step(parts).logits));
}

TEST(CudaExecutorE4M3, NeedsADeviceThatHasIt) {
  const VariantFolder folder({"qwen3_moe", "fp8", 32});
  EngineOptions options = bf16_options();
  options.activation_dtype = DType::kF8E4M3;
  Traffic traffic;
  traffic.compute_capability = 80;
  try {
    make_on_device(ModelUnderTest(folder.path(), options), traffic);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("this one has 8.0; use bf16"), std::string::npos)
        << error.what();
  }
}

// Heads of 64 with keys and values in 16 bits: attention on tensor cores too.
TEST(CudaExecutorBf16Shipped, AttendsOnTensorCores) {
  if (!std::filesystem::exists(shipped_model())) GTEST_SKIP() << "a bundle without the model";
  Traffic traffic;
  EngineOptions exact_options = reference_options();
  exact_options.kv_codecs = {"bf16"};
  const ModelUnderTest model(shipped_model(), bf16_options("bf16"));
  const ModelUnderTest exact(shipped_model(), exact_options);
  const auto whole = make_on_device(model, traffic), chunked = make_on_device(model, traffic);
  const auto reference = engine::make_reference_executor(exact.inputs());
  EXPECT_EQ(share_of(whole->plan(), "attention", "attention_mma_bf16"), Share::kAll);
  const std::vector<int32_t> ids = {17, 230, 4095};
  const StepResult expected = StepDriver(model, *whole).step({{1, ids}});
  const StepResult truth = StepDriver(exact, *reference).step({{1, ids}});
  EXPECT_LT(norm_of(expected.logits, truth.logits), 0.03 * norm_of(truth.logits));
  StepDriver driver(model, *chunked);
  driver.step({{1, {17}}, {0, {5}}});
  const StepResult rest = driver.step({{0, {6}}, {1, {230, 4095}}});
  for (size_t row = 1; row < 3; ++row) {
    EXPECT_TRUE(same_floats(expected.logits_of(row), rest.logits_of(row))) << row;
  }
}

// One layer's downward matrices are floats, and read the hidden layer that others read as bf16.
TEST(CudaExecutorBf16Shipped, KeepsFloatsForWhoReadsThem) {
  if (!std::filesystem::exists(shipped_model())) GTEST_SKIP() << "a bundle without the model";
  const TemporaryFolder mixed;
  write_widened(shipped_model(), mixed.path(), "layers.1.mlp.experts.");
  Traffic traffic;
  const ModelUnderTest model(mixed.path(), bf16_options());
  const ModelUnderTest exact(mixed.path(), reference_options());
  const auto device = make_on_device(model, traffic);
  const auto reference = engine::make_reference_executor(exact.inputs());
  const std::vector<Part> parts = {{0, {17, 230}}};
  const StepResult found = StepDriver(model, *device).step(parts);
  const StepResult truth = StepDriver(exact, *reference).step(parts);
  EXPECT_LT(norm_of(found.logits, truth.logits), 0.03 * norm_of(truth.logits));
}

TEST(CudaExecutorBf16Options, AreForFusedKernelsOnCuda) {
  EngineOptions options = bf16_options();
  for (const char* device : {"cpu", "cuda"}) {
    options.device = Device::parse(device);
    options.kernels =
        options.device.kind == DeviceKind::kCuda ? KernelPath::kReference : KernelPath::kFused;
    EXPECT_THROW(
        {
          try {
            ModelUnderTest(oracle_folder("llama"), options);
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
            EXPECT_NE(std::string(error.what()).find("'activation_dtype' is BF16"),
                      std::string::npos);
            throw;
          }
        },
        Error);
  }
  options.activation_dtype = DType::kF64;
  EXPECT_THROW(ModelUnderTest(oracle_folder("llama"), options), Error);
}

}  // namespace
}  // namespace vitrine::testing
