// SPDX-License-Identifier: Apache-2.0
// Private to the room: vocabularies that rank their tokens, tekken.json and tiktoken.model.
#pragma once

#include <string>

namespace vitrine::checkpoint {

/// Returns the path of such a vocabulary in a model's folder; empty where there is none.
std::string find_rank_tokenizer(const std::string& folder);

/// Reads the vocabulary as a tokenizer.json. Throws kIo; kBadFile for a broken one, with the file,
/// the field or line and what was expected; kUnsupported for a tiktoken.model of another family
/// than Kimi's, which is the only one whose pattern is known.
std::string rank_tokenizer_json(const std::string& path);

}  // namespace vitrine::checkpoint
