// SPDX-License-Identifier: Apache-2.0
#include "vitrine/evaluation.h"

#include <algorithm>

namespace vitrine {

const EvaluatedItem* Evaluation::find(std::string_view task, std::string_view id) const {
  const auto found = std::ranges::find_if(
      items, [&](const EvaluatedItem& item) { return item.task == task && item.id == id; });
  return found == items.end() ? nullptr : &*found;
}

}  // namespace vitrine
