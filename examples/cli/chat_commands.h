// SPDX-License-Identifier: Apache-2.0
// The lines of a conversation that begin with /.
#pragma once

#include <string>

#include "chat_conversation.h"

namespace cli {

/// Follows a command; false: the conversation ends.
bool obey(Conversation& conversation, ChatOutput& output, const std::string& line);

}  // namespace cli
