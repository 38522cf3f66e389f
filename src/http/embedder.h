// SPDX-License-Identifier: Apache-2.0
// What makes embeddings, on one thread.
#pragma once

#include <atomic>

#include "vitrine/embed.h"
#include "vitrine/http.h"

namespace vitrine::http {

struct Embedder {
  EmbeddingModel embeddings;
  std::atomic<bool> is_ending = false;  ///< what is under way is cancelled
};

}  // namespace vitrine::http
