// SPDX-License-Identifier: Apache-2.0
// generate_lines MODEL: constrained generations for the Python oracle. One JSON object a line in,
// one out.
//
//   {"schema": S, "prompt": TEXT, "extra": 5, "temperature": 1.5, "seed": 1}
//   {"text": TEXT, "reason": "complete", "is_complete": true, "room": 17, "limited": 3}
//
// `extra`: how many more tokens an answer may have than it is known to need.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "vitrine/constrain.h"
#include "vitrine/engine.h"

namespace {

using namespace vitrine;
using nlohmann::json;

class Program {
 public:
  explicit Program(const std::string& model)
      : tokenizer_(Tokenizer::from_file(model + "/tokenizer.json")) {
    EngineOptions options;
    options.threads = 1;
    options.max_context = 1024;
    options.audit_mode = AuditMode::kNone;
    engine_ = Engine::load(model, options);
    std::vector<std::string> bytes(static_cast<size_t>(engine_->summary().vocab_size));
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      if (!tokenizer_.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer_.token_bytes(id);
    }
    table_.emplace(TokenTable::from_bytes(std::move(bytes), engine_->summary().eos_token_ids));
  }

  json answer(const json& request) {
    SchemaOptions schema;
    schema.whitespace = JsonWhitespace::kOneLine;
    const auto constraint =
        Grammar::json_schema(*table_, request.at("schema").dump(), schema).start();
    GenerateOptions options;
    options.constraint = constraint.get();
    options.max_new_tokens =
        static_cast<int>(constraint->tokens_to_finish()) + request.at("extra").get<int>();
    options.sampler.temperature = request.at("temperature").get<float>();
    options.sampler.seed = request.at("seed").get<uint64_t>();
    const auto prompt = tokenizer_.encode(request.at("prompt").get<std::string>(), true);
    const GenerateResult result = generate(*engine_, prompt, options);
    std::string text;
    for (const int32_t id : result.tokens) text += table_->bytes(id);
    return {{"text", text},
            {"reason", stop_reason_name(result.reason)},
            {"is_complete", result.is_complete},
            {"room", options.max_new_tokens},
            {"limited", result.constraint.limited}};
  }

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::optional<TokenTable> table_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: generate_lines MODEL\n", stderr);
    return 2;
  }
  try {
    Program program(argv[1]);
    std::string line;
    while (std::getline(std::cin, line)) {
      std::cout << program.answer(json::parse(line)).dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
