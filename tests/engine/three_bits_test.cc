// SPDX-License-Identifier: Apache-2.0
// Models in three bits: what the same numbers in four bits answer, bit for bit, in fewer bytes.
#include <nlohmann/json.hpp>

#include "quant/pack.h"
#include "tests/engine/engine_fixture.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

struct StoredTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <typename T>
StoredTensor stored(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

/// Writes a folder whose numbers of three bits take four.
void write_in_four_bits(const Checkpoint& source, const TemporaryFolder& folder) {
  json config = json::parse(source.config_json());
  for (auto& [name, group] : config["quantization_config"]["config_groups"].items()) {
    json& bits = group["weights"]["num_bits"];
    if (bits == 3) bits = 4;
  }
  write_bytes(folder / "config.json", config.dump());
  std::map<std::string, StoredTensor> tensors;
  for (const TensorInfo& info : source.tensors()) {
    StoredTensor& tensor = tensors[info.name];
    tensor = {info.dtype, info.shape, std::vector<std::byte>(info.num_bytes)};
    source.read(info, tensor.bytes);
  }
  for (const TensorInfo& info : source.tensors()) {
    if (!info.name.ends_with(".weight_packed")) continue;
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    const QuantizedMatrix matrix = source.read_quantized(module).value();
    if (matrix.bits != 3) continue;
    const auto [rows, cols] = std::pair(matrix.rows, matrix.cols);
    tensors[info.name] = stored(DType::kI32, {rows, packed_words(cols, 4)},
                                pack_int32(matrix.values, rows, cols, 4));
    if (matrix.zero_points.empty()) continue;
    tensors[module + ".weight_zero_point"] =
        stored(DType::kI32, {packed_words(rows, 4), matrix.groups()},
               pack_int32_rows(matrix.zero_points, rows, matrix.groups(), 4));
  }
  SafetensorsWriter writer(folder / "model.safetensors");
  for (const auto& [name, tensor] : tensors) writer.declare(name, tensor.dtype, tensor.shape);
  writer.begin();
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes);
  writer.finish();
}

class ThreeBits : public ::testing::TestWithParam<ModelVariant> {
 protected:
  ThreeBits() : three_(GetParam()) { write_in_four_bits(Checkpoint::open(three_.path()), four_); }
  VariantFolder three_;
  TemporaryFolder four_;
};

TEST_P(ThreeBits, AnswerAsTheSameNumbersInFour) {
  auto four = Engine::load(four_.path(), test_options(2));
  const std::vector<int32_t> ids = prompt_ids(71, four->summary().vocab_size);
  const Rows expected = score(*four, ids);
  for (const int threads : {1, 2}) {
    EngineOptions options = test_options(threads);
    for (const bool mapped : {false, true}) {
      options.mmap_weights = mapped;
      auto three = Engine::load(three_.path(), options);
      for (const int chunk : {1, 3, 64}) {
        EXPECT_TRUE(same_bits(expected, score(*three, ids, chunk), ids.size()))
            << threads << " threads, chunks of " << chunk << (mapped ? ", mapped" : "");
      }
    }
  }
}

TEST_P(ThreeBits, AreThreeInMemory) {
  const auto three = Engine::load(three_.path(), test_options());
  const auto four = Engine::load(four_.path(), test_options());
  const auto matrices = [](const Engine& engine, const std::string& bits) {
    size_t count = 0;
    for (const PlanEntry& entry : engine.plan()) {
      count += entry.kernel.find("_" + bits + "g") != entry.kernel.npos ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(matrices(*three, "int3"), 0U);
  EXPECT_EQ(matrices(*three, "int4"), 0U);
  EXPECT_EQ(matrices(*three, "int3"), matrices(*four, "int4"));

  const Checkpoint checkpoint = Checkpoint::open(three_.path());
  const Checkpoint wider = Checkpoint::open(four_.path());
  uint64_t saved = 0;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    if (!info.name.ends_with(".weight_packed")) continue;
    const auto tensors = checkpoint.find_quantized_tensors(module);
    if (tensors->bits == 8) continue;  // the head
    const std::string zeros = tensors->zero_points == nullptr ? "" : ", with zero points";
    EXPECT_EQ(tensors->runs_as(),
              "int3, groups of " + std::to_string(GetParam().group_size) + zeros);
    EXPECT_TRUE(tensors->is_in_place);
    // An eighth of a byte a number less, rows in tiles of 16 and columns in units of 32.
    const int64_t elements = (tensors->rows + 15) / 16 * 16 * ((tensors->cols + 31) / 32 * 32);
    EXPECT_EQ(tensors->memory_bytes() + static_cast<uint64_t>(elements) / 8,
              wider.find_quantized_tensors(module)->memory_bytes());
    saved += static_cast<uint64_t>(elements) / 8;
  }
  EXPECT_NEAR(static_cast<double>(three->summary().weight_bytes + saved),
              static_cast<double>(four->summary().weight_bytes), 64.0 * 1024);
}

INSTANTIATE_TEST_SUITE_P(Models, ThreeBits,
                         ::testing::Values(ModelVariant{"qwen3_moe", "int3", 32},
                                           ModelVariant{"qwen3_moe", "int3-asymmetric", 32},
                                           ModelVariant{"granitemoe", "int3-asymmetric", 64},
                                           ModelVariant{"llama", "int3", 64}),
                         variant_name);

}  // namespace
}  // namespace vitrine::testing
