// SPDX-License-Identifier: Apache-2.0
// What a broken tokenizer.json is told: one line with the file, the field, what was found and what
// was expected.
#include <gtest/gtest.h>

#include <random>

#include "tokenizer_json.h"
#include "vitrine/tokenizer.h"

namespace vitrine {
namespace {

using nlohmann::json;
using test::small_tokenizer;

void expect_error(const std::string& text, ErrorKind kind, const std::vector<std::string>& parts) {
  try {
    Tokenizer::from_json(text, "dir/tokenizer.json");
    ADD_FAILURE() << "loaded, expected an error with " << parts.front();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.find("dir/tokenizer.json: "), 0u) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
    }
  }
}

/// The small tokenizer with one field (a JSON pointer) replaced.
std::string with(const char* pointer, const json& value) {
  json document = small_tokenizer();
  document[json::json_pointer(pointer)] = value;
  return document.dump();
}

TEST(BadTokenizerFile, NamesTheField) {
  const auto bad = ErrorKind::kBadFile;
  expect_error("", bad, {"not valid JSON"});
  expect_error("[]", bad, {"the document", "array", "expected an object"});
  expect_error("{}", bad, {"'model'", "missing"});
  const std::string whole = small_tokenizer().dump();
  for (size_t length : {size_t{1}, whole.size() / 3, whole.size() / 2, whole.size() - 1}) {
    expect_error(whole.substr(0, length), bad, {"not valid JSON"});
  }
  expect_error(std::string(100000, '['), bad, {"nested deeper than 64"});
  expect_error(std::string(1, '"') + "\xff\"", bad, {"not valid JSON"});
  expect_error(with("/version", "2.0"), bad, {"'version'", "'2.0'", "expected '1.0'"});
  expect_error(with("/model/vocab", json::array({"a"})), bad, {"'model.vocab'", "array", "object"});
  expect_error(with("/model/vocab", json::object()), bad, {"'model.vocab'", "empty"});
  expect_error(with("/model/vocab/he", -1), bad, {"'model.vocab'", "'he'", "'-1'"});
  expect_error(with("/model/vocab/he", 1.5), bad, {"'model.vocab'", "'he'", "'1.5'"});
  expect_error(with("/model/vocab/he", "1"), bad, {"'model.vocab'", "'he'"});
  expect_error(with("/model/vocab/he", 99999999999), bad,
               {"'model.vocab'", "99999999999", "4194303"});
  expect_error(with("/model/vocab/he", 257), bad, {"'model.vocab'", "257", "'he'", "'ll'"});
  expect_error(with("/model/merges/0", {"h", "zz"}), bad, {"'model.merges'", "merge 0", "'zz'"});
  expect_error(with("/model/merges/3", "he h"), bad, {"'model.merges'", "merge 3", "'heh'"});
  expect_error(with("/model/merges/1", "l"), bad, {"merge 1", "one space"});
  expect_error(with("/model/merges/1", {"a", "b", "c"}), bad, {"merge 1", "[\"a\", \"b\"]"});
  expect_error(with("/model/merges/1", 7), bad, {"merge 1", "'7'"});
  expect_error(with("/model/merges", "a b"), bad, {"'model.merges'", "string", "array"});
  expect_error(with("/model/fuse_unk", 1), bad, {"'model.fuse_unk'", "true or false"});
  expect_error(with("/model/unk_token", 5), bad, {"'model.unk_token'", "a string"});
  expect_error(with("/added_tokens/0/id", -1), bad, {"'added_tokens[0].id'", "-1", "0 to 4194303"});
  expect_error(with("/added_tokens/0/id", 300), bad, {"'added_tokens[0].id'", "300", "261"});
  expect_error(with("/added_tokens/1/id", 261), bad, {"'added_tokens[1]'", "261", "once"});
  expect_error(with("/added_tokens/1/content", "<|end|>"), bad, {"'added_tokens[1]'", "once"});
  expect_error(with("/added_tokens/0/content", nullptr), bad, {"'added_tokens[0].content'"});
  expect_error(with("/added_tokens", 3), bad, {"'added_tokens'", "number 3", "an array"});
  expect_error(with("/pre_tokenizer/add_prefix_space", "no\nyes"), bad, {"'no yes'"});
  expect_error(with("/pre_tokenizer", json::object()), bad, {"'pre_tokenizer.type'", "missing"});
  expect_error(with("/decoder", "ByteLevel"), bad, {"'decoder'", "an object"});
}

TEST(BadTokenizerFile, NamesTheRegex) {
  const auto pattern = [](const std::string& regex) {
    return with("/pre_tokenizer", {{"type", "Split"},
                                   {"pattern", {{"Regex", regex}}},
                                   {"behavior", "Isolated"},
                                   {"invert", false}});
  };
  for (const char* regex : {"(", ")", "[a", "[]", "a)", "*a", "[b-a]", "\\", "(?<n", "\\p{L",
                            "\\x{", "\\x{d800}", "[a-\\"}) {
    expect_error(pattern(regex), ErrorKind::kBadFile, {"'pre_tokenizer.pattern'", "regex"});
  }
  for (const char* regex :
       {"(a)\\1", "\\p{Klingon}", "(?i:ss)", "(?i:\u00e9)", "(?~a)", "\\G", "\\X", "(?i:\\w)",
        "[[:alpha:]]", "a(?i)b", "(*FAIL)", "a{99999}", "\\xff"}) {
    expect_error(pattern(regex), ErrorKind::kUnsupported, {"'pre_tokenizer.pattern'", "regex"});
  }
  expect_error(pattern(std::string(5000, '(')), ErrorKind::kUnsupported, {"nested deeper"});
  expect_error(pattern(std::string(70000, 'a')), ErrorKind::kUnsupported, {"longer than"});
}

TEST(BadTokenizerFile, NamesWhatIsNotSupported) {
  const auto kind = ErrorKind::kUnsupported;
  expect_error(with("/model/type", "Unigram"), kind, {"'model.type'", "'Unigram'"});
  expect_error(with("/model/dropout", 0.1), kind, {"'model.dropout'"});
  expect_error(with("/model/end_of_word_suffix", "</w>"), kind, {"end_of_word_suffix", "'</w>'"});
  expect_error(with("/model/continuing_subword_prefix", "##"), kind, {"'##'"});
  expect_error(with("/normalizer", {{"type", "Precompiled"}}), kind, {"'Precompiled'"});
  expect_error(with("/pre_tokenizer", {{"type", "UnicodeScripts"}}), kind, {"'UnicodeScripts'"});
  expect_error(with("/decoder", {{"type", "WordPiece"}}), kind, {"'WordPiece'"});
  expect_error(with("/post_processor", {{"type", "BertProcessing"}}), kind, {"'BertProcessing'"});
}

TEST(BadTokenizerFile, Metaspace) {
  const auto kind = ErrorKind::kBadFile;
  json metaspace = {{"type", "Metaspace"}};
  for (const char* place : {"/pre_tokenizer", "/decoder"}) {
    expect_error(with(place, metaspace), kind, {"replacement"});
    metaspace["replacement"] = "ab";
    expect_error(with(place, metaspace), kind, {"replacement", "one character"});
    metaspace["replacement"] = "\u2581";
    metaspace["prepend_scheme"] = "sometimes";
    expect_error(with(place, metaspace), kind, {"prepend_scheme", "'sometimes'"});
    metaspace["prepend_scheme"] = "first";
    metaspace["add_prefix_space"] = false;
    expect_error(with(place, metaspace), kind, {"add_prefix_space", "'never'"});
    metaspace = {{"type", "Metaspace"}};
  }
}

TEST(BadTokenizerFile, MergeRanks) {
  const auto kind = ErrorKind::kBadFile;
  const size_t count = test::small_tokenizer()["model"]["merges"].size();
  EXPECT_NO_THROW(Tokenizer::from_json(with("/model/merge_ranks", json(count, 0)), "t"));
  expect_error(with("/model/merge_ranks", json(count + 1, 0)), kind, {"merge_ranks"});
  expect_error(with("/model/merge_ranks", json(count, -1)), kind, {"merge_ranks", "-1"});
  expect_error(with("/model/merge_ranks", "x"), kind, {"merge_ranks"});
}

TEST(BadTokenizerFile, UnusedIds) {
  const auto kind = ErrorKind::kBadFile;
  const auto tokenizer = Tokenizer::from_json(with("/model/unused_ids", {258, 258}), "t");
  EXPECT_EQ(tokenizer.encode("hell hello"), (std::vector<int32_t>{256, 257, 32, 259}));
  EXPECT_EQ(tokenizer.token_id("hell"), -1);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{258}), "");
  EXPECT_NO_THROW(Tokenizer::from_json(with("/model/unused_ids", json(200000, 258)), "t"));
  // 104: "h" alone.
  for (const json& ids : {json{-1}, json{261}, json{"he"}, json(258), json{258, 104}}) {
    expect_error(with("/model/unused_ids", ids), kind, {"unused_ids"});
  }
}

TEST(BadTokenizerFile, TemplateIdsAreChecked) {
  json processor = {{"type", "TemplateProcessing"},
                    {"single", {{{"SpecialToken", {{"id", "E"}, {"type_id", 0}}}}}},
                    {"special_tokens", {{"E", {{"ids", {263}}}}}}};
  expect_error(with("/post_processor", processor), ErrorKind::kBadFile,
               {"ids[0]", "263", "0 to 262"});
  processor["special_tokens"] = json::object();
  expect_error(with("/post_processor", processor), ErrorKind::kBadFile, {"special_tokens.E"});
  processor["single"] = {{{"Sequence", {{"id", "B"}}}}};
  expect_error(with("/post_processor", processor), ErrorKind::kBadFile,
               {"single[0].Sequence.id", "'B'"});
}

TEST(BadTokenizerFile, MissingFileIsTheUsersMistake) {
  try {
    Tokenizer::from_file("no/such/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(error.is_user_error()) << error.what();
  }
}

TEST(BadTokenizerFile, UnknownTokenIsMissedOnlyWhenNeeded) {
  json document = small_tokenizer();
  document["model"]["unk_token"] = "<unk>";
  document["pre_tokenizer"] = nullptr;
  const Tokenizer tokenizer = Tokenizer::from_json(document.dump(), "t.json");
  EXPECT_EQ(tokenizer.encode("hello"), std::vector<int32_t>{259});
  EXPECT_THROW(tokenizer.encode("\u4e2d"), Error);
}

// ---- mutation --------------------------------------------------------------------------------

/// A tokenizer.json with something of every part, small enough for thousands of mutations.
json rich_tokenizer() {
  json document = small_tokenizer();
  document["model"]["unk_token"] = "h";
  document["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFC"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+x"}}}, {"content", "y"}},
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}},
        {{"type", "Prepend"}, {"prepend", "_"}}}}};
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern",
          {{"Regex",
            "(?i:'s|'ll)|[^\\r\\n\\p{L}]?\\p{L}++|\\p{N}{1,3}| ?[^\\s&&[^a]]+|\\s+$|(?<=\\w)\\S"}}},
         {"behavior", "MergedWithNext"},
         {"invert", false}},
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}}};
  document["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "E"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"special_tokens", {{"E", {{"id", "E"}, {"ids", {261}}, {"tokens", {"E"}}}}}}}}}};
  document["decoder"] = {{"type", "Sequence"},
                         {"decoders",
                          {{{"type", "Replace"}, {"pattern", {{"String", "q"}}}, {"content", "p"}},
                           {{"type", "ByteLevel"}},
                           {{"type", "Fuse"}},
                           {{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 1}}}}};
  return document;
}

/// Success or vitrine::Error, nothing else; what loads must also work.
void load_and_use(const std::string& text) {
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(text, "mutated.json");
    const std::vector<int32_t> ids = tokenizer.encode("hello w\u00f6rld's 123 <|end|> x \xff\n");
    const std::string decoded = tokenizer.decode(ids, false);
    StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (int32_t id : ids) streamed += stream.add(id);
    EXPECT_EQ(streamed + stream.finish(), decoded);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(MutatedTokenizerFile, BytesLoadOrFailCleanly) {
  std::mt19937 random(20240607);
  const std::string base = rich_tokenizer().dump();
  const std::string inserts = "{}[]\",:\\0-9.eE+nulltruefalse\xff\x80 \n()*?|^$";
  for (int i = 0; i < 3000; ++i) {
    std::string text = base;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      const size_t length = 1 + random() % 12;
      switch (random() % 5) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.insert(at, 1, inserts[random() % inserts.size()]); break;
        case 2: text.erase(at, length); break;
        case 3: text.insert(at, text.substr(random() % text.size(), length)); break;
        default: text[at] = inserts[random() % inserts.size()]; break;
      }
    }
    load_and_use(text);
  }
}

/// Every value of a document, as JSON pointers.
void collect(const json& value, const std::string& pointer, std::vector<std::string>& pointers) {
  pointers.push_back(pointer);
  if (value.is_object()) {
    for (auto item = value.begin(); item != value.end(); ++item) {
      if (item.key().find_first_of("/~") == std::string::npos) {
        collect(item.value(), pointer + "/" + item.key(), pointers);
      }
    }
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      collect(value[i], pointer + "/" + std::to_string(i), pointers);
    }
  }
}

TEST(MutatedTokenizerFile, ValuesLoadOrFailCleanly) {
  std::mt19937 random(7);
  const json base = rich_tokenizer();
  std::vector<std::string> pointers;
  for (const char* part :
       {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    collect(base[part], std::string("/") + part, pointers);
  }
  collect(base["model"]["merges"], "/model/merges", pointers);
  for (const char* part : {"type", "unk_token", "fuse_unk", "vocab/h", "vocab/hello", "vocab"}) {
    pointers.push_back(std::string("/model/") + part);
  }
  const std::string regex_text = "ab()[]{}*+?|^$\\.-&pPLNdwsbxi:<=!>,13";
  for (int i = 0; i < 3000; ++i) {
    json document = base;
    json& target = document[json::json_pointer(pointers[random() % pointers.size()])];
    std::string text;
    switch (random() % 9) {
      case 0: target = nullptr; break;
      case 1: target = static_cast<int64_t>(random()) - (int64_t{1} << 31); break;
      case 2: target = random() % 300; break;
      case 3: target = (random() % 2) == 0; break;
      case 4: target = json::array({target, target}); break;
      case 5: target = json{{"type", target}}; break;
      case 6: target = base[json::json_pointer(pointers[random() % pointers.size()])]; break;
      default:
        text = target.is_string() ? target.get<std::string>() : "";
        for (size_t edits = 1 + random() % 8; edits > 0; --edits) {
          text.insert(random() % (text.size() + 1), 1, regex_text[random() % regex_text.size()]);
        }
        target = text;
    }
    load_and_use(document.dump(-1, ' ', false, json::error_handler_t::replace));
  }
}

}  // namespace
}  // namespace vitrine
