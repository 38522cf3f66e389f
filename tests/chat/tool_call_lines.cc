// SPDX-License-Identifier: Apache-2.0
// tool_call_lines TOKENIZER_JSON: random answers that may call functions, for the Python oracle. No
// model chooses: each token is drawn from the mask. One JSON object a line in, one out.
//
//   {"format": "hermes", "tools": […], "choice": "auto", "seed": 1, "room": 5, "wishes":
//   ["<think>"],
//    "prompt": "", "template": "", "parallel": true, "special": ["<|call|>"]}
//   {"text": …, "is_complete": true, "content": …, "reasoning": …, "tool_calls": [{"name": …,
//    "arguments": …}]}
//
// `room`: how many more tokens an answer may have than it is known to need. `wishes`: texts that
// are written now and then, as far as the mask lets them; `first` is at the beginning. `special`:
// ids that the vocabulary gets on top, whose bytes these are.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "vitrine/chat_output.h"
#include "vitrine/chat_tools.h"
#include "vitrine/constrain.h"
#include "vitrine/tokenizer.h"

namespace {

using namespace vitrine;
using nlohmann::json;

constexpr double kWish = 0.25, kEnd = 0.03;  // how often a token begins a wish, or ends an answer

std::vector<int32_t> ids_of(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> ids;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<int32_t>(word * 32) + __builtin_ctz(bits));
    }
  }
  return ids;
}

/// Draws one answer.
class RandomAnswer {
 public:
  RandomAnswer(const TokenTable& table, const Grammar& grammar, const json& request)
      : table_(table),
        constraint_(grammar.start()),
        wishes_(request.value("wishes", std::vector<std::string>())),
        wish_(request.value("first", "")),
        rng_(request.at("seed").get<uint32_t>()) {}

  std::string draw(uint32_t room) {
    std::string text;
    std::vector<uint32_t> mask(table_.mask_words());
    const uint32_t limit = constraint_->tokens_to_finish() + room;
    for (uint32_t used = 0;; ++used) {
      if (!constraint_->allowed_tokens(mask)) break;
      constraint_->keep_within(mask, limit - used);
      const int32_t id = choose(ids_of(mask));
      if (id < 0 || table_.bytes(id).empty()) break;
      if (!constraint_->accept(id)) throw std::runtime_error("a token of the mask is refused");
      text += table_.bytes(id);
    }
    return text;
  }
  bool is_complete() const { return constraint_->is_complete(); }

 private:
  bool happens(double probability) { return std::bernoulli_distribution(probability)(rng_); }

  int32_t choose(const std::vector<int32_t>& allowed) {
    if (allowed.empty()) return -1;
    const int32_t end = allowed.front();  // if it is there
    const bool may_end = table_.bytes(end).empty();
    if (may_end && (allowed.size() == 1 || (wish_.empty() && happens(kEnd)))) return end;
    if (wish_.empty() && !wishes_.empty() && happens(kWish)) {
      wish_ = wishes_[rng_() % wishes_.size()];
    }
    int32_t best = -1;
    for (const int32_t id : allowed) {
      const std::string& bytes = table_.bytes(id);
      const bool is_longer = best < 0 || bytes.size() > table_.bytes(best).size();
      if (!bytes.empty() && wish_.starts_with(bytes) && is_longer) best = id;
    }
    if (best >= 0) {
      wish_.erase(0, table_.bytes(best).size());
      return best;
    }
    wish_.clear();
    const int32_t id = allowed[rng_() % allowed.size()];
    return table_.bytes(id).empty() ? allowed.back() : id;
  }

  const TokenTable& table_;
  std::unique_ptr<Constraint> constraint_;
  const std::vector<std::string> wishes_;
  std::string wish_;  // what is left of it
  std::mt19937 rng_;
};

class Program {
 public:
  explicit Program(const std::string& path) : tokenizer_(Tokenizer::from_file(path)) {}

  json answer(const json& request) {
    const std::string prompt = request.value("prompt", ""), source = request.value("template", "");
    const ChatTools tools = ChatTools::parse(request.at("tools").dump(), "tools");
    const std::string format = request.at("format").get<std::string>();
    const ToolCallTags tags =
        tool_call_tags(format, tools, tokenizer_,
                       {.choice = ToolChoice::parse(request.at("choice").get<std::string>()),
                        .parallel = request.value("parallel", true),
                        .prompt = prompt,
                        .template_source = source});
    GrammarOptions options;
    options.schema.whitespace = JsonWhitespace::kOneLine;
    const TokenTable& table = table_of(request.value("special", std::vector<std::string>()));
    const Grammar grammar = cache_.tags(table, tags.json, options);
    RandomAnswer random(table, grammar, request);
    const std::string text = random.draw(request.at("room").get<uint32_t>());
    ChatOutputParser parser(format, {.prompt = prompt, .tools_json = tools.json()});
    parser.add(text);
    parser.finish();
    json calls = json::array();
    for (const ToolCall& call : parser.answer().tool_calls) {
      calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
    }
    return {{"text", text},
            {"is_complete", random.is_complete()},
            {"content", parser.answer().content},
            {"reasoning", parser.answer().reasoning},
            {"tool_calls", calls}};
  }

 private:
  const TokenTable& table_of(const std::vector<std::string>& special) {
    const auto known = tables_.find(special);
    if (known != tables_.end()) return known->second;
    std::vector<std::string> bytes(static_cast<size_t>(tokenizer_.vocab_size()));
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      if (!tokenizer_.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer_.token_bytes(id);
    }
    bytes.insert(bytes.end(), special.begin(), special.end());
    return tables_.emplace(special, TokenTable::from_bytes(std::move(bytes), {0})).first->second;
  }

  const Tokenizer tokenizer_;
  std::map<std::vector<std::string>, TokenTable> tables_;
  GrammarCache cache_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: tool_call_lines TOKENIZER_JSON\n", stderr);
    return 2;
  }
  try {
    Program program(argv[1]);
    std::string line;
    while (std::getline(std::cin, line)) {
      json answer;
      try {
        answer = program.answer(json::parse(line));
      } catch (const Error& error) {
        answer = {{"error", error.what()}};
      }
      std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
