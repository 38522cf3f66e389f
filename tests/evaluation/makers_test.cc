// SPDX-License-Identifier: Apache-2.0
// Made items: the same on every machine, of the lengths that they say, and as RULER has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "evaluation/item.h"
#include "evaluation/makers/words.h"
#include "evaluation/scorers/arithmetic_steps.h"
#include "evaluation/suite_items.h"

namespace vitrine::evaluation {
namespace {

std::vector<Item> made(const std::string& maker, const std::string& options, int64_t count,
                       uint64_t seed = 1) {
  return find_maker(maker)->make(Json::parse(options), seed, count);
}

std::string text_of(const std::vector<Item>& items) {
  std::string text;
  for (const Item& item : items) text += item.id + "\n" + item.data.dump() + "\n";
  return text;
}

/// The options with which each maker is tried.
const std::map<std::string, std::string> kOptions = {
    {"arithmetic", R"({"digits": 2, "terms": 3, "operators": ["+", "-", "*"]})"},
    {"cwe", R"({"lengths": [768, 4096]})"},
    {"fwe", R"({"lengths": [512, 2048]})"},
    {"induction", R"({"lengths": [256, 512]})"},
    {"mqar", R"({"pairs": [6, 10]})"},
    {"needle_choice", R"({"lengths": [192, 512]})"},
    {"niah_multikey_2", R"({"lengths": [256, 1024]})"},
    {"niah_multikey_3", R"({"lengths": [512, 1024]})"},
    {"niah_single_1", R"({"lengths": [256, 1024]})"},
    {"records", R"({"output": "json"})"},
    {"symbolic", R"({"operation": "sets", "size": 5})"},
    {"tool_state", R"({"lengths": [768, 1536]})"},
    {"vt", R"({"lengths": [512, 2048]})"}};

TEST(Makers, MakeTheSameOnEveryMachine) {
  ASSERT_EQ(kOptions.size(), maker_names().size());
  std::string all;
  for (const auto& [maker, options] : kOptions) {
    const std::string text = text_of(made(maker, options, 5));
    all += text;
    EXPECT_EQ(text, text_of(made(maker, options, 5)));
    EXPECT_NE(text, text_of(made(maker, options, 5, 2))) << maker;
  }
  // Pinned: a change of any item changes what results can be compared with.
  EXPECT_EQ(sha256_of_text(all),
            "6391eb7dce0abbd3a5ce91c4b92211d8a5aef0c95052cec15b91e0639842685a");
}

TEST(Makers, MakeTheSameFirstItemsWhateverTheCount) {
  for (const auto& [maker, options] : kOptions) {
    const std::string few = text_of(made(maker, options, 2));
    const std::string many = text_of(made(maker, options, 9));
    EXPECT_EQ(many.substr(0, few.size()), few) << maker;
  }
}

TEST(Makers, MakeItemsThatDiffer) {
  for (const auto& [maker, options] : kOptions) {
    std::set<std::string> ids, texts;
    const std::vector<Item> items = made(maker, options, 20);
    for (const Item& item : items) {
      ids.insert(item.id);
      texts.insert(item.data.dump());
    }
    EXPECT_EQ(ids.size(), items.size()) << maker;
    EXPECT_EQ(texts.size(), items.size()) << maker;
  }
}

TEST(Makers, KeepToTheirLengths) {
  for (const char* maker :
       {"niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "needle_choice"}) {
    for (const Item& item : made(maker, R"({"lengths": [768, 4096, 8192]})", 3)) {
      const int64_t tokens = estimated_tokens(item.data["prompt"].get<std::string>());
      const auto length = item.data["length"].get<int64_t>();
      EXPECT_LE(tokens, length) << maker << " " << item.id;
      EXPECT_GE(tokens, length * 8 / 10) << maker << " " << item.id;
    }
  }
  EXPECT_EQ(made("vt", R"({"lengths": [512, 1024], "longest": 600})", 2).size(), 2U);
  EXPECT_EQ(made("vt", R"({"lengths": [512], "longest": 100})", 2).size(), 0U);
}

TEST(Makers, MakeRulersNeedles) {
  const Item item = made("niah_single_1", R"({"lengths": [256]})", 1)[0];
  const std::string prompt = item.data["prompt"].get<std::string>();
  const std::string value = item.data["answer"][0].get<std::string>();
  EXPECT_EQ(value.size(), 7U);
  EXPECT_TRUE(prompt.starts_with(
      "A special magic number is hidden within the following text. Make sure to memorize it. I "
      "will quiz you about the number afterwards.\n"));
  const std::string start = item.data["answer_start"].get<std::string>();
  const std::string key = start.substr(29, start.size() - 29 - 34);
  EXPECT_EQ(start, "The special magic number for " + key + " mentioned in the provided text is");
  EXPECT_NE(key.find('-'), std::string::npos);
  EXPECT_NE(prompt.find("\nOne of the special magic numbers for " + key + " is: " + value + ".\n"),
            std::string::npos);
  EXPECT_NE(prompt.find("\nThe grass is green. The sky is blue. The sun is yellow. Here we go. "
                        "There and back again.\n"),
            std::string::npos);
  EXPECT_TRUE(prompt.ends_with("\nWhat is the special magic number for " + key +
                               " mentioned in the provided text?"));
}

TEST(Makers, MakeRulersNeedlesAmongNeedles) {
  for (const Item& item : made("niah_multikey_3", R"({"lengths": [1024]})", 5)) {
    const std::string prompt = item.data["prompt"].get<std::string>();
    const std::string value = item.data["answer"][0].get<std::string>();
    EXPECT_EQ(value.size(), 36U);
    EXPECT_EQ(value[14], '4');  // version 4
    size_t needles = 0;
    for (size_t at = 0;
         (at = prompt.find("One of the special magic uuids for ", at)) != std::string::npos; ++at) {
      ++needles;
    }
    EXPECT_GT(needles, 5U);
    EXPECT_NE(prompt.find(" is: " + value + "."), std::string::npos);
    EXPECT_EQ(prompt.find(value), prompt.rfind(value));
  }
}

TEST(Makers, MakeRulersVariables) {
  const Item item = made("vt", R"({"lengths": [2048], "hops": 4})", 1)[0];
  const std::string prompt = item.data["prompt"].get<std::string>();
  const auto names = item.data["answer"].get<std::vector<std::string>>();
  ASSERT_EQ(names.size(), 5U);
  for (size_t i = 1; i < names.size(); ++i) {
    const std::string line = "\nVAR " + names[i] + " = VAR " + names[i - 1] + " \n";
    EXPECT_NE(prompt.find(line), std::string::npos) << line;
    EXPECT_LT(prompt.find("VAR " + names[i - 1] + " = "), prompt.find(line));
  }
  // The worked example and the question.
  EXPECT_EQ(prompt.find("Memorize and track the chain(s) of variable assignment hidden in the "
                        "following text.\n\n"),
            0U);
  EXPECT_NE(prompt.rfind("Memorize and track"), 0U);
  EXPECT_NE(prompt.find(" Answer: According to the chain(s) of variable assignment in the text "
                        "above, 5 variables are assigned the value "),
            std::string::npos);
}

TEST(Makers, MakeRulersCommonWords) {
  const Item item = made("cwe", R"({"lengths": [768]})", 1)[0];
  const std::string prompt = item.data["prompt"].get<std::string>();
  const std::string list = prompt.substr(prompt.rfind("appear most often.\n"));
  const auto common = item.data["answer"].get<std::vector<std::string>>();
  ASSERT_EQ(common.size(), 10U);
  for (const std::string& word : common) {
    size_t count = 0;
    for (size_t at = 0; (at = list.find(". " + word, at)) != std::string::npos; ++at) {
      const char behind = list[at + 2 + word.size()];
      count += behind == ' ' || behind == '\n' ? 1 : 0;
    }
    EXPECT_EQ(count, 6U) << word;
  }
}

TEST(Makers, MakeRulersFrequentWords) {
  for (const Item& item : made("fwe", R"({"lengths": [512, 2048]})", 3)) {
    const std::string prompt = item.data["prompt"].get<std::string>();
    std::map<std::string, int> counts;
    const size_t begin = prompt.find("coded words. ") + 13;
    std::string words = prompt.substr(begin, prompt.find("\nQuestion") - begin) + " ";
    for (size_t end = 0; (end = words.find(' ')) != std::string::npos; words.erase(0, end + 1)) {
      ++counts[words.substr(0, end)];
    }
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [word, count] : counts) order.emplace_back(-count, word);
    std::ranges::sort(order);
    EXPECT_EQ(order[0].second, "...");
    const auto right = item.data["answer"].get<std::vector<std::string>>();
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(order[i + 1].second, right[i]);
    EXPECT_LT(order[3].first, order[4].first);  // the fourth comes less often
  }
}

TEST(Makers, WorkOutTheirSums) {
  for (const Item& item : made("arithmetic", kOptions.at("arithmetic"), 200)) {
    const std::string sum = item.data["question"].get<std::string>() + " = " +
                            std::to_string(item.data["answer"].get<int64_t>());
    const std::vector<ArithmeticStep> steps = arithmetic_steps(sum);
    ASSERT_EQ(steps.size(), 1U) << sum;
    EXPECT_TRUE(steps[0].is_right) << sum;
    EXPECT_EQ(item.data["steps"].back(), item.data["answer"]);
    EXPECT_EQ(item.data["steps"].size(), 2U);
  }
}

TEST(Makers, HideChoicesWell) {
  const std::map<std::string, std::string> choosing = {
      {"arithmetic", R"({"kind": "choice", "digits": 1, "terms": 2})"},
      {"needle_choice", R"({"lengths": [192]})"},
      {"mqar", R"({"pairs": [8]})"}};
  for (const auto& [maker, options] : choosing) {
    std::vector<int> places(4, 0);
    for (const Item& item : made(maker, options, 200)) {
      const Json& choices = item.data["choices"];
      ASSERT_EQ(choices.size(), 4U);
      EXPECT_EQ(std::set<Json>(choices.begin(), choices.end()).size(), 4U);
      ++places[item.data["answer"].get<size_t>()];
    }
    for (const int count : places) EXPECT_GT(count, 25) << maker;
  }
}

TEST(Makers, MakeSymbolicAnswersThatAreRight) {
  const std::vector<Item> sorted =
      made("symbolic", R"({"operation": "sort_numbers", "size": 5})", 20);
  for (const Item& item : sorted) {
    std::string text = item.data["answer"].get<std::string>() + ",";
    int64_t last = 0;
    for (size_t end = 0; (end = text.find(',')) != std::string::npos; text.erase(0, end + 1)) {
      const int64_t number = std::stoll(text.substr(0, end));
      EXPECT_GT(number, last);
      last = number;
    }
  }
  for (const Item& item : made("symbolic", R"({"operation": "order", "size": 4})", 20)) {
    const std::string prompt = item.data["prompt"].get<std::string>();
    const std::string name = item.data["answer"].get<std::string>();
    const bool asks_tallest = prompt.find("the tallest?") != std::string::npos;
    // Who is tallest is never the shorter one of a pair.
    EXPECT_EQ(prompt.find((asks_tallest ? " is taller than " : " is shorter than ") + name + "."),
              std::string::npos);
    EXPECT_EQ(prompt.find(name + (asks_tallest ? " is shorter than" : " is taller than")),
              std::string::npos);
  }
}

TEST(Makers, MakeTheSecondPassEqual) {
  for (const Item& item : made("induction", R"({"lengths": [512]})", 3)) {
    const std::string text = item.data["text"].get<std::string>();
    const auto from = item.data["scored_from"].get<size_t>();
    EXPECT_EQ(text.substr(from), text.substr(1, from - 2));
  }
}

TEST(Makers, RefuseOptionsThatMakeNothing) {
  const auto error_of = [](const std::string& maker, const std::string& options) {
    try {
      made(maker, options, 1);
      return std::string("no error");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(error_of("vt", R"({"lengths": []})"),
            "'lengths' is a list; expected a list of whole numbers from 64 to 1048576, at least "
            "one");
  EXPECT_EQ(error_of("vt", R"({"lengths": [9]})"),
            "'lengths[0]' is 9; expected a whole number from 64 to 1048576");
  EXPECT_EQ(error_of("arithmetic", R"({"operators": ["/"]})"),
            "'operators[]' is '/'; expected +, - or *");
  EXPECT_EQ(error_of("symbolic", R"({"operation": "dance"})"),
            "'operation' is 'dance'; expected sort_numbers, sort_words, reverse, order or sets");
}

}  // namespace
}  // namespace vitrine::evaluation
