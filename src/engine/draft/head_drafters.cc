// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/head_kind.h"
#include "vitrine/drafters.h"

namespace vitrine {

std::vector<std::string> draft_head_names() { return draft_heads::head_names(); }

std::unique_ptr<Drafter> make_head_drafter(std::string_view name, const std::string& heads,
                                           const std::string& model,
                                           const DraftHeadOptions& options) {
  return draft_heads::make_heads(name, heads, model, options.layers);
}

}  // namespace vitrine
