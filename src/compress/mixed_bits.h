// SPDX-License-Identifier: Apache-2.0
// Private to the room: how many bits each part of a model gets, by what fewer of them do to what it
// predicts.
#pragma once

#include <optional>
#include <string>

#include "plan.h"
#include "progress.h"

namespace vitrine::compress {

/// Returns the bits of "mixed:3.5" or "mixed:3.5:experts"; nothing for another scheme. Throws
/// kInvalidArgument for bits that no mixture has.
std::optional<double> mixed_bits(const std::string& scheme);
/// Whether a mixture may give the experts of a layer widths of their own: "mixed:3.5:experts".
bool widens_experts(const std::string& scheme);
/// Returns the scheme whose matrices a mixture begins with, or the scheme itself.
std::string base_scheme(const std::string& scheme);

/// Gives each part of a layer (what its matrices are multiplied with alike: those of attention's
/// input, its output, all experts' gates and ups, their downs) int3, int4 or int8, so that all of
/// them take `bits` a weight at most, scales included. Each part is rounded by itself to each
/// width, and what that does to the predictions on the calibration's first texts (mean KL) is taken
/// to add up. `model` is the folder that the engine runs, as with quantize_by_layers(). With
/// `options.mixed_by_use` experts count as often as tokens are routed to one. Where experts may
/// have widths of their own, texts from all over the calibration are taken in place of its
/// first, and both recipes of the same bits are judged on other ones, where there are any; the one
/// that loses less is taken, and the plan says what each lost. Throws what Engine::load and its
/// steps throw, kInvalidArgument for a budget that the narrowest exceed.
void choose_widths(const Checkpoint& checkpoint, const std::string& model,
                   const QuantizeOptions& options, double bits, QuantizePlan& plan,
                   ProgressTeller& progress);

}  // namespace vitrine::compress
