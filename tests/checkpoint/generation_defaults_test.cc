// SPDX-License-Identifier: Apache-2.0
// How a publisher expects a model to be sampled, from a folder and from GGUF metadata.
#include "vitrine/model.h"

#include <gtest/gtest.h>

#include "folders.h"
#include "gguf_builder.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

class GenerationDefaultsTest : public ::testing::Test {
 protected:
  GenerationDefaults folder(const std::string& json) {
    write_bytes(folder_ / "config.json", "{}");
    write_bytes(folder_ / "model.safetensors", safetensors_bytes("{}", 0));
    if (!json.empty()) write_bytes(folder_ / "generation_config.json", json);
    return generation_defaults(Checkpoint::open(folder_.path()));
  }
  TemporaryFolder folder_;
};

TEST_F(GenerationDefaultsTest, Folder) {
  EXPECT_TRUE(folder("").is_empty());
  EXPECT_TRUE(folder(R"({"eos_token_id": [1, 2], "do_sample": true, "top_k": null})").is_empty());
  const GenerationDefaults found = folder(R"({"temperature": 0.6, "top_k": 20, "top_p": 0.95})");
  EXPECT_EQ(found.temperature, 0.6);
  EXPECT_EQ(found.top_k, 20);
  EXPECT_EQ(found.top_p, 0.95);
  EXPECT_EQ(folder(R"({"top_k": -1})").top_k, 0);
}

TEST_F(GenerationDefaultsTest, BadValues) {
  const struct {
    const char *json, *found, *expected;
  } cases[] = {{R"({"temperature": "hot"})", "'temperature' is 'hot'", "number"},
               {R"({"temperature": -1})", "'temperature' is -1", "0"},
               {R"({"top_k": 2.5})", "'top_k' is 2.5", "integer"},
               {R"({"top_p": 0})", "'top_p' is 0", "above 0"},
               {R"({"top_p": 1.5})", "'top_p' is 1.5", "1"}};
  for (const auto& bad : cases) {
    const Error error = error_of([&] { folder(bad.json); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {"generation_config.json", bad.found, bad.expected}))
        << error.what();
  }
}

TEST_F(GenerationDefaultsTest, Gguf) {
  GgufFile file = small_gguf();
  file.entries.push_back(gguf_f32("general.sampling.temp", 0.7f));
  file.entries.push_back(gguf_f32("general.sampling.top_p", 0.8f));
  write_bytes(folder_ / "model.gguf", file.bytes());
  const GenerationDefaults found = generation_defaults(Checkpoint::open(folder_ / "model.gguf"));
  EXPECT_EQ(found.temperature, 0.7);
  EXPECT_EQ(found.top_p, 0.8);
  EXPECT_FALSE(found.top_k);
}

}  // namespace
}  // namespace vitrine
