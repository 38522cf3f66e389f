// SPDX-License-Identifier: Apache-2.0
// Private to the library: what an item of a suite asks of a target.
#pragma once

#include "evaluation/item.h"

namespace vitrine::evaluation {

/// The request of an item of kAnswer. Throws kUnsupported where it has tools or messages that the
/// target cannot take.
ServeRequest answer_request(const Task& task, const Item& item, bool takes_messages);

/// The prompt of an item of kChoice with its choices, or of kAnswer with its reference.
ScoringRequest scoring_request(const Task& task, const Item& item, bool takes_messages);

/// Whether an answer's reference is scored, too.
bool has_reference(const Item& item);

}  // namespace vitrine::evaluation
