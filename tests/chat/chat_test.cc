// SPDX-License-Identifier: Apache-2.0
#include "vitrine/chat.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/tokenizer/tokenizer_json.h"

namespace vitrine {
namespace {

std::string render(const std::string& source, const std::string& variables = "{}",
                   ChatOptions options = {}) {
  options.variables_json = variables;
  return ChatTemplate::parse(source, "t").render(options);
}

/// The error's message; empty where there was none.
std::string message_of(const std::function<void()>& run, ErrorKind kind = ErrorKind::kBadFile) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
  return "";
}

std::string error_of(const std::string& source, const std::string& variables = "{}") {
  return message_of([&] { render(source, variables, {.max_work = 1 << 24}); });
}

TEST(Chat, Messages) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{% for m in messages %}[{{ m.role }}] {{ m['content'] }}\n{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}",
      "t");
  const std::vector<ChatMessage> messages = {{"system", "s"}, {"user", "u\xff"}};
  EXPECT_EQ(chat.render(messages), "[system] s\n[user] u\xef\xbf\xbd\n>");
  EXPECT_EQ(chat.render(messages, {.add_generation_prompt = false}),
            "[system] s\n[user] u\xef\xbf\xbd\n");
  EXPECT_EQ(chat.render(std::span<const ChatMessage>()), ">");
  EXPECT_EQ(chat.names(), std::vector<std::string>{"default"});
}

TEST(Chat, VariablesKeepTheirOrder) {
  EXPECT_EQ(render("{{ x|tojson }}", R"({"x": {"b": 1, "a": [1.0, 1e25, -0.5, null, "\u00e9"]}})"),
            "{\"b\": 1, \"a\": [1.0, 1e+25, -0.5, null, \"\xc3\xa9\"]}");
}

TEST(Chat, ErrorsNameTheLineAndWhatWasExpected) {
  const struct {
    const char *source, *expected;
  } kCases[] = {
      {"\n{% if x %}", "t: line 2: 'if' has no end; expected '{% endif %}'"},
      {"{{ x", "t: line 1: the template ends within a tag; expected '}}'"},
      {"a\n{{ 1 + }}", "t: line 2: found '}}'; expected an expression"},
      {"{% foo %}", "t: line 1: found 'foo'; expected a tag: if, for"},
      {"{% endif %}", "t: line 1: found 'endif'; expected a tag: if, for"},
      {"{# x", "t: line 1: a comment has no end; expected '#}'"},
      {"{{ 'x }}", "t: line 1: a text has no end; expected '"},
      {"{{ (1] }}", "t: line 1: found ']'; expected ')'"},
      {"{{ x | }}", "t: line 1: found '}}'; expected a filter's name"},
      {"{{ 9223372036854775808 }}", "t: line 1: found the number 9223372036854775808"},
      {"{% break %}", "t: line 1: 'break' stands outside of a loop"},
      {"{% set 1 = 2 %}", "t: line 1: found '1'; expected a variable's name"},
      {"{{ \xc2\xa4 }}", "t: line 1: a tag holds '\xc2\xa4'; expected an expression"},
      {"\n\n{{ x.y.z }}", "t: line 3: 'x' is undefined, and its attribute 'y' is read"},
      {"{{ {}.a.b }}", "t: line 1: a dict has no attribute 'a', and its attribute 'b' is read"},
      {"{{ 'a' + 1 }}", "t: line 1: '+' stands between a str and a int"},
      {"{{ 1 // 0 }}", "t: line 1: '//' divides by 0"},
      {"{{ 9223372036854775807 + 1 }}", "t: line 1: '+' gives a whole number beyond 64 bits"},
      {"{{ x() }}", "t: line 1: 'x' is undefined; expected a function or macro"},
      {"{{ 1|nope }}", "t: line 1: the filter 'nope' is unknown; expected one of abs, attr"},
      {"{{ 1 is nope }}", "t: line 1: the test 'nope' is unknown; expected one of defined"},
      {"{{ 'a'|replace }}", "t: line 1: 'replace' lacks 'old'"},
      {"{{ 'a'|indent(x=1) }}", "t: line 1: 'indent' gets 'x'; expected width, first, blank"},
      // A function with several names is named as it was called.
      {"{{ 'a'|lower(1) }}", "'lower' gets 1 values; expected none"},
      {"{{ 'a'|title(1) }}", "'title' gets 1 values; expected none"},
      {"{{ 'a'|capitalize(x=1) }}", "'capitalize' gets 'x'; expected nothing"},
      {"{{ 'a'|upper(1) }}", "'upper' gets 1 values; expected none"},
      {"{{ ['a']|map('lower', 1)|list }}", "'lower' gets 1 values; expected none"},
      {"{{ 'a'|forceescape(1) }}", "'forceescape' gets 1 values; expected none"},
      {"{{ [1]|rejectattr }}", "'rejectattr' gets nothing; expected a name"},
      {"{{ [1]|reject(1) }}", "'reject' gets a int; expected a name"},
      {"{{ 'a'.lower(1) }}", "'lower' gets 1 values; expected none"},
      {"{{ 'a'.isalpha(1) }}", "'isalpha' gets 1 values; expected none"},
      {"{{ 'a'.islower(1) }}", "'islower' gets 1 values; expected none"},
      {"{{ 'a'.lstrip(1) }}", "'lstrip' gets a int as 'chars'; expected text"},
      {"{{ 'a'.rsplit('') }}", "'rsplit' gets empty text as 'sep'"},
      {"{{ 'a'.rindex('b') }}", "'rindex' does not find its text"},
      {"{{ 'a'.zfill() }}", "'zfill' lacks 'width'"},
      {"{{ 1 is even(1) }}", "'even' gets 1 values; expected none"},
      {"{{ 1 is ge }}", "'ge' lacks 'other'"},
      {"{{ 1 is defined(1) }}", "'defined' gets 1 values; expected none"},
      {"{% for a, b in [1] %}{% endfor %}", "t: line 1: a int is looped over; expected a list"},
      {"{% for a, b in [[1]] %}{% endfor %}", "t: line 1: 1 values are set to 2 names"},
      {"{% set x.y = 1 %}",
       "t: line 1: 'x.y' is set, but 'x' is a Undefined; expected a namespace"},
      {"{{ [1].append(2) }}", "'append' would change a list, which a template may not"},
      {"{{ x.__class__ }}{{ ''.__class__.y }}", "line 1: 'x' is undefined"},
      {"{{ ''.__class__.y }}", "access to the attribute '__class__' is not allowed"},
      {"{{ namespace(_a=1) }}", "the attribute '_a' of a namespace is set"},
      {"{{ [namespace()]|tojson }}", "a Namespace cannot be written as JSON"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "'m' gets 2 values; expected at most 1"},
  };
  for (const auto& [source, expected] : kCases) {
    const std::string found = error_of(source);
    EXPECT_NE(found.find(expected), std::string::npos) << source << "\n" << found;
  }
}

TEST(Chat, TheTemplateRefuses) {
  const std::string found = message_of([] { render("\n{{ raise_exception('No\nsystem') }}"); },
                                       ErrorKind::kInvalidArgument);
  EXPECT_EQ(found, "t: line 2: the template refuses these messages: No system");
}

TEST(Chat, BoundsWhatATemplateMayUse) {
  const char* kHostile[] = {
      "{% set s = 'x' * 1000000 %}{% for i in range(9999) %}{% if s.startswith('y', 1) %}{% endif "
      "%}"
      "{% endfor %}",
      "{% set s = '0' * 1000000 %}{% for i in range(9999) %}{% if s|int %}{% endif %}{% endfor %}",
      "{% set s = '0' * 1000000 %}{% for i in range(9999) %}{% if s|float %}{% endif %}{% endfor "
      "%}",
      "{{ ('%(a)d' * 9999)|safe % {'a': '0' * 1000000} }}",
      "{{ ('%(a)f' * 9999)|safe % {'a': '0' * 1000000} }}",
      "{% set d = dict.fromkeys(range(100000, 109999)|map('string')|list) %}"
      "{{ ('{100000}' * 99999).format_map(d) }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% "
      "endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor "
      "%}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}"
      "{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}"
      "{{ ns.x|tojson }}",
      "{% set ns = namespace(x=(1,)) %}{% for i in range(90) %}{% set ns.x = (ns.x, ns.x) %}{% "
      "endfor %}"
      "{{ {ns.x: 1} }}",
      "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x, 1].count %}"
      "{% endfor %}{{ [ns.x] }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ [1] * 9223372036854775807 }}",
      "{{ 'x'|center(9223372036854775807) }}",
      "{{ 'x'.ljust(9223372036854775807) }}",
      "{{ 'x'|indent(9223372036854775807) }}",
      "{{ '\\t'.expandtabs(1000) * 99999999 }}",
      "{{ [1]|batch(9223372036854775807, 0)|list }}",
      "{{ [1]|slice(9223372036854775807)|list }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ ('a' * 10000)|replace('a', 'a' * 1000000) }}",
      "{{ range(9999999) }}",
      "{% for i in range(9000) recursive %}{{ loop([1]) }}{% endfor %}",
      "{% macro a(f) %}{{ f(f) }}{% endmacro %}{{ a(a) }}",
  };
  for (const char* source : kHostile) {
    EXPECT_NE(error_of(source).find("line 1: "), std::string::npos) << source;
  }
  const std::string deep(100000, '(');
  EXPECT_NE(error_of("{{ " + deep + "1" + std::string(100000, ')') + " }}")
                .find("more than 200 levels deep"),
            std::string::npos);
  EXPECT_NE(error_of("{{ " + std::string(100000, '-') + "1 }}").find("levels deep"),
            std::string::npos);
  std::string sum = "1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  EXPECT_NE(error_of("{{ " + sum + " }}").find("more than 200 operations"), std::string::npos);
  std::string blocks;
  for (int i = 0; i < 100000; ++i) blocks += "{% if 1 %}";
  EXPECT_NE(error_of(blocks).find("levels deep"), std::string::npos);
  EXPECT_NE(error_of("x", std::string(100000, '[')).find("levels deep"), std::string::npos);
  EXPECT_NE(message_of([] {
              ChatOptions options;
              options.max_output_bytes = 10;
              render("12345678901", "{}", options);
            }).find("more than 10 bytes"),
            std::string::npos);
}

TEST(Chat, ChainsOfObjectsComeToAnEnd) {
  // Each of these makes a chain as long as the loop, or a ring: freed without recursion, and whole.
  const char* kSources[] = {
      "{% set ns = namespace(p=1) %}{% for i in range(30000) %}{% set ns = namespace(p=ns) %}{% "
      "endfor %}",
      "{% set r = namespace(p=1) %}{% for i in range(30000) %}{% set r.p = namespace(p=r.p) %}{% "
      "endfor %}",
      "{% set r = namespace(p=1) %}{% for i in range(30000) %}{% for x in [r.p] %}{% set r.p = "
      "loop %}"
      "{% endfor %}{% endfor %}",
      "{% set r = namespace(p=1) %}{% for i in range(30000) %}{% for x in [1] %}"
      "{{ loop.changed(r.p) and '' }}{% set r.p = loop %}{% endfor %}{% endfor %}",
      "{% set r = namespace(f=1) %}{% macro make(f) %}{% macro inner() %}{{ f }}{% endmacro %}"
      "{% set r.f = inner %}{% endmacro %}{% for i in range(10000) %}{{ make(r.f) }}{% endfor %}",
      "{% for x in [1] recursive %}{{ loop.changed(loop) and '' }}{% endfor %}",
  };
  for (const char* source : kSources) EXPECT_EQ(render(source), "") << source;
}

TEST(Chat, StrftimeNow) {
  ChatOptions options;
  options.now = 86400 * 365;
  EXPECT_EQ(render("{{ strftime_now('%Y %B %%') }}", "{}", options).substr(0, 4), "1971");
  EXPECT_EQ(render("{{ strftime_now('%Y')|length }}"), "4");
  // Python's time has no zone, and its codes make nothing.
  EXPECT_EQ(render("{{ strftime_now('a%zb%Zc%%zd') }}"), "abc%zd");
}

TEST(Chat, TokenizerConfig) {
  EXPECT_FALSE(ChatTemplate::from_tokenizer_config("", "c"));
  EXPECT_FALSE(ChatTemplate::from_tokenizer_config("{}", "c"));
  EXPECT_FALSE(ChatTemplate::from_tokenizer_config(R"({"chat_template": []})", "c"));
  const auto chat = ChatTemplate::from_tokenizer_config(
      R"({"eos_token": {"content": "<e>"}, "bos_token": null, "model_max_length": 1e30,
          "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ eos_token }}"},
                            {"name": "tool_use", "template": "tools"}]})",
      "c");
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->names(), (std::vector<std::string>{"default", "tool_use"}));
  EXPECT_EQ(chat->special_token("eos_token"), "<e>");
  EXPECT_EQ(chat->special_token("bos_token"), "");
  EXPECT_EQ(chat->render(ChatOptions{}), "<e>");
  EXPECT_EQ(chat->render(ChatOptions{.variables_json = R"({"tools": []})"}), "tools");
  for (const char* json : {"[]", "{", "{\"chat_template\": 1}", "{\"chat_template\": [1]}",
                           "{\"chat_template\": \"{{\"}", "{\"a\": 99999999999999999999}"}) {
    EXPECT_NE(message_of([&] { ChatTemplate::from_tokenizer_config(json, "c"); }).find("c: "),
              std::string::npos)
        << json;
  }
  EXPECT_EQ(ChatTemplate::parse("{{ eos_token }}{{ messages[0].content }}", "c",
                                R"({"eos_token": {"content": "E"}, "chat_template": "{% if %}"})")
                .render({{{"user", "a"}}}),
            "Ea");
  EXPECT_NE(message_of([] { ChatTemplate::parse("\xff", "c"); }).find("no UTF-8"),
            std::string::npos);
  EXPECT_NE(message_of([] { render("", "[1]"); }, ErrorKind::kInvalidArgument).find("JSON list"),
            std::string::npos);
}

TEST(Chat, EndOfTurn) {
  nlohmann::json file = test::small_tokenizer();
  const auto add = [&](int id, const char* text, bool special) {
    file["added_tokens"].push_back({{"id", id},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", special}});
  };
  add(263, "<|im_end|>", true);
  add(264, "<|eot_id|>", false);  // no special token: text
  add(265, "<|return|>", true);
  const auto ids = [&](const char* config) {
    const auto chat = ChatTemplate::from_tokenizer_config(config, "c");
    return end_of_turn_ids(Tokenizer::from_json(file.dump(), "tokenizer.json"), *chat);
  };
  EXPECT_EQ(ids(R"({"chat_template": ""})"), (std::vector<int32_t>{261, 263, 265}));
  EXPECT_EQ(ids(R"({"chat_template": "", "eos_token": "hello"})"),
            (std::vector<int32_t>{259, 261, 263, 265}));
  EXPECT_EQ(ids(R"({"chat_template": "", "eos_token": "not there"})"),
            (std::vector<int32_t>{261, 263, 265}));
  add(266, "<|call|>", true);  // harmony: <|end|> (261) ends a part of a turn only
  EXPECT_EQ(ids(R"({"chat_template": ""})"), (std::vector<int32_t>{263, 265, 266}));
  add(267, "[EOT]", true);
  add(268, "<end_of_utterance>", true);
  EXPECT_EQ(ids(R"({"chat_template": ""})"), (std::vector<int32_t>{263, 265, 266, 267, 268}));
}

}  // namespace
}  // namespace vitrine
