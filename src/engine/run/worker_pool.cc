// SPDX-License-Identifier: Apache-2.0
#include "engine/run/worker_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vitrine::engine {

namespace {

constexpr int kPieceBits = 24;
// Each thread may count one past the end of a share, so half of the numbers is room for that.
static_assert(WorkerPool::kMostShared <= int64_t{1} << (kPieceBits - 1));
constexpr uint64_t kPieceMask = (uint64_t{1} << kPieceBits) - 1;
constexpr uint64_t kGenerationMask = 0xffff;
// Longer than the gap between two steps, shorter than anyone notices.
constexpr std::chrono::microseconds kSpinTime(100);

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

/// One wait. Processors pause for 10 to 60 ns, so the clock says how long it has been, now and
/// then.
class Spin {
 public:
  /// Pauses; false once kSpinTime has passed.
  bool goes_on() {
    pause();
    if (++count_ % 64 != 0) return true;
    const auto now = std::chrono::steady_clock::now();
    if (count_ == 64) begin_ = now;
    return now - begin_ < kSpinTime;
  }

 private:
  uint32_t count_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// Pieces of a work from `first` on.
class LaterPieces final : public PieceWork {
 public:
  LaterPieces(PieceWork& work, int64_t first, bool is_last)
      : work_(work), first_(first), is_last_(is_last) {}
  void run_piece(int64_t piece) override { work_.run_piece(first_ + piece); }
  void fetch_next() override {
    if (is_last_) work_.fetch_next();
  }

 private:
  PieceWork& work_;
  const int64_t first_;
  const bool is_last_;
};

uint64_t generation_of(uint64_t state) { return state >> (2 * kPieceBits); }
bool is_left(uint64_t state) { return (state & kPieceMask) < (state >> kPieceBits & kPieceMask); }

}  // namespace

WorkerPool::WorkerPool(int threads) : shares_(static_cast<size_t>(std::max(threads, 1))) {
  workers_.reserve(shares_.size() - 1);
  for (size_t i = 1; i < shares_.size(); ++i) workers_.emplace_back([this, i] { worker_main(i); });
}

WorkerPool::~WorkerPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::run(PieceWork& work, int64_t pieces) {
  if (pieces <= 1 || workers_.empty()) {
    for (int64_t piece = 0; piece < pieces; ++piece) work.run_piece(piece);
    return;
  }
  if (pieces <= kMostShared) return run_shared(work, pieces);
  for (int64_t first = 0; first < pieces; first += kMostShared) {
    const int64_t count = std::min(pieces - first, kMostShared);
    LaterPieces part(work, first, first + count == pieces);
    run_shared(part, count);
  }
}

void WorkerPool::run_shared(PieceWork& work, int64_t pieces) {
  publish(work, static_cast<uint64_t>(pieces));
  work.run_piece(0);
  const int64_t own = 1 + take_share(shares_[0]);
  expected_ += pieces - own - take_others(0);
  if (completed_.load(std::memory_order_acquire) != expected_) work.fetch_next();
  Spin spin;
  bool spins = true;
  while (completed_.load(std::memory_order_acquire) != expected_) {
    // A holder of a piece may have lost its core: give ours away once spinning has not helped.
    spins = spins && spin.goes_on();
    if (!spins) std::this_thread::yield();
  }
}

void WorkerPool::publish(PieceWork& work, uint64_t pieces) {
  ++generation_;
  // Piece 0 is in no share but the leader's without a claim: an atomic addition would wait until
  // all that the phase before wrote has left the store buffer.
  const uint64_t count = shares_.size(), shared = pieces - 1;
  for (uint64_t i = count; i-- > 0;) {
    const uint64_t begin = 1 + shared * i / count, end = 1 + shared * (i + 1) / count;
    shares_[i].work.store(&work, std::memory_order_relaxed);
    shares_[i].state.store(generation_ << (2 * kPieceBits) | end << kPieceBits | begin,
                           std::memory_order_release);
  }
  // A thread that goes to sleep at this moment may miss it; its share is then done by the others,
  // and the next call wakes it.
  published_.store(generation_ & kGenerationMask, std::memory_order_release);
  if (sleepers_.load(std::memory_order_relaxed) > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
}

void WorkerPool::report(int64_t taken) {
  if (taken > 0) completed_.fetch_add(taken, std::memory_order_release);
}

int64_t WorkerPool::take_others(size_t own) {
  int64_t taken = 0;
  for (size_t i = 1; i < shares_.size(); ++i) {
    taken += take_share(shares_[(own + i) % shares_.size()]);
  }
  return taken;
}

int64_t WorkerPool::take_share(Share& share) {
  int64_t taken = 0;
  // Looks before it writes: the line stays with its owner where nothing is left.
  while (is_left(share.state.load(std::memory_order_relaxed))) {
    const uint64_t claim = share.state.fetch_add(1, std::memory_order_acq_rel);
    if (!is_left(claim)) break;
    PieceWork* work = share.work.load(std::memory_order_relaxed);
    work->run_piece(static_cast<int64_t>(claim & kPieceMask));
    ++taken;
  }
  return taken;
}

void WorkerPool::worker_main(size_t own) {
  Share& share = shares_[own];
  uint64_t seen = 0;
  Spin spin;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t generation = generation_of(share.state.load(std::memory_order_acquire));
    if (generation != seen) {
      seen = generation;
      // On its way while the claim waits for the share's line.
      __builtin_prefetch(share.work.load(std::memory_order_relaxed));
      report(take_share(share));  // before it looks at others' lines: the leader may wait for it
      report(take_others(own));
      spin = Spin();
      continue;
    }
    if (spin.goes_on()) continue;
    const uint32_t ticket = wake_.load();
    sleepers_.fetch_add(1);
    // Looks once more after announcing itself: a leader that did not see it has published before.
    if (published_.load() == seen && !stop_.load()) wake_.wait(ticket);
    sleepers_.fetch_sub(1);
    spin = Spin();
  }
}

}  // namespace vitrine::engine
