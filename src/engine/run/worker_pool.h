// SPDX-License-Identifier: Apache-2.0
// The engine's threads. The calling thread leads; the others take pieces while there are any.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/piece_work.h"

namespace vitrine::engine {

using core::PieceWork;

/// Fork and join over pieces, without locks. A thread that the system has taken away delays nobody
/// as long as it holds no piece. Idle threads spin for a moment, then sleep.
///
/// Each thread has a share of its own, pieces in a row, so that no two threads write the same line
/// while there is work for both; who is done first takes what the others have left.
class WorkerPool final : public core::PieceThreads {
 public:
  /// `threads` counts the calling thread.
  explicit WorkerPool(int threads);
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Threads share so many pieces at a time. More of them are run one such part after the other.
  static constexpr int64_t kMostShared = int64_t{1} << 23;

  void run(PieceWork& work, int64_t pieces) override;
  int threads() const override { return static_cast<int>(workers_.size()) + 1; }

 private:
  struct alignas(128) Share {
    // One word, so that a claim and what it belongs to are seen together:
    // generation (16 bits) | end (24) | next piece (24).
    std::atomic<uint64_t> state{0};
    // In the same line, which a thread that waits for the state has then. A claimed piece keeps the
    // leader waiting, so it cannot change while it is used.
    std::atomic<PieceWork*> work{nullptr};
  };

  void run_shared(PieceWork& work, int64_t pieces);  // at most kMostShared
  void publish(PieceWork& work, uint64_t pieces);
  void worker_main(size_t own);
  void report(int64_t taken);
  int64_t take_others(size_t own);  // how many it took of others' shares
  int64_t take_share(Share& share);

  std::vector<Share> shares_;                       // [threads]
  alignas(64) std::atomic<int64_t> completed_{0};   // by others than the leader, in all runs
  alignas(64) std::atomic<uint64_t> published_{0};  // the generation whose shares are all there
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  alignas(64) uint64_t generation_ = 0;  // the leader's alone, as the next
  int64_t expected_ = 0;                 // of completed_ when the run is over
  std::vector<std::thread> workers_;
};

}  // namespace vitrine::engine
