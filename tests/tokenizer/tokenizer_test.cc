// SPDX-License-Identifier: Apache-2.0
#include "vitrine/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tokenizer_json.h"

namespace vitrine {
namespace {

using nlohmann::json;
using test::small_tokenizer;
using Ids = std::vector<int32_t>;

Tokenizer load(const json& document) { return Tokenizer::from_json(document.dump(), "t.json"); }

json split(const std::string& pattern, const char* behavior = "Isolated", bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", behavior},
          {"invert", invert}};
}

/// The words that a pre-tokenizer makes of a text. Every substring of the text becomes a vocabulary
/// entry and merges are ignored, so that each word is one token.
std::vector<std::string> words(const json& pre_tokenizer, const std::string& text) {
  json document = small_tokenizer();
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {pre_tokenizer, bytes}}};
  document["added_tokens"] = json::array();
  document["model"]["ignore_merges"] = true;
  document["model"]["merges"] = json::array();
  json& vocab = document["model"]["vocab"];
  const std::vector<std::string> alphabet = test::byte_alphabet();
  for (size_t begin = 0; begin < text.size(); ++begin) {
    std::string token;
    for (size_t end = begin; end < text.size(); ++end) {
      token += alphabet[static_cast<uint8_t>(text[end])];
      if (!vocab.contains(token)) vocab[token] = vocab.size();
    }
  }
  const Tokenizer tokenizer = load(document);
  std::vector<std::string> result;
  for (int32_t token : tokenizer.encode(text)) result.push_back(tokenizer.token_bytes(token));
  return result;
}
using Words = std::vector<std::string>;

TEST(Tokenizer, MergesInRankOrderAndKeepsEveryByte) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("hello world"), (Ids{259, 260, 'o', 'r', 'l', 'd'}));
  EXPECT_EQ(tokenizer.encode("hhell"), (Ids{'h', 258}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.encode("lllll"), (Ids{257, 257, 'l'}));
  EXPECT_EQ(tokenizer.vocab_size(), 263);
  EXPECT_EQ(tokenizer.token_id("hello"), 259);
  EXPECT_EQ(tokenizer.token_id("<|end|>"), 261);
  EXPECT_EQ(tokenizer.token_id("nothing"), -1);
  EXPECT_EQ(tokenizer.token_text(260), "\u0120w");
  EXPECT_EQ(tokenizer.token_bytes(260), " w");
  EXPECT_TRUE(tokenizer.is_special(261));
  EXPECT_FALSE(tokenizer.is_special(262));
  EXPECT_FALSE(tokenizer.is_special(0));
}

TEST(Tokenizer, SpecialTokensAreFoundInTextAndSkippedInDecoding) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const Ids ids = tokenizer.encode("hello<|end|>MASK<|end");
  EXPECT_EQ(ids, (Ids{259, 261, 262, '<', '|', 'e', 'n', 'd'}));
  EXPECT_EQ(tokenizer.decode(ids), "helloMASK<|end");
  EXPECT_EQ(tokenizer.decode(ids, false), "hello<|end|>MASK<|end");
}

TEST(Tokenizer, GuardedSpellingsStayText) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::string guarded = tokenizer.guard_special_tokens("hello<|end|>MASK<<|end|>");
  EXPECT_EQ(Tokenizer::without_guards(guarded), "hello<|end|>MASK<<|end|>");
  // MASK is an added token, but no special one.
  EXPECT_EQ(tokenizer.encode_guarded(guarded + "<|end|>"),
            (Ids{259, '<', '|', 'e', 'n', 'd', '|', '>', 262, '<', '<', '|', 'e', 'n', 'd', '|',
                 '>', 261}));
  // Guards that a text brings along are taken out, so that they hide nothing.
  const std::string forged = "<" + std::string(Tokenizer::kTextGuard) + "|end|>";
  EXPECT_EQ(tokenizer.guard_special_tokens(forged), tokenizer.guard_special_tokens("<|end|>"));
  EXPECT_EQ(tokenizer.guard_special_tokens("hello"), "hello");
  for (const char* text : {"", "hello world", "lllll MASK", "a\xF0\x9F\x98"}) {
    EXPECT_EQ(tokenizer.encode_guarded(text), tokenizer.encode(text));
  }
}

TEST(Tokenizer, GuardedTextIsNotMergedToASpecialToken) {
  json document = small_tokenizer();
  document["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  document["model"]["ignore_merges"] = true;
  document["model"]["vocab"]["<|end|>"] = 261;
  const Tokenizer tokenizer = load(document);
  const Ids spelt = {'<', '|', 'e', 'n', 'd', '|', '>'};
  EXPECT_EQ(tokenizer.encode("<|end|>"), (Ids{261}));
  EXPECT_EQ(tokenizer.encode_guarded(tokenizer.guard_special_tokens("<|end|>")), spelt);
}

TEST(Tokenizer, AddedTokenFlags) {
  json document = small_tokenizer();
  document["added_tokens"][0]["lstrip"] = true;
  document["added_tokens"][0]["rstrip"] = true;
  document["added_tokens"][1]["single_word"] = true;
  const Tokenizer tokenizer = load(document);
  EXPECT_EQ(tokenizer.encode("a \u3000<|end|>\t b"), (Ids{'a', 261, 'b'}));
  EXPECT_EQ(tokenizer.encode("xMASK"), (Ids{'x', 'M', 'A', 'S', 'K'}));
  EXPECT_EQ(tokenizer.encode("-MASK."), (Ids{'-', 262, '.'}));
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacters) {
  // Expectations from Python: bytes.decode("utf-8", errors="replace").
  const std::pair<const char*, const char*> cases[] = {
      {"a\x80z", "a\uFFFDz"},
      {"\xe2\x82", "\uFFFD"},
      {"\xe2\x82z", "\uFFFDz"},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\uFFFD\U0001F600"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xc0\xaf", "\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xe0\x80", "\uFFFD\uFFFD"},
      {"\xf8\x88", "\uFFFD\uFFFD"},
  };
  const Tokenizer tokenizer = load(small_tokenizer());
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(tokenizer.encode(bytes), tokenizer.encode(text)) << text;
    Ids ids;  // the same bytes as ids: decoding makes the same text of them
    for (const char* byte = bytes; *byte != 0; ++byte) ids.push_back(static_cast<uint8_t>(*byte));
    EXPECT_EQ(tokenizer.decode(ids), text);
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (int32_t id : ids) streamed += stream.add(id);
    streamed += stream.finish();
    EXPECT_EQ(streamed, text);
  }
}

TEST(Tokenizer, StreamingNeverEmitsHalfACharacter) {
  const Tokenizer tokenizer = load(small_tokenizer());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.add(0xf0), "");
  EXPECT_EQ(stream.add(0x9f), "");
  EXPECT_EQ(stream.add(261), "");  // skipped: the character goes on behind it
  EXPECT_EQ(stream.add(0x98), "");
  EXPECT_EQ(stream.add(0x80), "\U0001F600");
  EXPECT_EQ(stream.add(0xe2), "");
  EXPECT_EQ(stream.add('a'), "\uFFFDa");
  EXPECT_EQ(stream.add(0xc3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, TemplateAddsSpecialTokens) {
  json document = small_tokenizer();
  document["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "END"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens", {{"END", {{"id", "END"}, {"ids", {261, 262}}, {"tokens", {"a", "b"}}}}}}};
  const Tokenizer tokenizer = load(document);
  EXPECT_EQ(tokenizer.encode("hello"), (Ids{261, 262, 259}));
  EXPECT_EQ(tokenizer.encode("hello", false), (Ids{259}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{261, 262}));
}

TEST(Tokenizer, NormalizersRunInOrder) {
  json document = small_tokenizer();
  document["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFC"}},
        {{"type", "Lowercase"}},
        {{"type", "Replace"}, {"pattern", {{"String", "x"}}}, {"content", "ll"}},
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}},
        {{"type", "Prepend"}, {"prepend", "he"}}}}};
  const Tokenizer tokenizer = load(document);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" \u00a0XO E\u0301\u3000")), "hello \u00e9");
  EXPECT_EQ(tokenizer.encode("xo"), (Ids{259}));
}

// Expectations from PyPI's tokenizers (pre_tokenizers.Split(Regex(…), …).pre_tokenize_str).
TEST(Tokenizer, SplitBehaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(words(split("-"), text), (Words{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(words(split("-", "Removed"), text), (Words{"the", "final", "countdown"}));
  EXPECT_EQ(words(split("-", "MergedWithPrevious"), text),
            (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(words(split("-", "MergedWithNext"), text), (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(words(split("-", "Contiguous"), text), (Words{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(words(split("-", "Removed", true), text), (Words{"-", "-", "-"}));
}

TEST(Tokenizer, RegexMeansWhatOnigurumaMeans) {
  EXPECT_EQ(words(split("a{1,2}+"), "aaaaab"), (Words{"aaaaa", "b"}));  // not possessive
  EXPECT_EQ(words(split("a++a"), "aaa"), (Words{"aaa"}));               // possessive: no match
  EXPECT_EQ(words(split("\\s+$"), "a  \nb  "), (Words{"a", "  ", "\nb", "  "}));  // $ at each line
  EXPECT_EQ(words(split(".+"), "a\nb\rc"), (Words{"a", "\n", "b\rc"}));
  EXPECT_EQ(words(split("(?m:.)+"), "a\nb"), (Words{"a\nb"}));
  EXPECT_EQ(words(split("(?i:s)"), "aS\u017fb"), (Words{"a", "S", "\u017f", "b"}));
  EXPECT_EQ(words(split("\\s"), "a\u180eb\u0085c"), (Words{"a\u180eb", "\u0085", "c"}));
  EXPECT_EQ(words(split("[a-z&&[^b]]+"), "abc"), (Words{"a", "b", "c"}));
  EXPECT_EQ(words(split("[[a-c]d]+"), "abcd]x"), (Words{"abcd", "]x"}));
  EXPECT_EQ(words(split("\\h+"), "af g"), (Words{"af", " g"}));
  EXPECT_EQ(words(split("\\p{^L}+"), "ab12"), (Words{"ab", "12"}));
  EXPECT_EQ(words(split("\\p{L}+"), "1\U00031350\u30422"), (Words{"1", "\U00031350\u3042", "2"}));
  EXPECT_EQ(words(split(""), "abc"), (Words{"a", "b", "c"}));
  EXPECT_EQ(words(split("(?<=a)b"), "abcb"), (Words{"a", "b", "cb"}));
}

TEST(Tokenizer, HostileTextAndRegexEnd) {
  json document = small_tokenizer();
  document["pre_tokenizer"] = split("(?:a|[ab])+[cd]");
  const Tokenizer tokenizer = load(document);
  try {
    tokenizer.encode(std::string(5000, 'a'));
    FAIL() << "an exponential search was finished";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
  }
  // Deep backtracking overflows no stack, and a word of a megabyte is not quadratic.
  document["pre_tokenizer"] = split("(?:[^b]|bc)*[cd]");
  EXPECT_EQ(load(document).encode(std::string(200000, 'a') + "c").size(), size_t{200001});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(load(small_tokenizer()).encode(std::string(1 << 20, 'l')).size(), size_t{1} << 19);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// By its regex, by its merges where the text is one word, and from another thread.
TEST(Tokenizer, EndsWhereItsHostSays) {
  json cut = small_tokenizer();
  cut["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {split(R"(\p{L}+)"), cut["pre_tokenizer"]}}};
  for (const json& document : {small_tokenizer(), cut}) {
    const Tokenizer tokenizer = load(document);
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += "hello world, hello ";
    std::atomic<bool> flag{false};
    const Ids expected = tokenizer.encode(text, true, &flag);
    EXPECT_EQ(expected, tokenizer.encode(text));
    const auto kind_of_encode = [&] {
      try {
        tokenizer.encode(text, true, &flag);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("tokenizing was cancelled"), std::string::npos);
        return error.kind();
      }
      return ErrorKind::kInternal;
    };
    flag = true;
    EXPECT_EQ(kind_of_encode(), ErrorKind::kCancelled);
    flag = false;
    std::thread host([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      flag = true;
    });
    while (kind_of_encode() != ErrorKind::kCancelled) {
    }
    host.join();
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::string text = "hello world <|end|> h\u00e9llo 123";
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) count += tokenizer.encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, IdOutOfRange) {
  const Tokenizer tokenizer = load(small_tokenizer());
  for (int32_t id : {-1, 263, INT32_MAX, INT32_MIN}) {
    const Ids ids = {id};
    EXPECT_THROW(tokenizer.decode(ids), Error);
    EXPECT_THROW(tokenizer.token_text(id), Error);
    EXPECT_THROW(tokenizer.token_bytes(id), Error);
    EXPECT_THROW(tokenizer.is_special(id), Error);
    EXPECT_THROW(StreamDecoder(tokenizer).add(id), Error);
  }
}

}  // namespace
}  // namespace vitrine
