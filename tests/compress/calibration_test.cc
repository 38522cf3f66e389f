// SPDX-License-Identifier: Apache-2.0
// Calibrations: what is taken of a corpus, what is replaced in it, what is refused.
#include "vitrine/calibration.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "compress/scrubber.h"
#include "compress/separation.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/test_data.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::TemporaryFolder;
using testing::write_bytes;

Tokenizer shipped_tokenizer() {
  return Tokenizer::from_file(testing_support::shipped_model() + "/tokenizer.json");
}

CalibrationSource source(const std::string& name, std::vector<std::string> documents) {
  return {name, sha256_of_text(name), std::move(documents)};
}

/// Sentences with a number each, so that none is another's.
std::string text_of(int sentences, const std::string& what) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += "The " + std::to_string(i * 7919 % 1000) + "th " + what + " came at hour " +
            std::to_string(i * 104729 % 997) + " and left. ";
  }
  return text;
}

TEST(Scrubber, FindsWhatWasPlantedAndLeavesWhatOnlyLooksLikeIt) {
  struct Planted {
    const char *text, *kind;
  };
  const std::vector<Planted> planted = {
      {"write to jane.doe+news@mail.example.co.uk today", "email"},
      {"a_b-c@x.io", "email"},
      {"IBAN DE89 3704 0044 0532 0130 00 please", "iban"},
      {"pay GB82WEST12345698765432 now", "iban"},
      {"FR1420041010050500013M02606", "iban"},
      {"card 4111 1111 1111 1111 expires", "card"},
      {"5500-0000-0000-0004", "card"},
      {"378282246310005", "card"},
      {"from 192.168.17.254 and on", "ip"},
      {"2001:0db8:85a3:0000:0000:8a2e:0370:7334", "ip"},
      {"call +49 30 901820 or", "phone"},
      {"call (415) 555-2671 now", "phone"},
      {"+1 415 555 2671", "phone"},
      {"AKIAIOSFODNN7EXAMPLE42", "key"},
      {"token ghp_16C7e42F292c6912E7710c838347Ae178B4a!", "key"},
      {"sk-proj-4fJ8aZ0pQ9vT2mX7cL1sR5wY3", "key"},
  };
  for (const Planted& one : planted) {
    SCOPED_TRACE(one.text);
    compress::Scrubber scrubber;
    const std::string found = scrubber.scrub(one.text);
    std::string upper(one.kind);
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    EXPECT_NE(found.find("<" + upper + ">"), std::string::npos) << found;
    for (const compress::ScrubCount& count : scrubber.counts()) {
      EXPECT_EQ(count.found, count.kind == one.kind ? 1 : 0) << count.kind << ": " << found;
    }
  }
  for (const char* plain : {
           "version 1.2.3 of 2024-10-11, pages 100-200",
           "4111 1111 1111 1112 has another checksum",
           "DE89 3704 0044 0532 0131 01 has one, too",
           "the_function_with_a_very_long_name_for_a_test(argument)",
           "https://example.org/a/long/path/of/words/and/more/words",
           "pi is 3.14159265358979323846264338327950288",
           "999.1.1.1 and 1.2.3.4.5 are no addresses",
           "a@b and @home, 12:30:45, 1+1=2, (2019)",
           "in 1984 and 1985 and 1986 and 1987 there were",
       }) {
    SCOPED_TRACE(plain);
    compress::Scrubber scrubber;
    EXPECT_EQ(scrubber.scrub(plain), plain);
  }
}

TEST(Separation, FindsSharedRunsBySpanAndLikeTexts) {
  compress::Separation separation;
  std::vector<int32_t> evaluation(400), other(300);
  for (int32_t i = 0; i < 400; ++i) evaluation[static_cast<size_t>(i)] = i * 31 % 1009;
  for (int32_t i = 0; i < 300; ++i) other[static_cast<size_t>(i)] = i * 17 % 991 + 2000;
  separation.add_evaluation(evaluation);
  EXPECT_EQ(separation.shared_tokens(other), 0);
  EXPECT_LT(separation.largest_likeness(other), 0.05);
  // 20 tokens in the middle, then 12, which are too few, then 13.
  std::copy_n(evaluation.begin() + 100, 20, other.begin() + 50);
  std::copy_n(evaluation.begin() + 7, 12, other.begin() + 150);
  std::copy_n(evaluation.begin() + 300, 13, other.begin() + 287);
  EXPECT_EQ(separation.shared_tokens(other), 33);
  EXPECT_EQ(separation.shared_tokens(evaluation), 400);
  EXPECT_GT(separation.largest_likeness(evaluation), 0.9);
  EXPECT_EQ(separation.shared_tokens({}), 0);
  EXPECT_EQ(separation.largest_likeness({}), 0);
}

TEST(Calibration, TakesFromAllSourcesAndFromAllOverThem) {
  const Tokenizer tokenizer = shipped_tokenizer();
  CalibrationRequest request;
  request.sources = {
      source("large.txt", {text_of(400, "train")}),
      source("small.txt", {text_of(8, "ship"), "too short", text_of(9, "plane")}),
      source("code.py", {"\ndef f(x):\n    return {\"a\": x}\n" + text_of(30, "bug")})};
  request.tokens = 1000;
  request.window = 64;
  request.context = 8192;
  const CalibrationTexts calibration = make_calibration(tokenizer, "abc", request);
  size_t tokens = 0;
  std::set<std::vector<int32_t>> different(calibration.texts.begin(), calibration.texts.end());
  EXPECT_EQ(different.size(), calibration.texts.size());
  for (const auto& text : calibration.texts) {
    tokens += text.size();
    EXPECT_LE(text.size(), 64u);
    EXPECT_GE(text.size(), 8u);
  }
  EXPECT_EQ(tokens, 1000u);
  const json manifest = json::parse(calibration.manifest);
  EXPECT_EQ(manifest["tokens"], 1000);
  // Three sources in turn, of which one has given all that it had.
  const auto& sources = manifest["sources"];
  ASSERT_EQ(sources.size(), 3u);
  EXPECT_NEAR(sources[0]["tokens_used"].get<int>(), sources[2]["tokens_used"].get<int>(), 64);
  EXPECT_EQ(sources[1]["documents"], 3);
  EXPECT_EQ(sources[1]["documents_used"], 2);
  const auto& coverage = manifest["coverage"];
  EXPECT_GT(coverage["domains"]["code"].get<double>(), 0);
  EXPECT_EQ(coverage["domains"]["mathematics"], 0.0);
  const auto missing = coverage["missing"].get<std::vector<std::string>>();
  EXPECT_TRUE(std::ranges::count(missing, "mathematics"));
  EXPECT_TRUE(std::ranges::count(missing, "documents of 2048 to 4096 tokens")) << coverage;
  EXPECT_FALSE(std::ranges::count(missing, "code"));
  EXPECT_TRUE(manifest["separation"].is_null());
  EXPECT_EQ(manifest["corpus"]["merkle_root"].get<std::string>().size(), 64u);
  EXPECT_EQ(manifest["corpus"]["salts"].size(), 4u);
  // The same request gives the same ids; salts are new ones.
  const CalibrationTexts again = make_calibration(tokenizer, "abc", request);
  EXPECT_EQ(again.texts, calibration.texts);
  EXPECT_NE(json::parse(again.manifest)["corpus"], manifest["corpus"]);
}

TEST(Calibration, ADocumentCanBeProvenToBeAmongThem) {
  CalibrationRequest request;
  request.sources = {source("a", {text_of(4, "cat")}), source("b", {text_of(5, "dog")}),
                     source("c", {text_of(6, "cow")})};
  const json manifest =
      json::parse(make_calibration(shipped_tokenizer(), "", request).manifest)["corpus"];
  std::vector<std::string> leaves;
  for (size_t i = 0; i < 3; ++i) {
    const std::string& text = request.sources[i].documents[0];
    leaves.push_back(
        sha256_of_text(manifest["salts"][i].get<std::string>() + sha256_of_text(text)));
  }
  EXPECT_EQ(manifest["merkle_root"],
            sha256_of_text(sha256_of_text(leaves[0] + leaves[1]) + leaves[2]));
}

TEST(Calibration, ReplacesAndCountsPersonalData) {
  const Tokenizer tokenizer = shipped_tokenizer();
  CalibrationRequest request;
  request.sources = {source("mail", {"Dear jane@example.org, your card 4111 1111 1111 1111 and "
                                     "bob@example.org will meet you at noon today."})};
  const CalibrationTexts calibration = make_calibration(tokenizer, "", request);
  const std::string text = tokenizer.decode(calibration.texts.at(0));
  EXPECT_EQ(text.find("example.org"), std::string::npos) << text;
  EXPECT_NE(text.find("<EMAIL>"), std::string::npos) << text;
  const json scrubbed = json::parse(calibration.manifest)["scrubbed"];
  EXPECT_EQ(scrubbed["email"], 2);
  EXPECT_EQ(scrubbed["card"], 1);
  request.scrubs = false;
  const CalibrationTexts plain = make_calibration(tokenizer, "", request);
  EXPECT_NE(tokenizer.decode(plain.texts.at(0)).find("jane@example.org"), std::string::npos);
  EXPECT_TRUE(json::parse(plain.manifest)["scrubbed"].is_null());
}

TEST(Calibration, TakesWindowsAsTheyAreChosen) {
  const Tokenizer tokenizer = shipped_tokenizer();
  CalibrationRequest request;
  request.sources = {source("a.txt", {text_of(200, "train")}),
                     source("b.txt", {text_of(90, "ship")})};
  request.tokens = 160;
  request.window = 32;
  request.expires = "2030-01-01";
  request.scrubber_report = R"({"name":"r.json","bytes":3,"sha256":"00"})";
  const CalibrationTexts in_turn = make_calibration(tokenizer, "", request);
  EXPECT_TRUE(json::parse(in_turn.manifest)["choice"].is_null());
  EXPECT_EQ(json::parse(in_turn.manifest)["expires"], "2030-01-01");
  EXPECT_EQ(json::parse(in_turn.manifest)["scrubber_report"]["name"], "r.json");
  std::vector<std::vector<int32_t>> pool;
  request.choose = [&](const std::vector<std::vector<int32_t>>& windows) {
    pool = windows;
    return WindowChoice{{19, 2, 7, 3, 11, 12}, R"({"method":"by hand"})"};
  };
  const CalibrationTexts chosen = make_calibration(tokenizer, "", request);
  ASSERT_EQ(pool.size(), 20u);  // four times as many tokens
  EXPECT_EQ(std::vector(pool.begin(), pool.begin() + 5), in_turn.texts);
  ASSERT_EQ(chosen.texts.size(), 5u);
  const std::vector<size_t> expected = {19, 2, 7, 3, 11};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(chosen.texts[i], pool[expected[i]]) << i;
  const json manifest = json::parse(chosen.manifest);
  EXPECT_EQ(manifest["choice"]["method"], "by hand");
  EXPECT_EQ(manifest["tokens"], 160);
  EXPECT_EQ(manifest["sources"][0]["tokens_used"].get<int>() +
                manifest["sources"][1]["tokens_used"].get<int>(),
            160);
  request.pool = 224;
  request.choose = [&](const std::vector<std::vector<int32_t>>& windows) {
    pool = windows;
    return WindowChoice{{6}, "{}"};
  };
  EXPECT_EQ(make_calibration(tokenizer, "", request).texts.size(), 1u);
  EXPECT_EQ(pool.size(), 7u);
  const auto refused = [&](WindowChoice choice, std::string_view word) {
    request.choose = [&](const auto&) { return choice; };
    const Error error = error_of([&] { make_calibration(tokenizer, "", request); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {word, "expected"})) << error.what();
  };
  refused({{7}, "{}"}, "window 7 of 7");
  refused({{3, 3}, "{}"}, "twice");
  refused({{3}, "[]"}, "no JSON");
  refused({{}, "{}"}, "no text");
  request.choose = {};
  request.scrubber_report = "3";
  EXPECT_EQ(error_of([&] { make_calibration(tokenizer, "", request); }).kind(),
            ErrorKind::kInvalidArgument);
}

TEST(Calibration, RefusesWhatIsNoCorpus) {
  const Tokenizer tokenizer = shipped_tokenizer();
  CalibrationRequest request;
  const auto refused = [&](std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { make_calibration(tokenizer, "", request); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refused({"without sources", "expected"});
  request.sources = {source("a.txt", {"", "two words"})};
  refused({"no text of 8 tokens", "expected"});
  request.sources = {source("a.bin", {text_of(9, "x") + std::string(1, '\0')})};
  refused({"a.bin", "zero byte", "expected text"});
  request.sources = {source("a.txt", {text_of(40, "train")})};
  request.tokens = 0;
  refused({"0 tokens", "expected"});
  request.tokens = 100000;
  request.evaluations = {source("b.txt", {text_of(40, "train")})};
  refused({"share", "runs of 13", "expected"});
  // What was replaced in one is replaced in the other, too.
  std::string mails;
  for (int i = 0; i < 40; ++i) mails += "Write to jane@example.org about it. ";
  request.sources = {source("a.txt", {mails})};
  request.evaluations = {source("b.txt", {mails})};
  refused({"share", "runs of 13", "expected"});
  request.sources = {source("a.txt", {text_of(40, "train")})};
  request.evaluations = {source("b.txt", {"Something else altogether, with no such sentence."})};
  const CalibrationTexts calibration = make_calibration(tokenizer, "", request);
  EXPECT_EQ(json::parse(calibration.manifest)["separation"]["shared_tokens"], 0);
  // One line without end is cut into windows as any other text.
  request.sources = {source("line.txt", {std::string(300000, 'a')})};
  request.evaluations.clear();
  EXPECT_GT(make_calibration(tokenizer, "", request).texts.size(), 1u);
}

TEST(Calibration, AFileIsReadBackAndADamagedOneRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "cal.vcal";
  CalibrationTexts calibration;
  calibration.texts = {{1, 2, 3}, {2147483647}, {0, 0}};
  calibration.tokenizer_sha256 = "0123";
  calibration.manifest = R"({"tokens":6,"sources":[{"name":"a"}]})";
  write_calibration(path, calibration);
  const CalibrationTexts found = read_calibration(path);
  EXPECT_EQ(found.texts, calibration.texts);
  EXPECT_EQ(found.tokenizer_sha256, "0123");
  EXPECT_EQ(json::parse(found.manifest), json::parse(calibration.manifest));
  const std::string whole = read_text_file(path, 1 << 20);
  const auto refused = [&](const std::string& text, const std::string& word) {
    write_bytes(path, text);
    const Error error = error_of([&] { read_calibration(path); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << text;
    EXPECT_TRUE(is_one_line_with(error, {"cal.vcal", word, "expected"})) << error.what();
  };
  for (size_t size = 0; size < whole.size() - 1; size += 5) refused(whole.substr(0, size), "JSON");
  const auto with = [&](const char* field, const json& value) {
    json file = json::parse(whole);
    file[field] = value;
    return file.dump();
  };
  refused(with("schema", "other"), "schema");
  refused(with("schema_version", 2), "schema_version");
  refused(with("tokenizer_sha256", 3), "tokenizer_sha256");
  refused(with("manifest", json::array()), "manifest");
  for (const json& texts :
       {json(), json::array(), json{json::array()}, json{{1, -2}}, json{{1, 2.5}}, json{{1, "2"}},
        json{{1, 4294967296}}, json{3}, json{{1}, nullptr}}) {
    refused(with("texts", texts), "texts");
  }
  calibration.manifest = "[]";
  EXPECT_EQ(error_of([&] { write_calibration(path, calibration); }).kind(),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([&] { read_calibration(folder / "none"); }).kind(), ErrorKind::kIo);
}

}  // namespace
}  // namespace vitrine
