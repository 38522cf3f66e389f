// SPDX-License-Identifier: Apache-2.0
// Reads bodies as llama-server's own routes have them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "http/route.h"
#include "vitrine/tokenizer.h"

namespace vitrine::http {

constexpr int kEndlessAnswer = 1 << 20;  ///< tokens; the context ends an answer before

/// What a body of `/completion` or `/infill` asks for.
struct NativeRequest {
  std::string model;                         ///< as the body names it; may be empty
  bool is_streamed = false;                  ///< "stream"
  bool returns_tokens = false;               ///< "return_tokens"
  bool has_timings = false;                  ///< "timings_per_token"
  int64_t slot = -1;                         ///< "id_slot", which is told back and does nothing
  std::vector<std::string> response_fields;  ///< what of the last object is told; empty: all
  Json settings;                             ///< "generation_settings" of the answer
  std::vector<ServeRequest> requests;        ///< the answers of a prompt side by side
};

/// Reads a body's prompts as ids: a text, a list of ids and texts, an object with "prompt_string",
/// or a list of these. Special tokens that a text spells mean these tokens, as llama-server has it,
/// and a first text gets what the model puts at its beginning. Throws what refuse_field() throws;
/// `field` is what messages call it.
std::vector<std::vector<int32_t>> read_native_prompts(const Tokenizer& tokenizer,
                                                      const nlohmann::json& prompts,
                                                      const std::string& field);

/// Reads what a body says beside its prompts, for these prompts. Throws Error.
NativeRequest read_native_request(const House& house, const nlohmann::json& body,
                                  const std::vector<std::vector<int32_t>>& prompts);

}  // namespace vitrine::http
