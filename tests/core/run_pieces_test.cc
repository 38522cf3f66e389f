// SPDX-License-Identifier: Apache-2.0
// Work in pieces, by several threads.
#include "core/run_pieces.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace vitrine::core {
namespace {

TEST(RunPieces, EachIsDoneOnce) {
  for (const int threads : {0, 1, 3, 50}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}}) {
      std::vector<std::atomic<int>> done(count);
      run_pieces(threads, count, [&] { return [&](size_t i) { ++done[i]; }; });
      for (const auto& times : done) ASSERT_EQ(times, 1);
    }
  }
}

TEST(RunPieces, TheFirstErrorEndsThem) {
  std::atomic<size_t> begun{0};
  const auto make_work = [&] {
    return [&](size_t) {
      ++begun;
      throw std::runtime_error("broken");
    };
  };
  EXPECT_THROW(run_pieces(3, 1000, make_work), std::runtime_error);
  EXPECT_LE(begun, 3u);
}

}  // namespace
}  // namespace vitrine::core
