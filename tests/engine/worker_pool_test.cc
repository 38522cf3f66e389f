// SPDX-License-Identifier: Apache-2.0
// The engine's threads and memory. Free of libtorch, so that it also runs under ThreadSanitizer.
#include "engine/run/worker_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "engine/run/plan_arena.h"

namespace vitrine::engine {
namespace {

// Plain, unsynchronised memory: a race or a piece run twice is seen.
class CountingWork : public PieceWork {
 public:
  explicit CountingWork(size_t capacity) : counts_(capacity, 0) {}
  void run_piece(int64_t piece) override { ++counts_[static_cast<size_t>(piece)]; }
  std::vector<int>& counts() { return counts_; }

 private:
  std::vector<int> counts_;
};

class WorkerPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(WorkerPoolTest, RunsEveryPieceOnce) {
  WorkerPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  CountingWork work(64);
  std::vector<int> expected(64, 0);
  std::mt19937 random(1);
  for (int run = 0; run < 4000; ++run) {
    const auto pieces = static_cast<size_t>(random() % 65);
    pool.run(work, static_cast<int64_t>(pieces));
    // Reads what the other threads wrote: run() must have waited for them.
    for (size_t i = 0; i < pieces; ++i) ++expected[i];
    ASSERT_EQ(work.counts(), expected) << "run " << run;
  }
}

// Phase after phase over one array, as the ops of a plan: each reads its neighbours' last values.
class DiffusionWork : public PieceWork {
 public:
  explicit DiffusionWork(size_t size) : from_(size, 1), to_(size, 0) {}
  void run_piece(int64_t piece) override {
    const auto i = static_cast<size_t>(piece), size = from_.size();
    to_[i] = from_[(i + size - 1) % size] * 3 + from_[i] + from_[(i + 1) % size] * 5 + i;
  }
  void swap() { from_.swap(to_); }
  const std::vector<uint64_t>& values() const { return from_; }

 private:
  std::vector<uint64_t> from_, to_;
};

TEST_P(WorkerPoolTest, APhaseSeesTheOneBefore) {
  WorkerPool pool(GetParam());
  DiffusionWork parallel(23), serial(23);
  for (int phase = 0; phase < 3000; ++phase) {
    pool.run(parallel, 23);
    parallel.swap();
    for (int64_t piece = 0; piece < 23; ++piece) serial.run_piece(piece);
    serial.swap();
  }
  EXPECT_EQ(parallel.values(), serial.values());
}

TEST_P(WorkerPoolTest, WakesSleepingThreads) {
  WorkerPool pool(GetParam());
  CountingWork work(16);
  for (int run = 0; run < 20; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than they spin
    pool.run(work, 16);
  }
  EXPECT_EQ(work.counts(), std::vector<int>(16, 20));
}

TEST_P(WorkerPoolTest, ComesAndGoes) {
  for (int i = 0; i < 50; ++i) {
    WorkerPool pool(GetParam());
    CountingWork work(3);
    if (i % 2 == 0) pool.run(work, 3);
    EXPECT_EQ(work.counts(), std::vector<int>(3, i % 2 == 0 ? 1 : 0));
  }
}

// More pieces than one step of the longest context with many heads has.
TEST_P(WorkerPoolTest, ManyPieces) {
  constexpr size_t kPieces = (size_t{1} << 20) + 7;
  WorkerPool pool(GetParam());
  CountingWork work(kPieces);
  pool.run(work, static_cast<int64_t>(kPieces));
  EXPECT_EQ(work.counts(), std::vector<int>(kPieces, 1));
}

// One byte a piece, so that many are few bytes.
class MarkingWork : public PieceWork {
 public:
  explicit MarkingWork(int64_t capacity) : marks_(static_cast<size_t>(capacity), 0) {}
  void run_piece(int64_t piece) override { ++marks_[static_cast<size_t>(piece)]; }
  void fetch_next() override { ++fetched_; }
  int fetched() const { return fetched_; }
  bool is_once_until(int64_t end) const {
    const auto first_beyond = marks_.begin() + end;
    return std::all_of(marks_.begin(), first_beyond, [](uint8_t mark) { return mark == 1; }) &&
           std::all_of(first_beyond, marks_.end(), [](uint8_t mark) { return mark == 0; });
  }

 private:
  std::vector<uint8_t> marks_;
  int fetched_ = 0;
};

// A share's word counts 24 bits of pieces.
TEST(WorkerPoolParts, MorePiecesThanAWordCounts) {
  WorkerPool pool(3);
  for (const int64_t pieces : {WorkerPool::kMostShared + 1, (int64_t{1} << 24) + 1000}) {
    MarkingWork work(pieces + 5);
    pool.run(work, pieces);
    EXPECT_TRUE(work.is_once_until(pieces)) << pieces;
    EXPECT_LE(work.fetched(), 1) << pieces;
  }
}

TEST_P(WorkerPoolTest, NoPieces) {
  WorkerPool pool(GetParam());
  CountingWork work(1);
  pool.run(work, 0);
  pool.run(work, 1);
  EXPECT_EQ(work.counts()[0], 1);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolTest, ::testing::Values(1, 2, 3, 4));

bool all_zero(const std::byte* data, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    if (data[i] != std::byte{0}) return false;
  }
  return true;
}

using kv::MappedMemory;

TEST(MappedMemory, IsZeroedAndMoves) {
  MappedMemory memory(100001, "a test");
  EXPECT_EQ(memory.size(), 100001u);
  EXPECT_TRUE(all_zero(memory.data(), memory.size()));
  std::memset(memory.data(), 7, memory.size());
  std::byte* const data = memory.data();
  MappedMemory moved(std::move(memory));
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.data()[100000], std::byte{7});
  EXPECT_NE(MappedMemory(0, "nothing").data(), nullptr);
}

TEST(MappedMemory, NamesWhatItCouldNotGive) {
  try {
    MappedMemory memory(size_t{1} << 60, "the KV cache");
    FAIL() << "2^60 bytes were given";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    const std::string text = error.what();
    EXPECT_NE(text.find("1152921504606846976 bytes for the KV cache"), std::string::npos) << text;
    EXPECT_NE(text.find("max_context"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(PlanArena, PiecesAreAlignedZeroedAndApart) {
  PlanArena arena;
  std::vector<std::pair<std::byte*, size_t>> pieces;
  size_t rounded = 0;
  for (size_t size : {1, 64, 65, 1000, 1 << 20, 3, (1 << 20) + 1, 500000, 500000, 500000}) {
    auto* piece = static_cast<std::byte*>(arena.allocate(size));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, 0u);
    ASSERT_TRUE(all_zero(piece, size));
    std::memset(piece, static_cast<int>(pieces.size()) + 1, size);
    pieces.emplace_back(piece, size);
    rounded += (size + 63) / 64 * 64;
  }
  EXPECT_EQ(arena.num_bytes(), rounded);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [piece, size] = pieces[i];
    EXPECT_EQ(piece[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(piece[size - 1], static_cast<std::byte>(i + 1));
  }
}

}  // namespace
}  // namespace vitrine::engine
