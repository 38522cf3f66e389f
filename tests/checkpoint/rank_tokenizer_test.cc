// SPDX-License-Identifier: Apache-2.0
// tekken.json and tiktoken.model as a tokenizer.json, and what they must not say.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "folders.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::TemporaryFolder;
using testing::write_bytes;

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) {
      word = word << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : kDigits[word >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

/// All bytes, then "ab", "bc", "abc" and what stands behind in `more`.
std::vector<std::string> small_tokens(const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), {"ab", "bc", "abc"});
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

json small_tekken() {
  json vocab = json::array();
  for (const std::string& token : small_tokens({"never read"})) {
    vocab.push_back(
        {{"rank", vocab.size()}, {"token_bytes", base64(token)}, {"token_str", nullptr}});
  }
  return {{"config",
           {{"pattern", R"(\s+|\S+)"},
            {"num_vocab_tokens", 260},
            {"default_vocab_size", 263},
            {"default_num_special_tokens", 4},
            {"version", "v11"}}},
          {"vocab", vocab},
          {"special_tokens",
           {{{"rank", 0}, {"token_str", "<unk>"}, {"is_control", true}},
            {{"rank", 1}, {"token_str", "<s>"}, {"is_control", true}},
            {{"rank", 3}, {"token_str", "[INST]"}, {"is_control", true}}}}};
}

std::string small_tiktoken(const std::vector<std::string>& tokens = small_tokens()) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    text += base64(tokens[rank]) + " " + std::to_string(rank) + "\n";
  }
  return text;
}

json small_tokens_config() {
  return {{"tokenizer_class", "TikTokenTokenizer"},
          {"added_tokens_decoder",
           {{"259", {{"content", "[BOS]"}, {"special", true}}},
            {"262", {{"content", "<think>"}, {"special", false}}}}}};
}

class RankTokenizerTest : public ::testing::Test {
 protected:
  RankTokenizerTest() {
    write_bytes(folder_ / "config.json", "{}");
    write_bytes(folder_ / "model.safetensors", testing::safetensors_bytes("{}", 0));
  }
  std::string read() { return Checkpoint::open(folder_.path()).tokenizer_json(); }
  void expect_error(std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { read(); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"expected"})) << error.what();
  }
  /// Expects an error of a tekken.json in which a value stands at a place of `small_tekken()`.
  void expect_tekken_error(const char* pointer, const json& value,
                           std::initializer_list<std::string_view> parts) {
    json document = small_tekken();
    document[json::json_pointer(pointer)] = value;
    write_bytes(folder_ / "tekken.json", document.dump());
    expect_error(parts);
    expect_error({"tekken.json"});
  }
  void expect_tiktoken_error(const std::string& text, std::string_view part) {
    write_bytes(folder_ / "tiktoken.model", text);
    expect_error({"tiktoken.model", part});
  }
  TemporaryFolder folder_;
};

TEST_F(RankTokenizerTest, ReadsTekken) {
  write_bytes(folder_ / "tekken.json", small_tekken().dump());
  const json made = json::parse(read());
  EXPECT_EQ(made["model"]["vocab"].size(), 263U);
  EXPECT_EQ(made["model"]["vocab"]["[INST]"], 3);
  EXPECT_EQ(made["model"]["vocab"]["a"], 4 + 'a');
  EXPECT_EQ(made["model"]["vocab"]["abc"], 262);
  EXPECT_EQ(made["model"]["vocab"]["\u0120"], 4 + ' ');
  EXPECT_EQ(made["model"]["merges"].dump(), R"([["a","b"],["b","c"],["a","bc"],["ab","c"]])");
  EXPECT_EQ(made["model"]["merge_ranks"], (json{256, 257, 258, 258}));
  EXPECT_EQ(made["model"]["ignore_merges"], true);
  ASSERT_EQ(made["added_tokens"].size(), 4U);
  EXPECT_EQ(made["added_tokens"][2]["content"], "<SPECIAL_2>");
  EXPECT_EQ(made["added_tokens"][3]["content"], "[INST]");
  EXPECT_EQ(made["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  EXPECT_EQ(made["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], R"(\s+|\S+)");
  EXPECT_EQ(Checkpoint::open(folder_.path()).tokenizer_name(), folder_ / "tekken.json");
}

TEST_F(RankTokenizerTest, KnowsTheSpecialTokensOfFirstTekkens) {
  json document = small_tekken();
  document.erase("special_tokens");
  document["config"]["default_num_special_tokens"] = 22;
  document["config"]["default_vocab_size"] = 281;
  write_bytes(folder_ / "tekken.json", document.dump());
  const json made = json::parse(read());
  EXPECT_EQ(made["added_tokens"][3]["content"], "[INST]");
  EXPECT_EQ(made["added_tokens"][19]["content"], "[TOOL_CONTENT]");
  EXPECT_EQ(made["added_tokens"][21]["content"], "<SPECIAL_21>");
  EXPECT_EQ(made["model"]["vocab"]["abc"], 22 + 258);
}

TEST_F(RankTokenizerTest, ASpecialTokenTakesThePlaceOfOneWithItsText) {
  json document = small_tekken();
  document["special_tokens"][2]["token_str"] = "bc";
  write_bytes(folder_ / "tekken.json", document.dump());
  const json made = json::parse(read());
  EXPECT_EQ(made["model"]["vocab"]["bc"], 3);
  EXPECT_EQ(made["model"]["merges"].dump(), R"([["a","b"],["ab","c"]])");
  EXPECT_EQ(made["added_tokens"][3]["content"], "bc");
  expect_tekken_error("/special_tokens/2/token_str", "a", {"no token is the byte 97"});
}

TEST_F(RankTokenizerTest, ReadsTiktoken) {
  write_bytes(folder_ / "tiktoken.model", small_tiktoken());
  write_bytes(folder_ / "tokenizer_config.json", small_tokens_config().dump());
  const json made = json::parse(read());
  EXPECT_EQ(made["model"]["vocab"]["abc"], 258);
  ASSERT_EQ(made["added_tokens"].size(), 256U);
  EXPECT_EQ(made["added_tokens"][0]["content"], "[BOS]");
  EXPECT_EQ(made["added_tokens"][1]["content"], "<|reserved_token_260|>");
  EXPECT_EQ(made["added_tokens"][3]["content"], "<think>");
  EXPECT_EQ(made["added_tokens"][3]["special"], false);
  EXPECT_TRUE(made["post_processor"].is_null());
  EXPECT_NE(made["pre_tokenizer"].dump().find("Han"), std::string::npos);
}

TEST_F(RankTokenizerTest, ATokenizerJsonComesFirst) {
  write_bytes(folder_ / "tekken.json", small_tekken().dump());
  write_bytes(folder_ / "tokenizer.json", R"({"a": 1})");
  EXPECT_EQ(read(), R"({"a": 1})");
  EXPECT_EQ(Checkpoint::open(folder_.path()).tokenizer_name(), folder_ / "tokenizer.json");
}

TEST_F(RankTokenizerTest, NamesWhatIsWrongInTekken) {
  for (const json& value : {json(nullptr), json(3), json("x"), json::array()}) {
    expect_tekken_error("/config", value, {"'config'"});
  }
  for (const json& value : {json(nullptr), json(0), json(-1), json("8"), json(1e300)}) {
    expect_tekken_error("/config/default_vocab_size", value, {"config", "'default_vocab_size'"});
  }
  expect_tekken_error("/config/default_vocab_size", 265, {"261 tokens", "'vocab'"});
  expect_tekken_error("/config/default_num_special_tokens", 263, {"'default_num_special_tokens'"});
  expect_tekken_error("/config/pattern", nullptr, {"'pattern' is missing"});
  expect_tekken_error("/config/pattern", 5, {"'pattern' is 5"});
  expect_tekken_error("/vocab", "x", {"'vocab' is 'x'"});
  expect_tekken_error("/vocab/7", 3, {"vocab[7]", "no object"});
  expect_tekken_error("/vocab/7/rank", -1, {"vocab[7]", "'rank' is -1"});
  expect_tekken_error("/vocab/7/rank", 8, {"vocab[8]", "rank 8"});
  expect_tekken_error("/vocab/7/rank", 259, {"no token has the rank 7"});
  expect_tekken_error("/vocab/7/token_bytes", "*", {"vocab[7]", "'*'", "base64"});
  expect_tekken_error("/vocab/7/token_bytes", nullptr, {"vocab[7]", "base64"});
  expect_tekken_error("/vocab/257/token_bytes", base64("ab"), {"rank 257", "each token once"});
  expect_tekken_error("/vocab/97/token_bytes", base64("abcd"), {"no token is the byte 97"});
  expect_tekken_error("/vocab/97/token_bytes", base64(std::string(2000, 'x')), {"2000 bytes"});
  expect_tekken_error("/special_tokens", 3, {"'special_tokens' is 3"});
  expect_tekken_error("/special_tokens/1", 3, {"special_tokens[1]", "no object"});
  expect_tekken_error("/special_tokens/1/rank", 4, {"special_tokens[1]", "'rank' is 4"});
  expect_tekken_error("/special_tokens/1/rank", 0, {"special_tokens[1]", "'rank' is 0", "its own"});
  expect_tekken_error("/special_tokens/1/token_str", "", {"special_tokens[1]", "'token_str'"});
  write_bytes(folder_ / "tekken.json", "[]");
  expect_error({"tekken.json", "a list at the top"});
}

TEST_F(RankTokenizerTest, NamesWhatIsWrongInTiktoken) {
  const std::string config = folder_ / "tokenizer_config.json";
  write_bytes(config, small_tokens_config().dump());
  expect_tiktoken_error("", "is empty");
  expect_tiktoken_error("AA==", "line 1 is 'AA=='");
  expect_tiktoken_error("AA== x\n", "line 1");
  expect_tiktoken_error("AA== 0 0\n", "line 1");
  expect_tiktoken_error("AA== -1\n", "line 1");
  expect_tiktoken_error("AA== 99999999999999999999\n", "line 1");
  expect_tiktoken_error("AA== 0\n\nAQ== 0\n", "line 3 has the rank 0");
  expect_tiktoken_error("AA== 0\nA 1\n", "line 2 is 'A'");
  expect_tiktoken_error("AA== 1\n", "no token has the rank 0");
  expect_tiktoken_error("AA== 16777215\n", "line 1 is 'AA== 16777215'; expected");
  expect_tiktoken_error("AA== 0\n", "no token is the byte 1");
  write_bytes(folder_ / "tiktoken.model", small_tiktoken());
  const auto expect_config_error = [&](const json& patch,
                                       std::initializer_list<std::string_view> parts,
                                       ErrorKind kind = ErrorKind::kBadFile) {
    json changed = small_tokens_config();
    changed.merge_patch(patch);
    write_bytes(config, changed.dump());
    expect_error(parts, kind);
    expect_error({"tokenizer_config.json"}, kind);
  };
  expect_config_error({{"tokenizer_class", "QWenTokenizer"}}, {"'QWenTokenizer'"},
                      ErrorKind::kUnsupported);
  expect_config_error({{"added_tokens_decoder", nullptr}}, {"'added_tokens_decoder' is missing"});
  for (const char* id : {"258", "x", "-1", "259.5", "99999999999999999999"}) {
    expect_config_error({{"added_tokens_decoder", {{id, {{"content", "y"}}}}}},
                        {id, "an id of 259"});
  }
  expect_config_error({{"added_tokens_decoder", {{"260", 4}}}}, {"'260'"});
  expect_config_error({{"added_tokens_decoder", {{"260", {{"content", 4}}}}}}, {"'content' is 4"});
  std::filesystem::remove(config);
  expect_error({"tokenizer_config.json", "is not there"});
}

}  // namespace
}  // namespace vitrine
