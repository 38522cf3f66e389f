// SPDX-License-Identifier: Apache-2.0
// --lora: adapters that a command's sequences go through, and how logs name them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model_hashes.h"
#include "vitrine/audit.h"

namespace CLI {
class App;
}

namespace cli {

/// A path, and the scale of its part of the sum.
using LoraParts = std::vector<std::pair<std::string, float>>;

/// Adds --lora to a command that loads one model.
void add_lora(CLI::App& command, std::vector<std::string>& given);
/// "PATH:SCALE" taken apart; a path that is there may hold a colon. Throws kInvalidArgument for one
/// that is not there.
LoraParts lora_parts(const std::vector<std::string>& given);

/// What a log's head says of them: an engine option, and hashes of their files.
void add_lora_to(const std::vector<std::string>& given, vitrine::LogHeader& header);
/// What a log's head names; empty where it names none. Throws kInvalidArgument where it cannot be
/// read.
LoraParts logged_lora(const vitrine::LogHeader& header);
/// The SHA-256 of their files, as logs name them.
FileHashes lora_hashes(const LoraParts& parts, HashCache cache = HashCache::kUse);

}  // namespace cli
