// SPDX-License-Identifier: Apache-2.0
#include "engine/read_bandwidth.h"

#include <algorithm>
#include <vector>

#include "core/cancel_watch.h"
#include "engine/run/best_rate.h"

namespace vitrine::engine {

namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kPieceBytes = size_t{1} << 20;

class ReadWork final : public PieceWork {
 public:
  ReadWork(const kernels::CpuKernels& kernel, std::span<const std::span<const std::byte>> parts,
           const std::atomic<bool>* cancelled)
      : kernel_(kernel), cancelled_(cancelled) {
    for (std::span<const std::byte> part : parts) {
      for (part = part.first(part.size() / kLineBytes * kLineBytes); !part.empty();) {
        pieces_.push_back(part.first(std::min(part.size(), kPieceBytes)));
        num_bytes_ += pieces_.back().size();
        part = part.subspan(pieces_.back().size());
      }
    }
    sums_.resize(pieces_.size());
  }

  void run_piece(int64_t piece) override {
    if (core::is_raised(cancelled_)) return;
    const std::span<const std::byte> bytes = pieces_[static_cast<size_t>(piece)];
    sums_[static_cast<size_t>(piece)] =
        kernel_.read_lines(bytes.data(), static_cast<int64_t>(bytes.size() / kLineBytes));
  }

  int64_t count() const { return static_cast<int64_t>(pieces_.size()); }
  size_t num_bytes() const { return num_bytes_; }

 private:
  const kernels::CpuKernels& kernel_;
  const std::atomic<bool>* const cancelled_;
  std::vector<std::span<const std::byte>> pieces_;
  std::vector<uint64_t> sums_;  // kept, so that reading cannot be left out
  size_t num_bytes_ = 0;
};

}  // namespace

std::optional<double> measure_read_bandwidth(const kernels::CpuKernels& kernel, WorkerPool& pool,
                                             std::span<const std::span<const std::byte>> parts,
                                             double seconds, const std::atomic<bool>* cancelled) {
  ReadWork work(kernel, parts, cancelled);
  if (work.count() == 0) return std::nullopt;
  return best_rate(static_cast<double>(work.num_bytes()), seconds, [&] {
    pool.run(work, work.count());
    if (core::is_raised(cancelled)) {
      throw Error(ErrorKind::kCancelled,
                  "measuring how fast memory is read was cancelled by its host "
                  "(EngineOptions::cancelled)");
    }
  });
}

}  // namespace vitrine::engine
