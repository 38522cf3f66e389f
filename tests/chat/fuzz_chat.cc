// SPDX-License-Identifier: Apache-2.0
// fuzz_chat SECONDS [SEED]: mutates chat templates and tokenizer_config.json files, then renders
// conversations with them.
//
// Every outcome must be success or vitrine::Error with one line; anything else ends with 1 and the
// iteration, which the same seed repeats. Meant for a build with AddressSanitizer and UBSan.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"
#include "vitrine/chat.h"

namespace {

using namespace vitrine;

constexpr const char* kVariables = R"({
  "bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024",
  "messages": [
    {"role": "system", "content": "Be brief, \u00e9\ud83d\ude42."},
    {"role": "user", "content": "  What's 1 + 1?\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nTwo.", "tool_calls": [
      {"type": "function", "id": "abcdefghi",
       "function": {"name": "add", "arguments": {"a": 1, "b": [1.5, null, true]}}}]},
    {"role": "tool", "content": "2", "tool_call_id": "abcdefghi"},
    {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}],
  "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"},
      "b": {"type": ["integer", "null"], "enum": [1, 2]}}, "required": ["a"]}}}]})";

/// What a mutation puts in place of a text in quotes.
std::vector<std::string> hostile_strings() {
  return {R"("")",           R"("content")", R"("role")", R"("a" * 1000000)",        R"("%s%5d")",
          R"("\ud800\x")",   R"("{}")",      "\"\xff\"",  R"("x"|tojson(indent=9))", R"("items")",
          R"("1e400"|float)"};
}

/// What a mutation puts somewhere: pieces that make templates of another shape.
constexpr const char* kPieces[] = {
    "{% for x in range(99999) %}",
    "{% endfor %}",
    "{% set ns.x = [ns.x, ns.x] %}",
    "{% set ns = namespace(x=1, f=ns) %}",
    "{% macro m(a, b=m) %}{{ m(a) }}{% endmacro %}{{ m(m) }}",
    "{{ messages|map(attribute='content')|list|tojson(indent=2) }}",
    "{{ ((((((((messages)))))))) }}",
    "{{ -9223372036854775807 - 1 // -1 }}",
    "{{ 'x'[::-9223372036854775807] }}",
    "{{ loop.changed(loop) }}{{ loop(messages) }}",
    "{% if a is b %}{% elif %}{% else %}",
    "{{ messages|sort(attribute='role,content')|join }}",
    "{{ '%s %(x)s %-9999d'|format(1) }}",
    "{{ ('%*.*f%#-020x%a%c'|safe) % (99, -300, '1e9', x, '<', 1114111) }}",
    "{{ ('{!a}{x!r}{'|safe).format_map({'x': messages}) }}",
    "{{ '\xd9\xa3_\xef\xbc\x91'|int(base=0) }}{{ 'abc'.rfind('', 4, -9) }}",
    "{%- raw %}{{ x }}{% endraw -%}",
    "{{ 'ab'.center(99, '\xe2\x82\xac').split('') }}",
    "{% set x %}{{ x }}{{ x }}{% endset %}",
    "{#- -#}",
    "{{ messages|batch(2, 'x')|list }}{{ messages|groupby('role') }}",
    "{{ dict(a=1).update(b=2) }}{{ [1].append(2) }}",
    "\xf0\x9f\x99\x82",
    "{{",
    "%}",
    "|default(",
    " if ",
    " not in ",
    "**2**",
};

std::vector<std::string> healthy_templates() {
  std::vector<std::string> templates;
  const std::filesystem::path folder = VITRINE_CHAT_TEMPLATES_DIR;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    templates.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::ranges::sort(templates);
  if (templates.empty()) throw std::runtime_error("no templates in " + folder.string());
  return templates;
}

/// True where nothing was refused.
bool use(const std::string& name, const std::string& text) {
  try {
    ChatOptions options;
    options.variables_json = kVariables;
    options.now = 1732233600;
    options.max_work = 4 << 20;
    if (name == "tokenizer_config.json") {
      const auto chat = ChatTemplate::from_tokenizer_config(text, name);
      if (chat) chat->render(options);
      return chat.has_value();
    }
    const ChatTemplate chat = ChatTemplate::parse(text, name);
    chat.render(options);
    const ChatMessage hello{"user", "\xff hello"};
    chat.render({&hello, 1}, {.now = 0, .max_work = 4 << 20});
    return true;
  } catch (const Error& error) {
    testing::check_message(error);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(argc, argv, "fuzz_chat", "templates", [](uint64_t seed) {
    const auto healthy = healthy_templates();
    const auto run = [healthy, random = std::mt19937_64(seed),
                      mutator = testing::Mutator(seed, hostile_strings())](
                         long iteration) mutable -> std::optional<bool> {
      const std::string& text = healthy[static_cast<size_t>(iteration) % healthy.size()];
      if (iteration < static_cast<long>(healthy.size())) {
        use("template", text);  // a template may refuse the conversation
        return true;
      }
      std::string name = "template", changed = text;
      if (random() % 8 == 0) {
        name = "tokenizer_config.json";
        changed =
            nlohmann::json{{"chat_template", text}, {"eos_token", {{"content", "<e>"}}}}.dump();
      } else {
        for (uint64_t count = random() % 3; count > 0; --count) {
          changed.insert(random() % (changed.size() + 1), kPieces[random() % std::size(kPieces)]);
        }
      }
      testing::Files files = {{name, changed}};
      if (random() % 2 == 0) mutator.mutate(files);
      if (files.empty()) return std::nullopt;
      return use(files.begin()->first, files.begin()->second);
    };
    return testing::FuzzTarget{run, static_cast<long>(healthy.size())};
  });
}
