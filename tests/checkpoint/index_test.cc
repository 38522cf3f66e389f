// SPDX-License-Identifier: Apache-2.0
// Shards with their index, and fused expert tensors.
#include <gtest/gtest.h>

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

TEST_F(FusedTest, LeavesTheInterleavedLayoutOfGptOssAlone) {
  const Checkpoint checkpoint = open_with({{"model.layers.0.mlp.experts.gate_up_proj", {2, 4, 6}},
                                           {"model.layers.0.mlp.experts.gate_up_proj_bias", {2, 6}},
                                           {"model.layers.0.mlp.experts.down_proj", {2, 3, 4}}});
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
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
