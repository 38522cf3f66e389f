// SPDX-License-Identifier: Apache-2.0
// Gate files, those from outside too: each error says what is wrong where.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "vitrine/gates.h"

namespace vitrine::testing {
namespace {

const std::string kHead = "[gate]\nname = \"g\"\n";

std::string message_of(const std::string& text) {
  try {
    GateFile::parse(text, "g.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    return error.what();
  }
  return "nothing thrown";
}

std::string rule_message(const std::string& fields) {
  return message_of(kHead + "[[rule]]\n" + fields);
}

TEST(GateFiles, HoldWhatTheyAreGiven) {
  const GateFile gate = GateFile::parse(R"(
[gate]
name = "mine"
about = "what I need"
confidence = 0.9

[[rule]]
name = "calls"
metric = "success_drop"
scope = "schema"
bound = 0.02
confidence = 0.99
next = "roll back"

[[rule]]
name = "tail"
metric = "kl_quantile"
quantile = 0.99
bound = 1
optional = true

[[rule]]
name = "loops"
metric = "new_loops"
bound = 2

[[rule]]
name = "not worse"
metric = "success_drop"
kind = "not_worse"

[[rule]]
name = "sureness"
metric = "sureness_drop"
bound = 0.02
stands_for = "calls"
)",
                                        "mine.toml");
  EXPECT_EQ(gate.name, "mine");
  EXPECT_EQ(gate.about, "what I need");
  EXPECT_EQ(gate.confidence, 0.9);
  EXPECT_EQ(gate.sha256.size(), 64);
  EXPECT_EQ(GateFile::parse(gate.text, "again.toml").sha256, gate.sha256);
  ASSERT_EQ(gate.rules.size(), 5);
  EXPECT_EQ(gate.rules[0].scope, "schema");
  EXPECT_EQ(gate.rules[0].kind, GateKind::kWithin);
  EXPECT_EQ(gate.rules[0].bound, 0.02);
  EXPECT_EQ(gate.rules[0].confidence, 0.99);
  EXPECT_EQ(gate.rules[0].next, "roll back");
  EXPECT_EQ(gate.rules[1].options.at("quantile"), 0.99);
  EXPECT_EQ(gate.rules[1].confidence, 0.9);
  EXPECT_TRUE(gate.rules[1].is_optional);
  EXPECT_EQ(gate.rules[2].kind, GateKind::kExact);
  EXPECT_EQ(gate.rules[2].bound, 2);
  EXPECT_EQ(gate.rules[3].kind, GateKind::kNotWorse);
  EXPECT_EQ(gate.rules[4].stands_for, "calls");
}

TEST(GateFiles, OfTheTreeAreBuiltIn) {
  const std::vector<std::string> expected = {"default", "exact", "production", "rounding"};
  EXPECT_EQ(builtin_gates(), expected);
  for (const std::string& name : expected) {
    const GateFile gate = GateFile::open(name);
    EXPECT_EQ(gate.name, name);
    EXPECT_EQ(gate.path, name);
    std::ifstream file("examples/gates/" + name + ".toml");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(builtin_gate_text(name), text.str());
    EXPECT_EQ(GateFile::open("examples/gates/" + name + ".toml").sha256, gate.sha256);
    for (const GateRule& rule : gate.rules) EXPECT_FALSE(rule.next.empty()) << rule.name;
  }
  EXPECT_THROW(builtin_gate_text("other"), Error);
  try {
    GateFile::open("not/there.toml");
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(),
                 "not/there.toml: there is no such file; expected a gate file, or one of the "
                 "built-in gates default, exact, production, rounding");
  }
}

TEST(GateFiles, AreRefusedWhereTheyAreNone) {
  EXPECT_EQ(message_of("[gate"),
            "g.toml: line 1: Error while parsing table header: encountered "
            "end-of-file; expected TOML 1.0");
  EXPECT_EQ(message_of(""), "g.toml: 'gate' is not a table; expected [gate] with a name");
  EXPECT_EQ(message_of("gate = 3\n"), "g.toml: 'gate' is not a table; expected [gate] with a name");
  EXPECT_EQ(message_of("[gates]\nname = \"g\"\n"),
            "g.toml: there is no field 'gates'; expected one of [gate] and [[rule]]");
  EXPECT_EQ(message_of("[gate]\n"), "g.toml: [gate]: 'name' is missing; expected a text");
  EXPECT_EQ(message_of("[gate]\nname = 3\n"),
            "g.toml: [gate]: 'name' is 3; expected a text that is not empty");
  EXPECT_EQ(message_of("[gate]\nname = \"\"\n"),
            "g.toml: [gate]: 'name' is ''; expected a text that is not empty");
  EXPECT_EQ(message_of(kHead + "confidence = 1.0\n"),
            "g.toml: [gate]: 'confidence' is 1.0; expected 0.5 or more, and below 1");
  EXPECT_EQ(message_of(kHead + "author = \"x\"\n"),
            "g.toml: [gate]: there is no field 'author'; expected one of name, about, confidence");
  const std::string no_rules =
      "g.toml: 'rule' is not a list of tables; expected 1 to 1000 times [[rule]]";
  EXPECT_EQ(message_of(kHead), no_rules);
  EXPECT_EQ(message_of(kHead + "[rule]\nname = \"x\"\n"), no_rules);
  EXPECT_EQ(message_of("rule = []\n" + kHead), no_rules);
  EXPECT_EQ(message_of("rule = [3]\n" + kHead),
            "g.toml: [[rule]] 1 is no table; expected [[rule]]");
}

TEST(GateFiles, FromOutsideAreNotTrusted) {
  const std::string deep = message_of(kHead + "x = " + std::string(5000, '[') + "\n");
  EXPECT_TRUE(deep.starts_with("g.toml: line 3: ")) << deep;
  EXPECT_TRUE(deep.ends_with("; expected TOML 1.0")) << deep;
  const std::string no_text = message_of("[gate]\nname = \"\xff\"\n");
  EXPECT_TRUE(no_text.starts_with("g.toml: line 2: ")) << no_text;
  EXPECT_TRUE(message_of(kHead + "name = \"h\"\n").starts_with("g.toml: line 3: "));
  const std::string path = ::testing::TempDir() + "large_gate.toml";
  std::ofstream(path) << std::string((size_t{1} << 20) + 1, '#');
  for (const std::string& file : {path, ::testing::TempDir()}) {
    try {
      GateFile::open(file);
      ADD_FAILURE() << file << ": nothing thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
    }
  }
  std::filesystem::remove(path);
  std::string many = kHead;
  for (int i = 0; i < 1001; ++i) {
    many += "[[rule]]\nname = \"" + std::to_string(i) + "\"\nmetric = \"flips\"\n";
  }
  EXPECT_EQ(message_of(many),
            "g.toml: 'rule' is not a list of tables; expected 1 to 1000 times [[rule]]");
}

TEST(GateFiles, AreRefusedForARule) {
  EXPECT_EQ(rule_message("metric = \"flips\"\n"),
            "g.toml: [[rule]] 1: 'name' is missing; expected a text");
  EXPECT_EQ(rule_message("name = \"x\"\n"),
            "g.toml: [[rule]] 'x': 'metric' is missing; expected a text");
  const std::string unknown = rule_message("name = \"x\"\nmetric = \"accuracy\"\n");
  EXPECT_TRUE(unknown.starts_with(
      "g.toml: [[rule]] 'x': 'metric' is 'accuracy'; expected one of critical_lost, "))
      << unknown;
  EXPECT_NE(unknown.find("success_drop"), std::string::npos);
  const std::string drop = "name = \"x\"\nmetric = \"success_drop\"\n";
  EXPECT_EQ(rule_message(drop),
            "g.toml: [[rule]] 'x': 'bound' is missing; expected a number "
            "(share), as 'success_drop' needs it");
  EXPECT_EQ(rule_message(drop + "bound = \"1 %\"\n"),
            "g.toml: [[rule]] 'x': 'bound' is '1 %'; expected a number");
  EXPECT_EQ(rule_message(drop + "bound = inf\n"),
            "g.toml: [[rule]] 'x': 'bound' is not finite; expected a number");
  EXPECT_EQ(rule_message(drop + "bound = 2\n"),
            "g.toml: [[rule]] 'x': 'bound' is 2.000000; expected a share from 0 to below 1 (0.01: "
            "a point)");
  EXPECT_EQ(
      rule_message(drop + "bound = 0.1\nmargin = 1\n"),
      "g.toml: [[rule]] 'x': there is no field 'margin'; expected one of name, metric, scope, "
      "kind, bound, confidence, optional, stands_for, next, except, beyond_noise, never_refuses, "
      "counted_only, times_noise");
  EXPECT_EQ(rule_message(drop + "bound = 0.1\ntimes_noise = 3\n"),
            "g.toml: [[rule]] 'x': 'bound' and 'times_noise' are there; expected one");
  EXPECT_EQ(rule_message(drop + "times_noise = 0.5\n"),
            "g.toml: [[rule]] 'x': 'times_noise' is 0.5; expected 1 or more");
  EXPECT_EQ(rule_message(drop + "kind = \"exact\"\ntimes_noise = 3\n"),
            "g.toml: [[rule]] 'x': 'times_noise' is 3; expected none: it takes a rule of the kind "
            "within or not_worse");
  EXPECT_EQ(rule_message(drop + "bound = 0.1\nkind = \"maybe\"\n"),
            "g.toml: [[rule]] 'x': 'kind' is 'maybe'; expected within, not_worse or exact");
  EXPECT_EQ(rule_message(drop + "bound = 0.1\noptional = 1\n"),
            "g.toml: [[rule]] 'x': 'optional' is 1; expected true or false");
  EXPECT_EQ(rule_message(drop + "bound = 0.1\nconfidence = 0.3\n"),
            "g.toml: [[rule]] 'x': 'confidence' is 0.3; expected 0.5 or more, and below 1");
  EXPECT_EQ(rule_message(drop + "bound = 0.1\nnext = \"pray\"\n"),
            "g.toml: [[rule]] 'x': 'next' is 'pray'; expected one of raise precision, "
            "recalibrate, change path, roll back");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"flips\"\nkind = \"within\"\n"),
            "g.toml: [[rule]] 'x': 'kind' is 'within'; expected exact: 'flips' counts, and "
            "nothing is inferred from it");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"flips\"\nbound = -1\n"),
            "g.toml: [[rule]] 'x': 'bound' is -1; expected how many items may break it");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"kl_quantile\"\nbound = 1\nquantile = 1\n"),
            "g.toml: [[rule]] 'x': 'quantile' is 1.000000; expected above 0 and below 1");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"recall_missed\"\n"),
            "g.toml: [[rule]] 'x': 'length' is 0.000000; expected the longest length in tokens, at "
            "least 1");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"token_ratio\"\nbound = 0\n"),
            "g.toml: [[rule]] 'x': 'bound' is 0.000000; expected a ratio above 0 (1.1: 10 % more)");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"kl_mean\"\nbound = 0.0\n"),
            "g.toml: [[rule]] 'x': 'bound' is 0.000000; expected nats above 0");
  EXPECT_EQ(rule_message("name = \"x\"\nmetric = \"flips\"\n[[rule]]\nname = \"x\"\nmetric = "
                         "\"lost\"\n"),
            "g.toml: [[rule]] 'x': the name stands twice; expected each once");
}

TEST(GateFiles, AreRefusedForWhatStandsForNothing) {
  const std::string one = "name = \"a\"\nmetric = \"success_drop\"\nbound = 0.01\n";
  const std::string two = "[[rule]]\nname = \"b\"\nmetric = \"sureness_drop\"\nbound = 0.01\n";
  EXPECT_EQ(rule_message(one + two + "stands_for = \"c\"\n"),
            "g.toml: [[rule]] 'b': 'stands_for' is 'c'; expected the name of another rule");
  EXPECT_EQ(rule_message(one + two + "stands_for = \"b\"\n"),
            "g.toml: [[rule]] 'b': 'stands_for' is 'b'; expected the name of another rule");
  EXPECT_EQ(rule_message(one + "stands_for = \"b\"\n" + two + "stands_for = \"a\"\n"),
            "g.toml: [[rule]] 'a': 'stands_for' is 'b', which stands for another rule itself; "
            "expected one that does not");
  EXPECT_EQ(rule_message(one + "kind = \"exact\"\n" + two + "stands_for = \"a\"\n"),
            "g.toml: [[rule]] 'b': 'stands_for' is 'a'; expected both of the kind within, which "
            "alone can be undecided");
}

}  // namespace
}  // namespace vitrine::testing
