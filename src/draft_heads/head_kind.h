// SPDX-License-Identifier: Apache-2.0
// How a kind of heads makes itself known: one file with one registration at its end.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/piece_work.h"
#include "core/unique_name.h"
#include "draft_heads/target_model.h"
#include "vitrine/drafter.h"

namespace vitrine::draft_heads {

/// A drafter that tells where its guesses come from.
class HeadDrafter : public Drafter, public core::ThreadBorrower {
 public:
  /// [draft vocabulary] the logits of a text's guess, from 0, as it is made; null: nobody listens.
  std::function<void(DraftTextId text, int32_t guess, std::span<const float> logits)> on_logits;
};

/// What heads are made of.
struct HeadSources {
  Checkpoint heads;
  TargetModel target;
  std::vector<int> layers;  // DraftHeadOptions::layers
};

struct HeadKind {
  std::string_view name;
  std::unique_ptr<HeadDrafter> (*make)(const HeadSources& sources) = nullptr;
};

bool register_heads(const HeadKind& kind);

/// The kinds that there are, ascending.
std::vector<std::string> head_names();
/// As make_head_drafter(), which is the public one.
std::unique_ptr<HeadDrafter> make_heads(std::string_view name, const std::string& heads,
                                        const std::string& model,
                                        const std::vector<int>& layers = {});

#define VITRINE_REGISTER_DRAFT_HEADS(name, make)                           \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(heads_are_registered_) = \
      ::vitrine::draft_heads::register_heads({name, make})

}  // namespace vitrine::draft_heads
