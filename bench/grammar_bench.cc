// SPDX-License-Identifier: Apache-2.0
// Time of masks of grammars in GBNF and Lark's notation, of tags and of regular expressions, in
// microseconds: along a text, the first time (what the grammar makes on demand included) and again;
// and how many masks two threads make with one grammar. One JSON object on standard output.
//
//     build/bench/grammar_bench TOKENIZER_JSON [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "vitrine/constrain.h"
#include "vitrine/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<int32_t>;

constexpr const char* kJsonGbnf = R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
)";

constexpr const char* kSumsGbnf = R"text(root   ::= (sum "\n")+
sum    ::= sum [-+] term | term
term   ::= term [*/] factor | factor
factor ::= [0-9]+ | [a-z] [a-z0-9_]* | "(" sum ")" | "-" factor
)text";

constexpr const char* kProgramLark = R"text(%ignore /[ \n]+/
start: statement+
statement: NAME "=" sum ";"
         | "if" "(" sum ")" block ("else" block)?
         | "while" "(" sum ")" block
         | "return" sum? ";"
         | call ";"
block: "{" statement* "}"
call: NAME "(" (sum ("," sum)*)? ")"
sum: term | sum ("+" | "-" | "<" | "==") term
term: atom | term ("*" | "/") atom
atom: NAME | NUMBER | STRING | "(" sum ")" | call
NAME: /[a-z_][a-z0-9_]*/
NUMBER: /[0-9]+(\.[0-9]+)?/
STRING: /"[^"\\\n]*"/
)text";

constexpr const char* kLines =
    R"(([0-9]{4}-[0-9]{2}-[0-9]{2} (INFO|WARN|ERROR) [a-z_.]{3,40}: [^\n]{0,120}\n)+)";

std::string repeated(int count, const std::function<std::string(const std::string&)>& one) {
  std::string out;
  for (int i = 0; i < count; ++i) out += one(std::to_string(i));
  return out;
}

std::string tags_of(int count) {
  return R"({"triggers": ["<tool"], "tags": [)" +
         repeated(
             count,
             [](const std::string& i) {
               return std::string(i == "0" ? "" : ", ") + R"({"begin": "<tool name=look_up_)" + i +
                      R"(>", "schema": {"type": "object", "required": ["place_)" + i +
                      R"("], "additionalProperties": false, "properties": {"place_)" + i +
                      R"(": {"type": "string"}, "days": {"type": "integer"}}}, "end": "</tool>"})";
             }) +
         "]}";
}

struct Case {
  const char* name;
  std::function<vitrine::Grammar(const vitrine::TokenTable&)> make;
  std::string text;
};

std::vector<Case> cases() {
  using vitrine::Grammar;
  using Table = vitrine::TokenTable;
  const auto gbnf = [](const char* text) {
    return [text](const Table& table) { return Grammar::gbnf(table, text); };
  };
  return {
      {"gbnf_json", gbnf(kJsonGbnf),
       "{\"items\": [" +
           repeated(30,
                    [](const std::string& i) {
                      return std::string(i == "0" ? "" : ", ") +
                             "{\"name\": " + "\"The thing number " + i + "\", \"size\": " + i +
                             ".25, \"tags\": [true, null, \"a\\n\"]}";
                    }) +
           "]}"},
      {"gbnf_sums", gbnf(kSumsGbnf),
       repeated(40,
                [](const std::string& i) {
                  return "first_value*(" + i + "+x2)/-(3*((y)-" + i + "))+total-17\n";
                })},
      {"lark_program", [](const Table& table) { return Grammar::lark(table, kProgramLark); },
       repeated(
           20,
           [](const std::string& i) {
             return "count_" + i + " = count + 2 * (left - \"a text\");\nif (count < " + i +
                    ") { print(count, other(1, 2.5)); } else { while (x == 1) { x = x - 1; } }\n";
           })},
      {"tags_50_tools", [](const Table& table) { return Grammar::tags(table, tags_of(50)); },
       repeated(15,
                [](const std::string& i) {
                  return "Let me look this up for you, it will not take long. <tool name=look_up_" +
                         i + ">{\"place_" + i +
                         "\": \"The old town\", \"days\": 3}</tool> So that is that. ";
                })},
      {"regex_lines", [](const Table& table) { return Grammar::regex(table, kLines); },
       repeated(30,
                [](const std::string& i) {
                  return "2024-05-17 WARN disk.space_left: The volume number " + i +
                         " is nearly full!\n";
                })},
  };
}

vitrine::TokenTable table_of(const vitrine::Tokenizer& tokenizer) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return vitrine::TokenTable::from_bytes(std::move(bytes), {});
}

/// Appends the time of each mask along the tokens.
void follow(vitrine::Constraint& constraint, const Tokens& tokens, std::vector<uint32_t>& mask,
            std::vector<double>* times) {
  for (const int32_t token : tokens) {
    const Clock::time_point start = Clock::now();
    constraint.allowed_tokens(mask);
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    if (times != nullptr) times->push_back(taken.count());
    if (!constraint.accept(token)) throw std::runtime_error("a grammar refuses its own text");
  }
}

void print(const char* name, std::vector<double> times) {
  std::ranges::sort(times);
  const auto at = [&times](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("\"%s\": {\"n\": %zu, \"p50\": %.2f, \"p99\": %.1f, \"p99.9\": %.1f, \"p100\": %.1f}",
              name, times.size(), at(0.5), at(0.99), at(0.999), at(1));
}

/// Masks a second that as many threads make together as there are grammars.
double masks_per_second(const std::vector<vitrine::Grammar>& grammars, const Tokens& tokens,
                        size_t num_words, int rounds) {
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (const vitrine::Grammar& grammar : grammars) {
    threads.emplace_back([&grammar, &tokens, num_words, rounds] {
      std::vector<uint32_t> mask(num_words);
      for (int round = 0; round < rounds; ++round) {
        follow(*grammar.start(), tokens, mask, nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> taken = Clock::now() - start;
  return static_cast<double>(grammars.size() * tokens.size()) * rounds / taken.count();
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  if (argc < 2 || argc > 3 || rounds < 1) {
    std::fprintf(stderr, "usage: grammar_bench TOKENIZER_JSON [ROUNDS]\n");
    return 2;
  }
  const auto tokenizer = vitrine::Tokenizer::from_file(argv[1]);
  const vitrine::TokenTable table = table_of(tokenizer);
  table.limit_shared(0);  // each grammar makes its own masks, the first time
  std::vector<uint32_t> mask(table.mask_words());
  std::printf("{\"vocabulary\": %d", table.vocab_size());
  for (const Case& one : cases()) {
    const Tokens tokens = tokenizer.encode(one.text, false);
    std::vector<double> first, again;
    for (int round = 0; round < rounds; ++round) {
      const vitrine::Grammar grammar = one.make(table);
      follow(*grammar.start(), tokens, mask, &first);
      follow(*grammar.start(), tokens, mask, &again);
    }
    std::printf(",\n\"%s\": {", one.name);
    print("first_us", std::move(first));
    std::printf(", ");
    print("again_us", std::move(again));
    std::vector<vitrine::Grammar> grammars = {one.make(table)};
    const double alone = masks_per_second(grammars, tokens, mask.size(), rounds * 10);
    grammars.push_back(grammars[0]);
    const double shared = masks_per_second(grammars, tokens, mask.size(), rounds * 10);
    grammars[1] = one.make(table);
    const double own = masks_per_second(grammars, tokens, mask.size(), rounds * 10);
    std::printf(
        ", \"masks_per_second\": {\"one_thread\": %.0f, \"two_threads_one_grammar\": %.0f, "
        "\"two_threads_two_grammars\": %.0f}}",
        alone, shared, own);
  }
  std::printf("}\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "grammar_bench: %s\n", error.what());
  return 1;
}
