// SPDX-License-Identifier: Apache-2.0
// Private to the library: words that made items are of, and how long a text is in tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/item.h"
#include "evaluation/random.h"

namespace vitrine::evaluation {

const std::vector<std::string>& nouns();
const std::vector<std::string>& adjectives();
const std::vector<std::string>& verbs();
const std::vector<std::string>& first_names();
const std::vector<std::string>& cities();

/// `count` different words: nouns, adjectives and verbs in random order, and made-up ones where
/// these are not enough.
std::vector<std::string> different_words(Random& random, size_t count);

/// How many tokens a text has, about: one for a line's end, a digit, a blank before a digit or
/// another mark, and one for each six letters of a word, begun ones too. It is a little more than
/// byte pair encodings of 32,000 and more tokens make of English, so that a prompt is no longer
/// than it says.
int64_t estimated_tokens(std::string_view text);

/// The largest number from `least` to 10,000,000 for which `fits` is true, which is true below and
/// false above; `least` where it is never true.
int64_t largest_that_fits(int64_t least, const std::function<bool(int64_t)>& fits);

/// The lengths that a maker makes prompts of: `lengths`, without those above `longest`.
std::vector<int64_t> wanted_lengths(const Json& options);

/// Makes `count` items of each wanted length, the first of each before the second of each.
/// `make_one` gives an item's fields; its id is LENGTH-NUMBER. `name` is the stream of its numbers.
std::vector<Item> make_by_length(
    const Json& options, uint64_t seed, int64_t count, const std::string& name,
    const std::function<Json(Random& random, int64_t length, int64_t number)>& make_one);

/// Makes `count` items, with ids "NUMBER".
std::vector<Item> make_by_number(
    uint64_t seed, int64_t count, const std::string& name,
    const std::function<Json(Random& random, int64_t number)>& make_one);

}  // namespace vitrine::evaluation
