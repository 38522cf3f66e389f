// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "vitrine/tokenizer.h"

namespace vitrine {
namespace {

/// What is printed of a text that comes in pieces.
std::string shown(std::vector<std::string> stop, const std::vector<std::string>& pieces) {
  StopStrings strings(std::move(stop));
  std::string text;
  for (const std::string& piece : pieces) text += strings.add(piece);
  return text + strings.finish() + (strings.stopped() ? "|" : "");
}

TEST(StopStrings, EndTheTextWhereverPiecesEnd) {
  EXPECT_EQ(shown({"END"}, {"one EN", "D two"}), "one |");
  EXPECT_EQ(shown({"END"}, {"one E", "N", "D"}), "one |");
  EXPECT_EQ(shown({"END"}, {"one E", "N", "E"}), "one ENE");
  EXPECT_EQ(shown({"END"}, {"ENEND"}), "EN|");
  EXPECT_EQ(shown({"aab"}, {"a", "a", "a", "b", "c"}), "a|");
  EXPECT_EQ(shown({}, {"x", "y"}), "xy");
  EXPECT_EQ(shown({"x"}, {"x"}), "|");
  EXPECT_EQ(shown({"bc", "abcd"}, {"abcd"}), "a|") << "the first that is complete";
  EXPECT_EQ(shown({"bc", "abc"}, {"abcd"}), "|") << "of two that end together the longer one";
}

TEST(StopStrings, HoldBackOnlyWhatMayBeOne) {
  StopStrings strings({"\n\n", "stop"});
  EXPECT_EQ(strings.add("one\n"), "one");
  EXPECT_EQ(strings.found(), "");
  EXPECT_EQ(strings.add("two st"), "\ntwo ");
  EXPECT_EQ(strings.add("ay"), "stay");
  EXPECT_EQ(strings.add("\n"), "");
  EXPECT_EQ(strings.add("\n."), "");
  EXPECT_TRUE(strings.stopped());
  EXPECT_EQ(strings.found(), "\n\n");
  EXPECT_EQ(strings.add("more") + strings.finish(), "");
}

TEST(StopStrings, SameTextHoweverItIsCut) {
  std::mt19937 engine(4);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "ab"[engine() % 2];
    const std::vector<std::string> stop = {"aabb", "abab", "bbb"};
    size_t end = text.size(), begin = end;
    bool stops = false;
    for (size_t at = 0; at <= text.size() && !stops; ++at) {
      for (const std::string& string : stop) {
        if (!std::string_view(text).substr(0, at).ends_with(string)) continue;
        stops = true;
        begin = std::min(begin, at - string.size());
      }
    }
    const std::string expected = stops ? text.substr(0, begin) + "|" : text;
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + engine() % 5;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    ASSERT_EQ(shown(stop, pieces), expected) << text;
  }
}

TEST(StopStrings, BeginOnlyWhereTheTextMayEnd) {
  const auto shown_of = [](const std::vector<std::string>& pieces, std::string_view may_begin) {
    StopStrings stop({"}", "ab"});
    std::string text;
    size_t place = 0;
    for (const std::string& piece : pieces) {
      text += stop.add(piece, [&](size_t offset) { return may_begin[place + offset] == '+'; });
      place += piece.size();
    }
    return text + (stop.stopped() ? "|" : "") + stop.finish();
  };
  EXPECT_EQ(shown_of({"{}", "}"}, "--+"), "{}|");
  EXPECT_EQ(shown_of({"{}", "}"}, "---"), "{}}");
  EXPECT_EQ(shown_of({"xa", "bab"}, "---+-"), "xab|");
  EXPECT_EQ(shown_of({"xa", "b"}, "-+-"), "x|");   // it ends where none may begin
  EXPECT_EQ(shown_of({"xa", "b"}, "+-+"), "xab");  // and begins where none may
  EXPECT_EQ(shown_of({"xa", "c"}, "+++"), "xac");  // held back in between
  EXPECT_EQ(shown_of({"a", "a", "b"}, "++-"), "a|");
}

TEST(StopStrings, RefuseAnEmptyOne) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

}  // namespace
}  // namespace vitrine
