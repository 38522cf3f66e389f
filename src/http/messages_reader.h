// SPDX-License-Identifier: Apache-2.0
// Bodies of Anthropic's messages.
#pragma once

#include <string_view>

#include "http/message.h"
#include "vitrine/openai.h"

namespace vitrine::http {

/// A body as it was read.
struct MessagesRequest {
  OpenAiRequest chat;          ///< the same, with one request
  bool shows_thinking = true;  ///< "thinking.display" is not "omitted"
};

/// Reads a body. Throws HttpError (400) and Error, whose messages begin with the field's name in
/// quotes. `counts`: a prompt is to be counted, so that "max_tokens" may be missing.
MessagesRequest read_messages(std::string_view body, bool counts);

}  // namespace vitrine::http
