// SPDX-License-Identifier: Apache-2.0
// Models whose columns the group size does not divide: the last group of a row is shorter.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "quant/pack.h"
#include "tests/engine/engine_fixture.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

constexpr int64_t kIntermediate = 187;  // of the oracle's 192: a multiple of nothing

/// [rows, cols] of a larger matrix's corner.
std::vector<float> corner(const std::vector<float>& matrix, int64_t stride, int64_t rows,
                          int64_t cols) {
  std::vector<float> result;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = matrix.begin() + row * stride;
    result.insert(result.end(), begin, begin + cols);
  }
  return result;
}

/// Quantizes a matrix as if zeros stood behind its last column, and leaves these away.
QuantizedMatrix quantize_short(const std::vector<float>& weights, int64_t rows, int64_t cols,
                               const QuantScheme& scheme) {
  const int64_t padded = (cols + scheme.group_size - 1) / scheme.group_size * scheme.group_size;
  std::vector<float> wide(static_cast<size_t>(rows * padded));
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(weights.begin() + row * cols, cols, wide.begin() + row * padded);
  }
  QuantizedMatrix matrix = quantize_matrix(wide, rows, padded, DType::kF32, scheme);
  std::vector<int8_t> values;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = matrix.values.begin() + row * padded;
    values.insert(values.end(), begin, begin + cols);
  }
  matrix.values = values;
  matrix.cols = cols;
  return matrix;
}

struct PendingTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <typename T>
PendingTensor pending(const std::string& name, DType dtype, std::vector<int64_t> shape,
                      const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

/// The llama oracle with a narrower feed-forward block, its projections quantized.
void write_model(const std::string& folder, const QuantScheme& scheme) {
  const Checkpoint source = Checkpoint::open(oracle_folder("llama"));
  std::vector<PendingTensor> tensors;
  for (const TensorInfo& info : source.tensors()) {
    std::vector<int64_t> shape = info.shape;
    std::vector<float> values = source.read_f32(info);
    if (!info.name.ends_with("_proj.weight")) {
      tensors.push_back(pending(info.name, DType::kF32, shape, values));
      continue;
    }
    if (info.name.find(".down_proj.") != info.name.npos) {
      values = corner(values, shape[1], shape[0], kIntermediate);
      shape[1] = kIntermediate;
    } else if (info.name.find(".mlp.") != info.name.npos) {
      values = corner(values, shape[1], kIntermediate, shape[1]);
      shape[0] = kIntermediate;
    }
    const QuantizedMatrix matrix = quantize_short(values, shape[0], shape[1], scheme);
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    tensors.push_back(pending(module + ".weight_packed", DType::kI32,
                              {shape[0], packed_words(shape[1], scheme.bits)},
                              pack_int32(matrix.values, shape[0], shape[1], scheme.bits)));
    tensors.push_back(
        pending(module + ".weight_scale", DType::kF32, {shape[0], matrix.groups()}, matrix.scales));
    tensors.push_back(pending(module + ".weight_shape", DType::kI64, {2}, shape));
    if (scheme.symmetric) continue;
    tensors.push_back(
        pending(module + ".weight_zero_point", DType::kI32,
                {packed_words(shape[0], scheme.bits), matrix.groups()},
                pack_int32_rows(matrix.zero_points, shape[0], matrix.groups(), scheme.bits)));
  }
  std::filesystem::create_directories(folder);
  SafetensorsWriter writer(folder + "/model.safetensors");
  for (const PendingTensor& tensor : tensors) {
    writer.declare(tensor.name, tensor.dtype, tensor.shape);
  }
  writer.begin();
  for (const PendingTensor& tensor : tensors) writer.write(tensor.name, tensor.bytes);
  writer.finish();
  json config = json::parse(source.config_json());
  config["intermediate_size"] = kIntermediate;
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", "pack-quantized"},
                                   {"config_groups",
                                    {{"group_0",
                                      {{"targets", {"Linear"}},
                                       {"weights",
                                        {{"num_bits", scheme.bits},
                                         {"type", "int"},
                                         {"symmetric", scheme.symmetric},
                                         {"group_size", scheme.group_size},
                                         {"strategy", "group"}}}}}}},
                                   {"ignore", {"lm_head"}}};
  write_bytes(folder + "/config.json", config.dump());
}

class ShortGroups : public ::testing::TestWithParam<QuantScheme> {
 protected:
  ShortGroups() { write_model(model_, GetParam()); }
  std::unique_ptr<Engine> load(KernelPath kernels, int threads, bool mapped = false) {
    EngineOptions options = test_options(threads, 16);
    options.kernels = kernels;
    options.mmap_weights = mapped;
    return Engine::load(model_, options);
  }
  TemporaryFolder folder_;
  std::string model_ = folder_ / "model";
};

TEST_P(ShortGroups, FusedAgreesWithReference) {
  auto reference = load(KernelPath::kReference, 1);
  auto fused = load(KernelPath::kFused, 2);
  const std::vector<int32_t> ids = prompt_ids(41, fused->summary().vocab_size);
  const Rows expected = score(*reference, ids);
  const Rows found = score(*fused, ids);
  ASSERT_EQ(found.size(), ids.size());
  for (const auto& [position, row] : found) {
    float largest = 0, worst = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      largest = std::max(largest, std::abs(expected.at(position)[i]));
      worst = std::max(worst, std::abs(row[i] - expected.at(position)[i]));
    }
    EXPECT_LE(worst, 2e-2f * largest) << "position " << position;
  }
}

TEST_P(ShortGroups, OneTokenOneResult) {
  Rows expected;
  std::vector<int32_t> ids;
  for (const char* isa : {"portable", "avx2", "avx2_vnni", "avx512", "avx512_amx"}) {
    SCOPED_TRACE(isa);
    const ScopedEnvironment forced("VITRINE_CPU_ISA", isa);
    std::unique_ptr<Engine> engine;
    try {
      engine = load(KernelPath::kFused, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      EXPECT_STRNE(isa, "portable");
      continue;
    }
    if (ids.empty()) {
      ids = prompt_ids(37, engine->summary().vocab_size);
      expected = score(*engine, ids);
    }
    EXPECT_TRUE(same_bits(expected, score(*engine, ids), ids.size()));
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 1), ids.size()));
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 5), ids.size()));
    engine = load(KernelPath::kFused, 2, /*mapped=*/true);
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 5), ids.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, ShortGroups,
                         ::testing::Values(QuantScheme{4, 32}, QuantScheme{4, 128, false},
                                           QuantScheme{8, 64}, QuantScheme{8, 64, false},
                                           QuantScheme{3, 64}, QuantScheme{3, 128, false}),
                         [](const auto& info) {
                           return "int" + std::to_string(info.param.bits) + "g" +
                                  std::to_string(info.param.group_size) +
                                  (info.param.symmetric ? "" : "asymmetric");
                         });

}  // namespace
}  // namespace vitrine::testing
