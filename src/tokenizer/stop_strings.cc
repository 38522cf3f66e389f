// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "vitrine/tokenizer.h"

namespace vitrine {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    if (!string.empty()) continue;
    throw Error(ErrorKind::kInvalidArgument, "a stop string is empty; expected one byte or more");
  }
}

std::string StopStrings::add(std::string_view piece, const MayBegin& may_begin) {
  if (is_stopped_) return "";
  for (size_t i = 0; i < piece.size(); ++i) {
    const bool is_first = std::ranges::any_of(
        strings_, [&](const std::string& string) { return string[0] == piece[i]; });
    begins_ += is_first && (!may_begin || may_begin(i)) ? '\1' : '\0';
  }
  held_ += piece;
  // The string that is complete first; of those that end together the one that begins first.
  size_t first_end = std::string::npos, first_begin = 0;
  const std::string* first = nullptr;
  for (const std::string& string : strings_) {
    size_t begin = held_.find(string);
    while (begin != std::string::npos && begins_[begin] == '\0') {
      begin = held_.find(string, begin + 1);
    }
    if (begin == std::string::npos) continue;
    const size_t end = begin + string.size();
    if (end < first_end || (end == first_end && begin < first_begin)) {
      first_end = end;
      first_begin = begin;
      first = &string;
    }
  }
  if (first != nullptr) {
    is_stopped_ = true;
    found_ = *first;
    held_.resize(first_begin);
    return finish();
  }
  size_t longest = 0;  // end of the text that begins a string
  for (const std::string& string : strings_) {
    for (size_t size = std::min(string.size() - 1, held_.size()); size > longest; --size) {
      if (begins_[held_.size() - size] != '\0' &&
          std::string_view(held_).ends_with(std::string_view(string).substr(0, size))) {
        longest = size;
      }
    }
  }
  std::string certain = held_.substr(0, held_.size() - longest);
  held_.erase(0, certain.size());
  begins_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() {
  begins_.clear();
  return std::exchange(held_, "");
}

}  // namespace vitrine
