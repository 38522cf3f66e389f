// SPDX-License-Identifier: Apache-2.0
// check_lines: constraints for the Python oracles. One JSON object a line in, one out.
//
//   {"schema": S | "regex": R | "lark": G | "tags": T | "json": true, "format": "annotate",
//    "dialect": "draft7", "key_order": "schema", "lenient": true, "answers": true,
//    "integers": "any", "close_objects": true,
//    "texts": [hex, …], "masks": true, "walks": 5, "seed": 1}
//   {"verdicts": [true, …], "walked": [hex, …], "weakened": [pointer, …]} or {"refused": message},
//   {"wrong": message} where masks and accept() disagree
//
// With "masks", each text is followed token by token over a small vocabulary (all bytes and some
// longer tokens), and each mask is compared with trying every token. "walks": answers made of
// random allowed tokens, those that came to an end; a walk that comes to a dead end is wrong.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>

#include "vitrine/constrain.h"

namespace {

using namespace vitrine;
using json = nlohmann::ordered_json;

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return out;
}

std::vector<std::string> small_vocabulary() {
  std::vector<std::string> out(1);  // id 0 ends
  for (int byte = 0; byte < 256; ++byte) out.emplace_back(1, static_cast<char>(byte));
  for (const char* more : {"\"a",
                           "\":",
                           "\", \"",
                           "a\"",
                           "a\":",
                           "ab",
                           "abc",
                           "null",
                           "true",
                           "false",
                           "10",
                           "1,",
                           ".5",
                           "0.0",
                           "[]",
                           "{}",
                           "[1",
                           "], [",
                           "}, {",
                           "\"}",
                           "\"]",
                           "  ",
                           ", ",
                           ": ",
                           "\\u00",
                           "\\\"",
                           "\\n",
                           "a, b",
                           "\"\"",
                           "{\"",
                           "\"},",
                           "\"],",
                           "x\"}",
                           "1}",
                           "1]",
                           "-1",
                           "e5",
                           "\xc3\xa9",
                           "\xa9",
                           "\xe2\x82",
                           "foo",
                           "bar",
                           "foo\"",
                           "bar\":",
                           "\",\"",
                           "\":\"",
                           "\",\"a\":",
                           "a\",\"b",
                           "foobar",
                           "Foo-1",
                           "a longer one",
                           "abcdefghijklmnopqrstuvwxyz",
                           "\n\n",
                           "\n ",
                           "  \"",
                           " {",
                           "\n}",
                           "\\\"\":",
                           "o\":{\"",
                           "\":1,\"",
                           "x1",
                           "1x",
                           "a.b",
                           "a/b",
                           "éa",
                           "AB",
                           "\":\"a\",\"b\":"}) {
    out.emplace_back(more);
  }
  return out;
}

/// Follows a text by its longest tokens; a message where something disagrees.
std::string check_masks(const Grammar& grammar, const TokenTable& table, const std::string& text) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  for (size_t at = 0;;) {
    constraint->allowed_tokens(mask);
    for (int32_t id = 0; id < table.vocab_size(); ++id) {
      const bool allowed = mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
      const bool accepted = constraint->accept(id);
      if (accepted) constraint->rollback(1);
      if (allowed != accepted) {
        return "token " + std::to_string(id) + " after '" + text.substr(0, at) + "': mask " +
               std::to_string(allowed) + ", accept " + std::to_string(accepted);
      }
    }
    if (at == text.size()) return "";
    int32_t best = -1;
    for (int32_t id = 1; id < table.vocab_size(); ++id) {
      const std::string& bytes = table.bytes(id);
      if (text.compare(at, bytes.size(), bytes) == 0 &&
          (best < 0 || bytes.size() > table.bytes(best).size())) {
        best = id;
      }
    }
    if (!constraint->accept(best)) return "";
    at += table.bytes(best).size();
  }
}

std::string to_hex(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (char byte : text) {
    out += kDigits[static_cast<uint8_t>(byte) >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

/// Random allowed tokens until the answer ends; none where it does not within 400. Throws at a dead
/// end.
std::optional<std::string> walk(const Grammar& grammar, const TokenTable& table,
                                std::mt19937_64& rng) {
  const auto constraint = grammar.start();
  std::vector<uint32_t> mask(table.mask_words());
  std::string text;
  for (int step = 0; step < 400; ++step) {
    if (!constraint->allowed_tokens(mask))
      throw std::runtime_error("a dead end after '" + text + "'");
    if ((mask[0] & 1) && (step > 50 || rng() % 3 == 0)) return text;
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 1; id < table.vocab_size(); ++id) {
      if (!(mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1)) continue;
      allowed.push_back(id);
      const char last = table.bytes(id).back();
      if (last == '"' || last == '}' || last == ']') closing.push_back(id);
    }
    if (allowed.empty()) return text;
    // Mostly towards the end: a walk without aim seldom finds it.
    const auto& from = !closing.empty() && rng() % 3 != 0 ? closing : allowed;
    const int32_t id = from[rng() % from.size()];
    if (!constraint->accept(id)) throw std::runtime_error("refused what the mask allows");
    text += table.bytes(id);
  }
  return std::nullopt;
}

json answer(const TokenTable& table, const json& request) {
  GrammarOptions grammar_options;
  SchemaOptions& options = grammar_options.schema;
  // Verdicts are about every spelling, but where a request is about what an answer may have.
  if (!request.value("answers", false)) options = SchemaOptions::every_spelling();
  if (request.value("integers", "") == "any") options.integers = JsonIntegers::kAny;
  options.close_objects = request.value("close_objects", false);
  if (request.value("format", "") == "annotate") options.format = JsonFormat::kAnnotate;
  if (request.value("dialect", "") == "draft7") options.dialect = SchemaDialect::kDraft7;
  if (request.value("key_order", "") == "schema") options.key_order = JsonKeyOrder::kSchema;
  options.lenient = request.value("lenient", false);
  json out;
  try {
    const Grammar grammar =
        request.contains("regex") ? Grammar::regex(table, request["regex"].get<std::string>())
        : request.contains("lark")
            ? Grammar::lark(table, request["lark"].get<std::string>(), grammar_options)
        : request.contains("tags") ? Grammar::tags(table, request["tags"].dump(), grammar_options)
        : request.contains("json") ? Grammar::json(table, options)
                                   : Grammar::json_schema(table, request["schema"].dump(), options);
    out["weakened"] = json::array();
    for (const Weakening& dropped : grammar.weakened()) out["weakened"].push_back(dropped.pointer);
    out["verdicts"] = json::array();
    for (const json& hex : request["texts"]) {
      const std::string text = from_hex(hex);
      const auto constraint = grammar.start();
      bool accepted = true;
      for (char byte : text) {
        accepted = accepted && constraint->accept(1 + static_cast<uint8_t>(byte));
      }
      out["verdicts"].push_back(accepted && constraint->is_complete());
      if (!request.value("masks", false)) continue;
      const std::string wrong = check_masks(grammar, table, text);
      if (!wrong.empty()) return {{"wrong", wrong}};
    }
    std::mt19937_64 rng(request.value("seed", 1));
    out["walked"] = json::array();
    for (int i = 0; i < request.value("walks", 0); ++i) {
      if (const auto text = walk(grammar, table, rng)) out["walked"].push_back(to_hex(*text));
    }
  } catch (const Error& error) {
    out["refused"] = error.what();
  } catch (const std::runtime_error& error) {
    return {{"wrong", error.what()}};
  }
  return out;
}

}  // namespace

int main() {
  const TokenTable table = TokenTable::from_bytes(small_vocabulary(), {0});
  for (std::string line; std::getline(std::cin, line);) {
    std::cout
        << answer(table, json::parse(line)).dump(-1, ' ', false, json::error_handler_t::replace)
        << '\n'
        << std::flush;
  }
  return 0;
}
