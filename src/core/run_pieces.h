// SPDX-License-Identifier: Apache-2.0
// Private to the library: work that comes in pieces, by several threads, while something is loaded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace vitrine::core {

/// Calls work(i) once for each i < count, on at most so many threads, this one among them. Each
/// thread has a `work` of its own, of make_work(). After the first exception no other piece is
/// begun; it is thrown again when all threads have ended.
template <typename MakeWork>
void run_pieces(int threads, size_t count, MakeWork make_work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run = [&] {
    try {
      auto work = make_work();
      for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) work(i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (first_error == nullptr) first_error = std::current_exception();
      next.store(count);
    }
  };
  std::vector<std::jthread> helpers;
  const size_t useful = std::min(static_cast<size_t>(std::max(1, threads)), count);
  for (size_t i = 1; i < useful; ++i) helpers.emplace_back(run);
  run();
  helpers.clear();
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

}  // namespace vitrine::core
