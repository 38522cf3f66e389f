// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/sampler_steps.h"

#include <algorithm>
#include <bit>

namespace vitrine::backend_cuda {

using kernels::cuda::kMaxSampleSteps;
using kernels::cuda::SampleStep;
using From = DeviceSamplerStep::Kind;
using To = SampleStep::Kind;

namespace {

To kind_of(From kind) {
  switch (kind) {
    case From::kAdd: return To::kAdd;
    case From::kPenalise: return To::kPenalise;
    case From::kMask: return To::kMask;
    case From::kDivide: return To::kDivide;
    case From::kDynamicTemperature: return To::kDynamicTemperature;
    case From::kTopNSigma: return To::kTopNSigma;
    case From::kTopK: return To::kTopK;
    case From::kTypicalP: return To::kTypicalP;
    case From::kTopP: return To::kTopP;
    case From::kMinP: return To::kMinP;
    case From::kXtc: return To::kXtc;
    case From::kDraw: return To::kDraw;
    case From::kGreedy: break;
  }
  return To::kGreedy;
}

bool comes_first(From kind) {
  return kind == From::kAdd || kind == From::kPenalise || kind == From::kMask;
}

}  // namespace

bool kernel_takes(std::span<const DeviceSamplerStep> steps) {
  if (steps.empty() || steps.size() > static_cast<size_t>(kMaxSampleSteps)) return false;
  if (steps.back().kind != From::kDraw && steps.back().kind != From::kGreedy) return false;
  int64_t ids = 0, masks = 0;
  bool is_first = true;
  for (const DeviceSamplerStep& step : steps) {
    if (!is_first && comes_first(step.kind)) return false;
    is_first = is_first && comes_first(step.kind);
    ids += static_cast<int64_t>(step.ids.size());
    masks += step.kind == From::kMask ? 1 : 0;
  }
  return ids <= kMaxEditedIds && masks <= 2;
}

int64_t sampler_words(std::span<const DeviceSamplerStep> steps) {
  size_t words = 0;
  for (const DeviceSamplerStep& step : steps) words += 2 * step.ids.size() + step.mask.size();
  return static_cast<int64_t>(words);
}

int64_t pack_steps(std::span<const DeviceSamplerStep> steps, int64_t first, SampleStep* out,
                   int32_t* words) {
  for (const DeviceSamplerStep& step : steps) {
    *out++ = {.kind = kind_of(step.kind),
              .a = step.a,
              .b = step.b,
              .c = step.c,
              .first = first,
              .count = static_cast<int32_t>(step.ids.size())};
    int32_t* to = std::ranges::copy(step.ids, words + first).out;
    for (const float value : step.values) *to++ = std::bit_cast<int32_t>(value);
    for (const uint32_t word : step.mask) *to++ = static_cast<int32_t>(word);
    first = to - words;
  }
  return first;
}

int64_t write_steps(std::span<const DeviceSamplerSteps* const> row_steps, int32_t choices,
                    int64_t first, SampleStep* out, int32_t* words) {
  for (size_t row = 0; row < static_cast<size_t>(choices); ++row, out += kMaxSampleSteps) {
    // Rows that the head chooses, and those that fill the shape up.
    out->kind = SampleStep::Kind::kKeep;
    if (row >= row_steps.size() || row_steps[row] == nullptr) continue;
    first = pack_steps(row_steps[row]->list(), first, out, words);
  }
  return first;
}

bool keep_takeable(std::span<const DeviceSamplerSteps*> row_steps, int64_t words) {
  bool takes_all = true;
  for (const DeviceSamplerSteps*& steps : row_steps) {
    if (steps == nullptr) continue;
    const int64_t own = sampler_words(steps->list());
    if (kernel_takes(steps->list()) && own <= words) {
      words -= own;
    } else {
      steps = nullptr;
      takes_all = false;
    }
  }
  return takes_all;
}

}  // namespace vitrine::backend_cuda
