// SPDX-License-Identifier: Apache-2.0
// EXL2: what matrices of several widths run as, tensors that do not fit each other, and the names
// of the weight files.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/module_layout.h"
#include "stored_tensors.h"
#include "vitrine/quant.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::stored;
using testing::StoredTensor;
using testing::StoredTensors;
using testing::write_stored;

StoredTensor order_of(const std::vector<int32_t>& order) {
  return stored(DType::kI32, {static_cast<int64_t>(order.size())}, order);
}
StoredTensor groups_of(const std::vector<int16_t>& groups) {
  return stored(DType::kI16, {static_cast<int64_t>(groups.size())}, groups);
}
StoredTensor halves_of(const std::vector<float>& values) {
  std::vector<uint16_t> halves;
  halves.reserve(values.size());
  for (const float value : values) halves.push_back(float_to_f16(value));
  return stored(DType::kF16, {static_cast<int64_t>(values.size())}, halves);
}

std::vector<int32_t> backwards(int32_t cols) {
  std::vector<int32_t> order(static_cast<size_t>(cols));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

struct Group {
  int bits;
  int cols;
};

/// A module of 32 rows whose columns stand backwards. Numbers are whatever their bits give.
StoredTensors module_of(const std::string& name, const std::vector<Group>& groups) {
  std::vector<int16_t> ends;
  int64_t lines = 0;
  int32_t cols = 0;
  for (const Group& group : groups) {
    ends.push_back(static_cast<int16_t>(group.bits));
    ends.push_back(static_cast<int16_t>(lines));
    lines += (group.cols * group.bits + 31) / 32;
    cols += group.cols;
  }
  std::vector<uint32_t> words(static_cast<size_t>(lines) * 32);
  uint32_t state = 1;
  for (uint32_t& word : words) word = state = state * 1664525 + 1013904223;
  const auto count = static_cast<int64_t>(groups.size());
  const std::vector<uint32_t> scales(static_cast<size_t>(count) * 4, 0x76543210);
  return {{name + ".q_weight", stored(DType::kI32, {lines, 32}, words)},
          {name + ".q_invperm", order_of(backwards(cols))},
          {name + ".q_groups", groups_of(ends)},
          {name + ".q_scale", stored(DType::kI32, {count, 4}, scales)},
          {name + ".q_scale_max", halves_of(std::vector<float>(groups.size(), 0.03f))}};
}

json exl2_config() {
  return {{"quant_method", "exl2"}, {"version", "0.3.2"}, {"bits", 4.65}, {"head_bits", 6}};
}

class Exl2Test : public ::testing::Test {
 protected:
  void write(const std::string& file, const StoredTensors& tensors) {
    write_stored(folder_ / file, tensors);
  }

  void write_config(const json& quantization = exl2_config()) {
    json config = json::parse(testing::small_config());
    config["quantization_config"] = quantization;
    testing::write_bytes(folder_ / "config.json", config.dump());
  }

  Checkpoint open(const StoredTensors& tensors) {
    write_config();
    write("output.safetensors", tensors);
    return Checkpoint::open(folder_.path());
  }

  std::string runs_as(const std::vector<Group>& groups) {
    return open(module_of("m", groups)).find_quantized_tensors("m")->runs_as();
  }

  void expect_error(const StoredTensors& tensors, std::initializer_list<std::string_view> parts) {
    const Error error = error_of([&] {
      const Checkpoint checkpoint = open(tensors);
      const auto found = checkpoint.find_quantized_tensors("m");
      checkpoint.read_quantized_floats(*found, 0, found->rows);
    });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"output.safetensors", "expected"})) << error.what();
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Exl2Test, RunsInTheFewestBitsThatAllGroupsHave) {
  EXPECT_EQ(runs_as({{3, 32}, {2, 64}}), "int3, groups of 32, sorted by q_invperm");
  EXPECT_EQ(runs_as({{4, 64}, {3, 64}, {2, 64}}), "int4, groups of 64, sorted by q_invperm");
  EXPECT_EQ(runs_as({{2, 128}, {2, 128}}), "int4, groups of 128, sorted by q_invperm");
  EXPECT_EQ(runs_as({{5, 128}, {4, 128}}), "int8, groups of 128, sorted by q_invperm");
  EXPECT_EQ(runs_as({{8, 32}, {6, 128}, {5, 20}}), "int8, groups of 32, sorted by q_invperm");
  // In one group there is no order.
  EXPECT_EQ(runs_as({{6, 96}}), "int8, groups of 128");
  EXPECT_EQ(runs_as({{2, 16}, {2, 16}, {2, 32}}),
            "f32: no kernel reads its groups, which are no multiple of 32 columns");
}

/// One kernel takes a gate and an up, whose orders are one, and whose widths and groups are not.
TEST_F(Exl2Test, RunsAGateAndAnUpInTheSmallerGroups) {
  StoredTensors tensors = module_of("m.gate_proj", {{8, 32}, {6, 128}});
  tensors.merge(module_of("m.up_proj", {{4, 160}}));
  const Checkpoint checkpoint = open(tensors);
  const auto gate = checkpoint.find_quantized_tensors("m.gate_proj");
  const auto up = checkpoint.find_quantized_tensors("m.up_proj");
  EXPECT_EQ(gate->runs_as(), "int8, groups of 32, sorted by q_invperm");
  EXPECT_EQ(up->runs_as(), "int4, groups of 32, sorted by q_invperm");
  EXPECT_EQ(up->file_bytes(), 20u * 32 * 4 + 160 * 4 + 4 + 16 + 2);
  EXPECT_EQ(up->memory_bytes(), 32u * 160 / 2 + 32 * 5 * 2 + 160 * 4);
}

/// The definition, value by value, from a stream of bits read one by one.
TEST_F(Exl2Test, ReadsEachWidth) {
  const std::vector<Group> groups = {{8, 32}, {6, 32}, {5, 32}, {4, 64}, {3, 32}, {2, 16}};
  const StoredTensors tensors = module_of("m", groups);
  const Checkpoint checkpoint = open(tensors);
  const auto found = checkpoint.find_quantized_tensors("m");
  ASSERT_EQ(found->cols, 208);
  const std::vector<float> values = checkpoint.read_quantized_floats(*found, 0, 32);
  const auto* words = reinterpret_cast<const uint32_t*>(tensors.at("m.q_weight").bytes.data());
  const float most = f16_to_float(float_to_f16(f16_to_float(float_to_f16(0.03f)) / 256));
  for (size_t row = 0; row < 32; ++row) {
    size_t line = 0, col = 0;
    for (const auto& [bits, cols] : groups) {
      const auto root = static_cast<float>(row % 8 + 1);
      const float scale = f16_to_float(float_to_f16(root * root * most));
      for (size_t i = 0; i < static_cast<size_t>(cols); ++i, ++col) {
        int number = 0;
        for (size_t bit = 0; bit < static_cast<size_t>(bits); ++bit) {
          const size_t at = i * static_cast<size_t>(bits) + bit;
          number |= static_cast<int>(words[(line + at / 32) * 32 + row] >> (at % 32) & 1) << bit;
        }
        const float expected = static_cast<float>(number - (1 << (bits - 1))) * scale;
        ASSERT_EQ(values[row * 208 + (207 - col)], expected) << row << " " << col;
      }
      line += static_cast<size_t>(cols * bits + 31) / 32;
    }
  }
  // Rows that begin within a word of scales.
  const std::vector<float> some = checkpoint.read_quantized_floats(*found, 5, 19);
  EXPECT_TRUE(std::ranges::equal(some, std::span(values).subspan(5UL * 208, 14UL * 208)));
}

TEST_F(Exl2Test, DropsOnlyWhatFillsUpRows) {
  const auto rows_of = [&](int64_t rows) {
    auto tensors = *open(module_of("m", {{4, 32}})).find_quantized_tensors("m");
    checkpoint::drop_filling(tensors, rows);
    return tensors.rows;
  };
  EXPECT_EQ(rows_of(32), 32);
  EXPECT_EQ(rows_of(1), 1);
  EXPECT_EQ(rows_of(31), 31);
  EXPECT_EQ(rows_of(0), 32);
  EXPECT_EQ(rows_of(33), 32);
  EXPECT_EQ(rows_of(-5), 32);
}

TEST_F(Exl2Test, RefusesTensorsThatDisagree) {
  const StoredTensors healthy = module_of("m", {{5, 32}, {4, 64}});
  const auto with = [&](const char* name, const StoredTensor& tensor) {
    StoredTensors tensors = healthy;
    tensors[name] = tensor;
    return tensors;
  };
  EXPECT_NO_THROW(open(healthy).find_quantized_tensors("m"));
  for (const char* part : {"q_invperm", "q_groups", "q_scale", "q_scale_max"}) {
    StoredTensors without = healthy;
    without.erase("m." + std::string(part));
    const Error error = error_of([&] { open(without).find_quantized_tensors("m"); });
    EXPECT_TRUE(is_one_line_with(error, {"'m." + std::string(part) + "' is missing"}))
        << error.what();
  }
  // Groups.
  expect_error(with("m.q_groups", groups_of({7, 0, 4, 5})),
               {"element 0 of tensor 'm.q_groups' is 7", "2, 3, 4, 5, 6 or 8 bits"});
  expect_error(with("m.q_groups", groups_of({5, 0, -4, 5})), {"element 2", "is -4"});
  expect_error(with("m.q_groups", groups_of({4, 0, 5, 4})),
               {"element 2 of tensor 'm.q_groups' is 5", "at most the 4 bits"});
  expect_error(with("m.q_groups", groups_of({5, 1, 4, 5})), {"element 1", "is 1", "expected 0"});
  expect_error(with("m.q_groups", groups_of({5, 0, 4, 0})), {"element 3", "is 0", "begins at 0"});
  expect_error(with("m.q_groups", groups_of({5, 0, 4, 4})), {"element 3", "whole columns"});
  expect_error(with("m.q_groups", groups_of({5, 0, 4, 13})),
               {"element 3 of tensor 'm.q_groups' is 13", "one of the 13 lines of 'm.q_weight'"});
  expect_error(with("m.q_groups", groups_of({5, 0, 3, 5})),
               {"'m.q_groups' has its last group of 3 bits begin at column 32 and line 5",
                "96 columns of 'm.q_invperm'", "13 lines of 'm.q_weight'"});
  expect_error(with("m.q_groups", groups_of({5, 0, 5, 10})), {"column 64 and line 10"});
  expect_error(with("m.q_groups", groups_of({5, 0, 4})), {"'m.q_groups' is I16 [3]"});
  expect_error(with("m.q_groups", groups_of({})), {"'m.q_groups' is I16 [0]"});
  expect_error(with("m.q_groups", groups_of({4, 0})),
               {"'m.q_scale' is I32 [2, 4]", "I32 [1, 4] from m.q_groups"});
  // Orders.
  std::vector<int32_t> order = backwards(96);
  order[7] = order[8];
  expect_error(with("m.q_invperm", order_of(order)),
               {"element 8 of tensor 'm.q_invperm' is 87 as another is", "below 96 once"});
  order[7] = 96;
  expect_error(with("m.q_invperm", order_of(order)), {"element 7", "is 96"});
  order[7] = -1;
  expect_error(with("m.q_invperm", order_of(order)), {"element 7", "is -1"});
  expect_error(with("m.q_invperm", order_of(backwards(104))), {"104 columns of 'm.q_invperm'"});
  expect_error(with("m.q_invperm", order_of(backwards(24))), {"24 columns of 'm.q_invperm'"});
  expect_error(with("m.q_invperm", stored(DType::kI16, {96}, std::vector<int16_t>(96))),
               {"'m.q_invperm' is I16 [96]", "I32 [columns]"});
  // Numbers and scales.
  expect_error(with("m.q_weight", stored(DType::kI32, {13, 24}, std::vector<uint32_t>(13UL * 24))),
               {"'m.q_weight' is I32 [13, 24]", "a multiple of 32"});
  expect_error(with("m.q_scale", stored(DType::kI32, {2, 3}, std::vector<uint32_t>(6))),
               {"'m.q_scale' is I32 [2, 3]", "I32 [2, 4]"});
  expect_error(with("m.q_scale_max", stored(DType::kF32, {2}, std::vector<float>(2))),
               {"'m.q_scale_max' is F32 [2]", "F16 [2]"});
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    expect_error(with("m.q_scale_max", halves_of({1, bad})),
                 {"element 1 of tensor 'm.q_scale_max' is not finite"});
  }
}

/// exllamav2 leaves the index of the model that it quantized, which names files that are not there.
TEST_F(Exl2Test, FindsTheWritersFiles) {
  const std::string index = R"({"weight_map": {"m.weight": "model-00001-of-00001.safetensors"}})";
  testing::write_bytes(folder_ / "model.safetensors.index.json", index);
  write_config();
  write("output-00001-of-00002.safetensors", module_of("m", {{4, 32}}));
  const Error error = error_of([&] { Checkpoint::open(folder_.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(
      error, {"1 weight files", "'output-00001-of-00002.safetensors'", "expected"}))
      << error.what();
  write("output-00002-of-00002.safetensors", module_of("n", {{4, 32}}));
  const Checkpoint two = Checkpoint::open(folder_.path());
  EXPECT_EQ(two.weight_files().size(), 2u);
  EXPECT_TRUE(two.find_quantized_tensors("m").has_value());
  EXPECT_TRUE(two.find_quantized_tensors("n").has_value());
  // Without any of them the folder is read as another's, whose index is wrong here.
  std::filesystem::remove(folder_ / "output-00001-of-00002.safetensors");
  std::filesystem::remove(folder_ / "output-00002-of-00002.safetensors");
  const Error stale = error_of([&] { Checkpoint::open(folder_.path()); });
  EXPECT_TRUE(is_one_line_with(stale, {"model-00001-of-00001.safetensors"})) << stale.what();
  write("model.safetensors", module_of("m", {{4, 32}}));
  EXPECT_TRUE(Checkpoint::open(folder_.path()).find_quantized_tensors("m").has_value());
}

TEST_F(Exl2Test, RefusesFieldsThatAreNoNumbers) {
  for (const auto& [field, value] : {std::pair<std::string, json>{"bits", "four"},
                                     {"bits", 17},
                                     {"head_bits", 1.5},
                                     {"head_bits", 99}}) {
    json config = exl2_config();
    config[field] = value;
    write_config(config);
    write("output.safetensors", module_of("m", {{4, 32}}));
    const Error error = error_of([&] { Checkpoint::open(folder_.path()); });
    EXPECT_TRUE(is_one_line_with(error, {"'" + field + "'", "expected"})) << error.what();
  }
}

}  // namespace
}  // namespace vitrine
