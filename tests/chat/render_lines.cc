// SPDX-License-Identifier: Apache-2.0
// Renders chat templates from standard input, for oracle_test.py: one JSON object a line with
// "template" (text) or "config" (a tokenizer_config.json), "variables" and "now"; one line back
// with "text", or with "error" and "kind".
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "vitrine/chat.h"

int main() {
  using Json = nlohmann::ordered_json;
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json input = Json::parse(line);
    Json output;
    try {
      vitrine::ChatOptions options;
      options.variables_json = input.at("variables").dump();
      options.add_generation_prompt = input.value("add_generation_prompt", false);
      if (input.contains("now")) options.now = input.at("now").get<int64_t>();
      if (input.contains("config")) {
        const auto chat = vitrine::ChatTemplate::from_tokenizer_config(input.at("config").dump(),
                                                                       "tokenizer_config.json");
        output["text"] = chat ? Json(chat->render(options)) : Json(nullptr);
      } else {
        const auto chat =
            vitrine::ChatTemplate::parse(input.at("template").get<std::string>(), "template");
        output["text"] = chat.render(options);
      }
    } catch (const vitrine::Error& error) {
      output = {{"error", error.what()}, {"kind", vitrine::error_kind_name(error.kind())}};
    }
    std::cout << output.dump() << "\n";
  }
  return std::cout.flush() ? 0 : 1;
}
