// SPDX-License-Identifier: Apache-2.0
// Private to the library: a task's items, read from lines and made ready to be asked.
#pragma once

#include <string>
#include <string_view>

#include "evaluation/item.h"

namespace vitrine::evaluation {

/// Reads items, one JSON object a line; lines of white space are passed over. Throws kBadFile, with
/// `file` and the line, for what is no UTF-8 or JSON, too large or deep, without an id, or with an
/// id that stands twice.
std::vector<Item> read_items(std::string_view text, const std::string& file);

/// Fills in the task's templates, gives `critical` ids their mark, and checks each item: fields
/// that nobody reads, and what its kind and the scorer want. `file` begins messages.
void finish_items(Task& task, const std::string& file);

/// Leaves at most `count` items: the critical ones, then the first by an order that the seed, the
/// task's name and the ids make.
void choose_items(Task& task, uint64_t seed, size_t count);

}  // namespace vitrine::evaluation
