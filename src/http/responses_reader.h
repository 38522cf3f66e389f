// SPDX-License-Identifier: Apache-2.0
// Bodies of OpenAI's responses.
#pragma once

#include <string_view>

#include "http/message.h"
#include "vitrine/openai.h"

namespace vitrine::http {

/// A body as it was read.
struct ResponsesRequest {
  OpenAiRequest chat;  ///< the same, with one request
  Json shown;          ///< the fields of the request that a response repeats
};

/// Reads a body. Throws HttpError and Error, whose messages begin with the field's name in quotes.
ResponsesRequest read_responses(std::string_view body);

}  // namespace vitrine::http
