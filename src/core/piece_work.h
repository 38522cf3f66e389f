// SPDX-License-Identifier: Apache-2.0
// Work that several threads share, and who lends and borrows these.
#pragma once

#include <cstdint>

namespace vitrine::core {

/// Work that comes in numbered pieces.
class PieceWork {
 public:
  virtual ~PieceWork() = default;
  /// Does not throw: the leader counts on every piece to end.
  virtual void run_piece(int64_t piece) = 0;
  /// The leader has no piece left and waits for the others': what it will read next may be fetched.
  virtual void fetch_next() {}
};

/// Threads that share pieces.
class PieceThreads {
 public:
  virtual ~PieceThreads() = default;
  /// Runs all pieces, however many, and returns when the last is done. Called from one thread.
  virtual void run(PieceWork& work, int64_t pieces) = 0;
  /// The calling thread counts.
  virtual int threads() const = 0;
};

/// A drafter whose calls an engine's threads share, which have nothing to do between two steps.
class ThreadBorrower {
 public:
  virtual ~ThreadBorrower() = default;
  /// The next calls may use `threads`, until it is given others; null: none.
  virtual void lend(PieceThreads* threads) = 0;
};

}  // namespace vitrine::core
