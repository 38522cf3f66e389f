#include "engine/worker_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vitrine::engine {

namespace {

constexpr int kPieceBits = 24;
constexpr uint64_t kPieceMask = (uint64_t{1} << kPieceBits) - 1;
// About 100 microseconds: longer than the gap between two steps, shorter than anyone notices.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

uint64_t generation_of(uint64_t state) { return state >> (2 * kPieceBits); }

}  // namespace

WorkerPool::WorkerPool(int threads) {
  workers_.reserve(static_cast<size_t>(threads > 1 ? threads - 1 : 0));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_main(); });
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
  work_ = &work;
  completed_.store(0, std::memory_order_relaxed);
  ++generation_;
  state_.store((generation_ << (2 * kPieceBits)) | (static_cast<uint64_t>(pieces) << kPieceBits));
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  take_pieces();
  int spins = 0;
  while (completed_.load(std::memory_order_acquire) != pieces) {
    // A holder of a piece may have lost its core: give ours away once spinning has not helped.
    if (++spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

bool WorkerPool::take_pieces() {
  bool any = false;
  while (true) {
    const uint64_t claim = state_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t piece = claim & kPieceMask;
    if (piece >= ((claim >> kPieceBits) & kPieceMask)) return any;
    // A claimed piece keeps the leader waiting, so work_ cannot change under it.
    work_->run_piece(static_cast<int64_t>(piece));
    completed_.fetch_add(1, std::memory_order_acq_rel);
    any = true;
  }
}

void WorkerPool::worker_main() {
  uint64_t seen = 0;
  int idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t generation = generation_of(state_.load(std::memory_order_acquire));
    if (generation != seen) {
      seen = generation;
      take_pieces();
      idle = 0;
      continue;
    }
    if (++idle < kSpins) {
      pause();
      continue;
    }
    const uint32_t ticket = wake_.load();
    sleepers_.fetch_add(1);
    // Looks once more after announcing itself: a leader that did not see it has published before.
    if (generation_of(state_.load()) == seen && !stop_.load()) wake_.wait(ticket);
    sleepers_.fetch_sub(1);
    idle = 0;
  }
}

}  // namespace vitrine::engine
