// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/torch_errors.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine::backend_torch {

namespace {

// The CPU's allocator, MPS and cuBLAS have no type of their own for it.
constexpr std::array<std::string_view, 4> kOutOfMemoryTexts = {
    "can't allocate memory", "not enough memory", "out of memory", "_ALLOC_FAILED"};

bool is_out_of_memory(const c10::Error& error, std::string_view text) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  return std::ranges::any_of(kOutOfMemoryTexts,
                             [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace

void throw_as_ours(const c10::Error& error, const std::string& what) {
  const std::string text = error.what_without_backtrace();
  if (is_out_of_memory(error, text)) {
    throw Error(ErrorKind::kOutOfMemory, what +
                                             " on the reference path ran out of memory; lower "
                                             "max_context or use a smaller model");
  }
  throw Error(ErrorKind::kInternal,
              what + " on the reference path failed: " + text.substr(0, text.find('\n')));
}

}  // namespace vitrine::backend_torch
