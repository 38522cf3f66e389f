// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "vitrine/evaluation.h"

namespace vitrine {

DividedIds divide_ids(const std::string& prompt, std::span<const std::string> continuations,
                      const std::function<std::vector<int32_t>(const std::string& text)>& encode) {
  const size_t end = prompt.find_last_not_of(" \t\n") + 1;
  DividedIds divided;
  divided.context = encode(end == 0 ? prompt : prompt.substr(0, end));
  size_t shared = divided.context.size();
  for (const std::string& text : continuations) {
    divided.continuations.push_back(encode(prompt + text));
    const auto differing = std::ranges::mismatch(divided.context, divided.continuations.back());
    shared = std::min(shared, static_cast<size_t>(differing.in1 - divided.context.begin()));
  }
  divided.context.resize(std::max<size_t>(shared, std::min<size_t>(1, divided.context.size())));
  for (std::vector<int32_t>& ids : divided.continuations) {
    ids.erase(ids.begin(), ids.begin() + std::min(std::ssize(ids), std::ssize(divided.context)));
  }
  return divided;
}

}  // namespace vitrine
