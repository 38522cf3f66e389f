// SPDX-License-Identifier: Apache-2.0
// Seconds that grammars, regular expressions and schemas of 10 MB take until they are refused, or
// until their first mask over single bytes, and the memory meanwhile. Rows of a table in Markdown
// on standard output; `--schemas` measures no others, and so on.
//
//     build/bench/hostile_bench [--gbnf] [--regex] [--schemas]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/constrain.h"
#include "vitrine/core.h"

namespace {

using vitrine::Grammar;
using vitrine::TokenTable;

constexpr size_t kBytes = 10'000'000;

/// `head`, then what `one` makes of 0, 1, 2, …, as often as fits, then `tail`.
std::string fill(std::string head, const std::function<std::string(size_t)>& one,
                 std::string_view tail = {}, size_t limit = kBytes) {
  for (size_t i = 0;; ++i) {
    const std::string next = one(i);
    if (head.size() + next.size() + tail.size() > limit) break;
    head += next;
  }
  return head += tail;
}

std::string count(std::string head, size_t times, const std::function<std::string(size_t)>& one) {
  for (size_t i = 0; i < times; ++i) head += one(i);
  return head;
}

/// r0 leads to r1, that to r2 and so on, each with `more` behind.
std::string chain_of_rules(size_t times, const std::string& more) {
  const auto rule = [](size_t i) { return "r" + std::to_string(i); };
  const auto line = [&](size_t i) { return rule(i) + " ::= \"a\" " + rule(i + 1) + more + "\n"; };
  return count("root ::= r0\n", times, line) + rule(times) + " ::= \"b\"\n";
}

std::string repeat(std::string_view text, size_t limit = kBytes) {
  return fill(
      "", [&](size_t) { return std::string(text); }, "", limit);
}

std::string nested(std::string_view open, std::string_view middle, std::string_view close) {
  const size_t depth = kBytes / (open.size() + close.size());
  return repeat(open, depth * open.size()) + std::string(middle) +
         repeat(close, depth * close.size());
}

struct Text {
  const char* kind;  // "gbnf", "regex", "schemas"
  const char* what;
  std::function<std::string()> make;
};

std::vector<Text> texts() {
  const auto name = [](const char* head, size_t i) { return head + std::to_string(i); };
  return {
      {"gbnf", "one alternation of literals",
       [=] {
         return fill(R"(root ::= "a")", [=](size_t i) { return " | \"" + name("b", i) + "\""; });
       }},
      {"gbnf", "240,000 rules in a chain", [] { return chain_of_rules(240'000, ""); }},
      {"gbnf", "280,000 rules beside each other",
       [=] {
         return count(
             count("root ::= \"a\"", 280'000, [=](size_t i) { return name("|r", i); }) + "\n",
             280'000, [=](size_t i) { return name("r", i) + "::=\"" + name("b", i) + "\"\n"; });
       }},
      {"gbnf", "220,000 rules that lead back to the root",
       [] { return chain_of_rules(220'000, " | root"); }},
      {"gbnf", "literals in a row",
       [=] { return fill("root ::=", [=](size_t i) { return " \"" + name("a", i) + "\""; }); }},
      {"gbnf", "classes in a row", [] { return "root ::= " + repeat("[a-z0-9]"); }},
      {"gbnf", "repeated classes side by side",
       [=] {
         return fill("root ::= \"a\"", [=](size_t i) { return name("|[a-z]{1,9}\"", i) + "\""; });
       }},
      {"gbnf", "80,000 of these",
       [=] {
         return count("root ::= \"a\"", 80'000,
                      [=](size_t i) { return name("|[a-z]{1,9}\"", i) + "\""; });
       }},
      {"gbnf", "within each other", [] { return "root ::= " + nested("(", "\"a\"", ")"); }},
      {"gbnf", "one class", [] { return "root ::= [" + repeat("\xf0\x9f\x98\x80z") + "]"; }},
      {"regex", "one literal", [] { return repeat("abcdefghij"); }},
      {"regex", "literals side by side",
       [=] { return fill("a", [=](size_t i) { return name("|b", i); }); }},
      {"regex", "`.*a` again and again", [] { return repeat(".*a"); }},
      {"regex", "`[a-z0-9]*` in a row", [] { return repeat("[a-z0-9]*"); }},
      {"regex", "within each other", [] { return nested("(", "a", ")"); }},
      {"schemas", "an enumeration of strings",
       [=] {
         return fill(
             R"({"enum":["a")",
             [](size_t i) { return ",\"" + std::string(90, 'b') + std::to_string(i) + "\""; },
             "]}");
       }},
      {"schemas", "properties",
       [=] {
         return fill(R"({"properties":{"a":true)",
                     [](size_t i) {
                       return ",\"property number " + std::to_string(i) + R"(":{"type":"string"})";
                     },
                     "}}");
       }},
      {"schemas", "`anyOf`",
       [=] {
         return fill(
             R"({"anyOf":[true)",
             [](size_t i) { return R"(,{"type":"array","minItems":)" + std::to_string(i) + "}"; },
             "]}");
       }},
      {"schemas", "`allOf`",
       [=] {
         return fill(
             R"({"allOf":[true)",
             [](size_t i) { return R"(,{"type":"array","minItems":)" + std::to_string(i) + "}"; },
             "]}");
       }},
      {"schemas", "within each other", [] { return nested(R"({"not":)", "true", "}"); }},
  };
}

std::string measure(const Text& text) {
  const std::string source = text.make();
  std::vector<std::string> bytes(1);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  const TokenTable table = TokenTable::from_bytes(std::move(bytes), {0});
  std::vector<uint32_t> mask(table.mask_words());
  const auto start = std::chrono::steady_clock::now();
  std::string end = "compiles";
  try {
    const std::string_view kind = text.kind;
    const Grammar grammar = kind == "gbnf"    ? Grammar::gbnf(table, source)
                            : kind == "regex" ? Grammar::regex(table, source)
                                              : Grammar::json_schema(table, source);
    grammar.start()->allowed_tokens(mask);
  } catch (const vitrine::Error& error) {
    end = error.what();
    if (end.size() > 70) end = end.substr(0, 67) + "...";
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  char line[256];
  std::snprintf(line, sizeof(line), "| %s: %s (%.1f MB) | %.2f |", text.kind, text.what,
                static_cast<double>(source.size()) / 1e6, seconds.count());
  return line + (" " + end + " |");
}

/// In a process of its own, so that its peak of memory is its own.
bool measure_alone(const Text& text) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    std::printf("%s", measure(text).c_str());
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  rusage used{};
  if (wait4(child, &status, 0, &used) != child) return false;
  if (WIFSIGNALED(status)) {
    std::printf("| %s: %s | | signal %d |", text.kind, text.what, WTERMSIG(status));
  }
  std::printf(" %ld MB |\n", used.ru_maxrss / 1024);
  return status == 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("| text | seconds | ends with | memory |\n|---|---|---|---|\n");
  bool ok = true;
  for (const Text& text : texts()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= argv[i] == "--" + std::string(text.kind);
    if (wanted) ok = measure_alone(text) && ok;
  }
  return ok ? 0 : 1;
}
