// SPDX-License-Identifier: Apache-2.0
// Shards with their index, and fused expert tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "folders.h"

namespace vitrine {
namespace {

using testing::error_of;
using testing::is_one_line_with;
using testing::safetensors_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

std::string byte_tensor(const std::string& name) {
  return "{\"" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
}

class IndexTest : public ::testing::Test {
 protected:
  IndexTest() {
    write_bytes(folder_ / "config.json", testing::small_config());
    write_bytes(folder_ / "one.safetensors", safetensors_bytes(byte_tensor("a"), 4));
    write_bytes(folder_ / "two.safetensors", safetensors_bytes(byte_tensor("b"), 4));
  }
  Checkpoint open_with(const std::string& index) {
    write_bytes(folder_ / "model.safetensors.index.json", index);
    return Checkpoint::open(folder_.path());
  }
  void expect_error(const std::string& index, std::initializer_list<std::string_view> parts) {
    const Error error = error_of([&] { open_with(index); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"expected"})) << error.what();
  }
  TemporaryFolder folder_;
};

TEST_F(IndexTest, ReadsTensorsFromTheirShards) {
  const Checkpoint checkpoint =
      open_with(R"({"metadata":{},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_EQ(checkpoint.weight_files().size(), 2u);
  EXPECT_TRUE(checkpoint.weight_files()[1].ends_with("two.safetensors"));
  EXPECT_EQ(checkpoint.require("b").file_index, 1);
  std::vector<std::byte> bytes(4);
  checkpoint.read(checkpoint.require("b"), bytes);
  EXPECT_EQ(std::to_integer<int>(bytes[3]), 3);
}

TEST_F(IndexTest, RefusesAnIndexThatDoesNotFit) {
  expect_error(R"({"weight_map":{"a":"three.safetensors"}})", {"three.safetensors", "missing"});
  expect_error(R"({"weight_map":{"c":"one.safetensors"}})", {"'c'", "doesn't hold it"});
  expect_error(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})",
               {"'a' in 'two.safetensors'"});
  expect_error(R"({"weight_map":{"a":"one.safetensors","a":"one.safetensors"}})",
               {"'a' stands twice"});
  expect_error(R"({"weight_map":{"a":7}})", {"weight_map of 'a' is 7"});
  expect_error(R"({"weight_map":[]})", {"'weight_map' is a list"});
  expect_error(R"({"weight_map":{}})", {"'weight_map'"});
  expect_error(R"({})", {"'weight_map' is missing"});
  expect_error(R"([])", {"at the top"});
  expect_error(R"({"weight_map":{)", {"invalid JSON at byte"});
  write_bytes(folder_ / "two.safetensors", safetensors_bytes(byte_tensor("a"), 4));
  write_bytes(folder_ / "three.safetensors", safetensors_bytes(byte_tensor("c"), 4));
  expect_error(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})",
               {"holds the tensor 'a' that", "holds too"});
}

TEST_F(IndexTest, RefusesShardsOutsideOfTheFolder) {
  const TemporaryFolder outside;
  write_bytes(outside / "x.safetensors", safetensors_bytes(byte_tensor("a"), 4));
  for (const std::string& name :
       {std::string("../x.safetensors"), outside / "x.safetensors", std::string(".."),
        std::string(""), std::string("a/../one.safetensors"), std::string("one.bin"),
        std::string("..\\\\one.safetensors"), std::string("one.safetensors\\u0000.safetensors")}) {
    expect_error(R"({"weight_map":{"a":")" + name + "\"}}", {"weight_map names the file"});
  }
  std::filesystem::create_symlink(outside / "x.safetensors", folder_ / "link.safetensors");
  expect_error(R"({"weight_map":{"a":"link.safetensors"}})", {"link that leads out of the folder"});
  std::filesystem::create_symlink("one.safetensors", folder_ / "inner.safetensors");
  EXPECT_NO_THROW(open_with(R"({"weight_map":{"a":"inner.safetensors"}})"));
}

TEST_F(IndexTest, FollowsTheLinksOfAHuggingFaceCache) {
  const TemporaryFolder cache;
  const std::string snapshot = cache / "snapshots/0123";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(cache / "blobs");
  write_bytes(cache / "blobs/ab12", safetensors_bytes(byte_tensor("a"), 4));
  write_bytes(snapshot + "/config.json", testing::small_config());
  std::filesystem::create_symlink("../../blobs/ab12", snapshot + "/one.safetensors");
  write_bytes(snapshot + "/model.safetensors.index.json",
              R"({"weight_map":{"a":"one.safetensors"}})");
  EXPECT_EQ(Checkpoint::open(snapshot).tensors().size(), 1u);
}

class FusedTest : public ::testing::Test {
 protected:
  /// A checkpoint of F32 tensors whose elements count up from 0 in each.
  Checkpoint open_with(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors) {
    write_bytes(folder_ / "config.json", testing::small_config());
    SafetensorsWriter writer(folder_ / "model.safetensors");
    for (const auto& [name, shape] : tensors) writer.declare(name, DType::kF32, shape);
    writer.begin();
    for (const auto& [name, shape] : tensors) {
      int64_t count = 1;
      for (int64_t extent : shape) count *= extent;
      std::vector<float> values(static_cast<size_t>(count));
      std::iota(values.begin(), values.end(), 0.0f);
      writer.write(name, std::as_bytes(std::span(values)));
    }
    writer.finish();
    return Checkpoint::open(folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_F(FusedTest, SplitsExpertsIntoGateUpAndDown) {
  const std::pair<std::string, std::vector<std::string>> forms[] = {
      {"model.layers.3.block_sparse_moe.experts.",
       {"model.layers.3.block_sparse_moe.input_linear.weight",
        "model.layers.3.block_sparse_moe.output_linear.weight"}},
      {"model.layers.3.mlp.experts.",
       {"model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.experts.down_proj"}},
  };
  for (const auto& [prefix, names] : forms) {
    const Checkpoint checkpoint = open_with({{names[0], {3, 4, 5}}, {names[1], {3, 5, 2}}});
    EXPECT_EQ(checkpoint.tensors().size(), 9u);
    EXPECT_EQ(checkpoint.find(names[0]), nullptr);
    const TensorInfo& up = checkpoint.require(prefix + "2.up_proj.weight");
    EXPECT_EQ(up.shape, (std::vector<int64_t>{2, 5}));
    EXPECT_EQ(up.fused_from, names[0]);
    EXPECT_EQ(checkpoint.read_f32(prefix + "2.gate_proj.weight").front(), 40.0f);
    EXPECT_EQ(checkpoint.read_f32(up).front(), 50.0f);
    EXPECT_EQ(checkpoint.read_f32(up).back(), 59.0f);
    const auto down = checkpoint.read_f32(prefix + "1.down_proj.weight");
    EXPECT_EQ(down.size(), 10u);
    EXPECT_EQ(down.front(), 10.0f);
  }
}

// Gate and up take turns, and matrices stand transposed: [experts, in, 2 x out].
TEST_F(FusedTest, SplitsTheLayoutOfGptOss) {
  const std::string prefix = "model.layers.0.mlp.experts";
  const Checkpoint checkpoint = open_with({{prefix + ".gate_up_proj", {2, 4, 6}},
                                           {prefix + ".gate_up_proj_bias", {2, 6}},
                                           {prefix + ".down_proj", {2, 3, 4}},
                                           {prefix + ".down_proj_bias", {2, 4}}});
  EXPECT_EQ(checkpoint.tensors().size(), 12u);
  for (int expert = 0; expert < 2; ++expert) {
    const std::string own = prefix + "." + std::to_string(expert) + ".";
    const auto first = static_cast<float>(expert * 24);
    for (int turn = 0; turn < 2; ++turn) {
      const std::string module = own + (turn == 0 ? "gate_proj" : "up_proj");
      const TensorInfo& info = checkpoint.require(module + ".weight");
      EXPECT_EQ(info.shape, (std::vector<int64_t>{3, 4}));
      EXPECT_EQ(info.fused_from, prefix + ".gate_up_proj");
      EXPECT_TRUE(checkpoint.map(info).empty());
      const std::vector<float> matrix = checkpoint.read_f32(info);
      const std::vector<float> bias = checkpoint.read_f32(module + ".bias");
      ASSERT_EQ(bias.size(), 3u);
      for (int row = 0; row < 3; ++row) {
        EXPECT_EQ(bias[static_cast<size_t>(row)], static_cast<float>(expert * 6 + 2 * row + turn));
        for (int col = 0; col < 4; ++col) {
          EXPECT_EQ(matrix[static_cast<size_t>(row * 4 + col)],
                    first + static_cast<float>(col * 6 + 2 * row + turn));
        }
      }
      // Any part of it, of no whole element even.
      std::vector<std::byte> part(17);
      checkpoint.read(info, 7, part);
      EXPECT_EQ(std::memcmp(part.data(), reinterpret_cast<const char*>(matrix.data()) + 7, 17), 0);
    }
    const std::vector<float> down = checkpoint.read_f32(own + "down_proj.weight");
    for (size_t row = 0; row < 4; ++row) {
      for (size_t col = 0; col < 3; ++col) {
        EXPECT_EQ(down[row * 3 + col],
                  static_cast<float>(expert * 12 + static_cast<int>(col * 4 + row)));
      }
    }
    EXPECT_EQ(checkpoint.read_f32(own + "down_proj.bias"),
              (std::vector<float>{expert * 4.0f, expert * 4.0f + 1, expert * 4.0f + 2,
                                  expert * 4.0f + 3}));
  }
}

/// A published gpt_oss folder: blocks of MXFP4, their scales apart, biases in F32.
class Mxfp4FolderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kExperts = 3, kRows = 4, kBlocks = 2;

  void write(DType scale_type = DType::kU8, bool with_scales = true, int64_t scale_rows = kRows) {
    blocks_.clear();
    scales_.clear();
    write_bytes(folder_ / "config.json", testing::small_config());
    SafetensorsWriter writer(folder_ / "model.safetensors");
    writer.declare(prefix_ + ".gate_up_proj_blocks", DType::kU8, {kExperts, kRows, kBlocks, 16});
    if (with_scales) {
      writer.declare(prefix_ + ".gate_up_proj_scales", scale_type, {kExperts, scale_rows, kBlocks});
    }
    writer.declare(prefix_ + ".gate_up_proj_bias", DType::kF32, {kExperts, kRows});
    writer.begin();
    for (size_t i = 0; i < kExperts * kRows * kBlocks * 16; ++i) {
      blocks_.push_back(static_cast<std::byte>(i * 37 + i / 256 + 11));
    }
    for (size_t i = 0; i < kExperts * kRows * kBlocks; ++i) {
      scales_.push_back(static_cast<std::byte>(120 + i % 13));
    }
    writer.write(prefix_ + ".gate_up_proj_blocks", blocks_);
    if (with_scales) {
      std::vector<std::byte> all(static_cast<size_t>(kExperts * scale_rows * kBlocks) *
                                 dtype_size(scale_type));
      std::copy_n(scales_.begin(), std::min(all.size(), scales_.size()), all.begin());
      writer.write(prefix_ + ".gate_up_proj_scales", all);
    }
    const std::vector<float> bias(kExperts * kRows, 0.5f);
    writer.write(prefix_ + ".gate_up_proj_bias", std::as_bytes(std::span(bias)));
    writer.finish();
  }

  /// As transformers dequantizes: numbers in the order of the nibbles, times two to the scale.
  float value(int64_t expert, int64_t row, int64_t col) const {
    static constexpr float kValues[] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                        -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const auto block = static_cast<size_t>((expert * kRows + row) * kBlocks + col / 32);
    const auto byte =
        std::to_integer<unsigned>(blocks_[block * 16 + static_cast<size_t>(col % 32 / 2)]);
    const int exponent = std::to_integer<int>(scales_[block]) - 127;
    return std::ldexp(kValues[col % 2 == 0 ? byte & 15U : byte >> 4U], exponent);
  }

  TemporaryFolder folder_;
  const std::string prefix_ = "model.layers.0.mlp.experts";
  std::vector<std::byte> blocks_, scales_;
};

TEST_F(Mxfp4FolderTest, ReadsBlocksAsGgmlHasThem) {
  write();
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 12u);
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    for (int64_t turn = 0; turn < 2; ++turn) {
      const std::string module =
          prefix_ + "." + std::to_string(expert) + (turn == 0 ? ".gate_proj" : ".up_proj");
      const TensorInfo& info = checkpoint.require(module + ".weight");
      EXPECT_EQ(info.shape, (std::vector<int64_t>{kRows / 2, kBlocks * 32}));
      ASSERT_NE(info.block_format, nullptr);
      EXPECT_EQ(info.storage_name(), "MXFP4");
      EXPECT_EQ(info.stored_bytes, 2u * kBlocks * 17);
      const std::vector<float> matrix = checkpoint.read_f32(info);
      for (int64_t row = 0; row < kRows / 2; ++row) {
        for (int64_t col = 0; col < kBlocks * 32; ++col) {
          ASSERT_EQ(matrix[static_cast<size_t>(row * kBlocks * 32 + col)],
                    value(expert, 2 * row + turn, col));
        }
      }
      std::vector<std::byte> second(kBlocks * 17);
      checkpoint.read_blocks(info, 1, second);
      std::vector<float> numbers(kBlocks * 32);
      info.block_format->dequantize(second.data(), kBlocks, numbers.data());
      EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), matrix.begin() + kBlocks * 32));
    }
  }
}

TEST_F(Mxfp4FolderTest, RefusesScalesThatDoNotFit) {
  const auto refusal = [&] {
    const Error error = error_of([&] { Checkpoint::open(folder_.path()); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    return std::string(error.what());
  };
  write(DType::kU8, false);
  EXPECT_NE(refusal().find("have no scales"), std::string::npos);
  write(DType::kF32);
  EXPECT_NE(refusal().find("gate_up_proj_scales' are impossible; expected U8 [3, 4, 2]"),
            std::string::npos);
  write(DType::kU8, true, 2);
  EXPECT_NE(refusal().find("expected U8 [3, 4, 2]"), std::string::npos);
}

TEST_F(FusedTest, RefusesImpossibleShapesAndSecondNames) {
  const std::string fused = "model.layers.0.mlp.experts.gate_up_proj";
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 3, 4}, std::vector<int64_t>{int64_t{1} << 40, 0, 4},
        std::vector<int64_t>{70000, 2, 1}, std::vector<int64_t>{0, 2, 4}}) {
    const Error error = error_of([&] { open_with({{fused, shape}}); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", fused, "expected [experts"}))
        << error.what();
  }
  const Error error = error_of([&] {
    open_with({{fused, {2, 2, 4}}, {"model.layers.0.mlp.experts.1.up_proj.weight", {1, 4}}});
  });
  EXPECT_TRUE(is_one_line_with(error, {fused, "experts.1.up_proj.weight", "expected it once"}))
      << error.what();
}

}  // namespace
}  // namespace vitrine
