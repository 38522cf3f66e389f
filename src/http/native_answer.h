// SPDX-License-Identifier: Apache-2.0
// Writes answers as llama-server's own routes have them.
#pragma once

#include <memory>

#include "http/native_request.h"

namespace vitrine::http {

/// `model` is what the answers call it; `tokenizer` stays.
std::unique_ptr<AnswerWriter> make_native_writer(const NativeRequest& request,
                                                 const Tokenizer& tokenizer, std::string model);

/// The reply of a route that answers what `request` was read as. Throws what admit_requests()
/// throws.
Reply native_reply(const House& house, const Request& request, NativeRequest read);

/// How long an answer took, by llama-server's names.
Json native_timings(const ServeCounts& counts);

}  // namespace vitrine::http
