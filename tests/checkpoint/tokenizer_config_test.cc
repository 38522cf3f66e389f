// SPDX-License-Identifier: Apache-2.0
// tokenizer_config.json, from a folder's files and from GGUF metadata.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "folders.h"
#include "gguf_builder.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

class TokenizerConfigTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    write_bytes(folder_ / name, text);
  }
  Checkpoint folder_checkpoint() {
    write("config.json", "{}");
    write("model.safetensors", safetensors_bytes("{}", 0));
    return Checkpoint::open(folder_.path());
  }
  Checkpoint gguf(std::initializer_list<std::string> entries) {
    GgufFile file = small_gguf();
    file.entries.push_back(gguf_strings("tokenizer.ggml.tokens", {"a", "b", "<s>", "</s>"}));
    for (const std::string& entry : entries) file.entries.push_back(entry);
    write("model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  void expect_error(const Checkpoint& checkpoint, std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { checkpoint.tokenizer_config_json(); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  }
  TemporaryFolder folder_;
};

TEST_F(TokenizerConfigTest, Folder) {
  EXPECT_EQ(folder_checkpoint().tokenizer_config_json(), "");
  write("tokenizer_config.json", R"({"chat_template": "one", "eos_token": "<e>"})");
  const Checkpoint checkpoint = folder_checkpoint();
  EXPECT_EQ(checkpoint.tokenizer_config_name(), folder_ / "tokenizer_config.json");
  nlohmann::json config = nlohmann::json::parse(checkpoint.tokenizer_config_json());
  EXPECT_EQ(config["chat_template"], "one");

  write("special_tokens_map.json", R"({"eos_token": "<x>", "bos_token": {"content": "<s>"}})");
  write("chat_template.jinja", "two\n");
  EXPECT_EQ(checkpoint.tokenizer_config_name(), folder_ / "chat_template.jinja");
  config = nlohmann::json::parse(checkpoint.tokenizer_config_json());
  EXPECT_EQ(config["chat_template"], "two\n");
  EXPECT_EQ(config["eos_token"], "<e>");
  EXPECT_EQ(config["bos_token"]["content"], "<s>");

  write("chat_template.jinja", "\xff");
  expect_error(checkpoint, {"chat_template.jinja", "no UTF-8", "expected"});
  write("tokenizer_config.json", "[1]");
  expect_error(checkpoint, {"tokenizer_config.json", "expected"});
}

TEST_F(TokenizerConfigTest, Gguf) {
  const auto parsed = [&](std::initializer_list<std::string> entries) {
    return nlohmann::json::parse(gguf(entries).tokenizer_config_json());
  };
  EXPECT_EQ(gguf({}).tokenizer_config_json(), "");
  nlohmann::json config = parsed({gguf_text("tokenizer.chat_template", "one"),
                                  gguf_u32("tokenizer.ggml.bos_token_id", 2),
                                  gguf_u32("tokenizer.ggml.eos_token_id", 3),
                                  gguf_u32("tokenizer.ggml.padding_token_id", 0xffffffff)});
  EXPECT_EQ(config, (nlohmann::json{
                        {"chat_template", "one"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}}));
  config = parsed({gguf_text("tokenizer.chat_template", "one"),
                   gguf_text("tokenizer.chat_template.tool_use", "two"),
                   gguf_strings("tokenizer.chat_templates", {"tool_use"})});
  EXPECT_EQ(config["chat_template"],
            nlohmann::json::parse(R"([{"name": "default", "template": "one"},
                                      {"name": "tool_use", "template": "two"}])"));
  EXPECT_EQ(gguf({}).tokenizer_config_name(),
            folder_ / "model.gguf" + " (tokenizer.chat_template)");

  expect_error(gguf({gguf_u32("tokenizer.chat_template", 1)}),
               {"model.gguf", "'tokenizer.chat_template'", "expected a string"});
  expect_error(gguf({gguf_strings("tokenizer.chat_templates", {"tool_use"})}),
               {"'tokenizer.chat_template.tool_use' is missing"});
  expect_error(gguf({gguf_text("tokenizer.chat_template", "\xff")}),
               {"model.gguf", "key 'tokenizer.chat_template'", "no UTF-8"});
}

}  // namespace
}  // namespace vitrine
