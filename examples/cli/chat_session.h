// SPDX-License-Identifier: Apache-2.0
// A conversation in a file (docs/chat.md): what /save writes and /load reads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model_hashes.h"
#include "vitrine/chat.h"
#include "vitrine/sample.h"

namespace cli {

struct ChatSession {
  FileHashes model;
  vitrine::SamplerOptions sampler;
  uint32_t branch = 0;   // whose random numbers the next answer draws
  std::string trace_id;  // of the conversation's logs, or empty
  /// Name and text of what else decides about an answer. They are compared and not taken over.
  std::vector<std::pair<std::string, std::string>> settings;
  /// A system message or none, then by turns the user's and the assistant's.
  std::vector<vitrine::ChatMessage> messages;
  std::vector<int32_t> tokens;  // what the model's sequence held
};

/// Branches are below this.
inline constexpr uint32_t kMaxChatBranch = 1000;

/// Replaces a session file or makes a new one, whole or not at all, mode 600. Refuses to replace
/// what is no session; throws kIo.
void write_session(const std::string& path, const ChatSession& session);

/// Throws kInvalidArgument and kBadFile with the file, the field and what was expected of it.
/// `vocab_size`: no token is beyond.
ChatSession read_session(const std::string& path, int64_t vocab_size);

/// The names of settings that are not the same in both, with commas.
std::string other_settings(const ChatSession& one, const ChatSession& other);

}  // namespace cli
