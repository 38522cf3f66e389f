// SPDX-License-Identifier: Apache-2.0
#include "run_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "common.h"

namespace cli {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRunMemoryMaxTextBytes =
    256 * kMiB;  // of millions of tokens; pages are compressed

uint64_t half_of_memory() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return std::numeric_limits<uint64_t>::max();  // nobody knows
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) / 2;
}

/// Bytes that a vector points to: its entries, and what an allocation takes beside them.
template <typename T>
uint64_t bytes_of(const std::vector<T>& values) {
  constexpr uint64_t kOfAllocation = 16;
  return values.empty() ? 0 : values.size() * sizeof(T) + kOfAllocation;
}

uint64_t bytes_of(const vitrine::TokenRecord& record) {
  uint64_t bytes = sizeof(record) + bytes_of(record.layers) + bytes_of(record.hidden_states);
  for (const vitrine::LayerRecord& layer : record.layers) {
    bytes += bytes_of(layer.routes) + bytes_of(layer.router_probs) + bytes_of(layer.selection) +
             bytes_of(layer.expert_norms);
  }
  for (const vitrine::HiddenStateRecord& state : record.hidden_states) {
    bytes += bytes_of(state.values);
  }
  const vitrine::PredictionRecord& prediction = record.prediction;
  bytes += bytes_of(prediction.alternatives) + bytes_of(prediction.attribution.terms);
  bytes +=
      bytes_of(prediction.federation.specialists) + bytes_of(prediction.federation.attributions);
  for (const vitrine::AttributionRecord& attribution : prediction.federation.attributions) {
    bytes += bytes_of(attribution.terms);
  }
  return bytes;
}

}  // namespace

RunMemory::RunMemory(std::string path, uint64_t most)
    : path_(std::move(path)), most_(most == 0 ? half_of_memory() : most) {}

void RunMemory::add(const vitrine::VtrPage& page) {
  for (const vitrine::TokenRecord& record : page.records) bytes_ += bytes_of(record);
  for (const auto& marks : page.layer_marks) bytes_ += sizeof(marks) + bytes_of(marks);
  for (const std::string& piece : page.text) text_bytes_ += piece.size();
  bytes_ += bytes_of(page.text) + bytes_of(page.digests) + bytes_of(page.events) +
            bytes_of(page.failures) + bytes_of(page.drafts);
  for (const vitrine::DraftedPass& drafts : page.drafts) {
    bytes_ += bytes_of(drafts.tokens) + bytes_of(drafts.parents) + bytes_of(drafts.accepted);
  }
  if (text_bytes_ > kRunMemoryMaxTextBytes) {
    refuse(fmt::format("{}: its tokens' text takes more than {} MiB; expected a run's log", path_,
                       kRunMemoryMaxTextBytes / kMiB));
  }
  if (bytes_ + text_bytes_ <= most_) return;
  refuse(fmt::format(
      "{}: its records take more than {} MiB of memory, at page {}; expected fewer, or a larger "
      "--max-memory (verify, and export --json to standard output, hold a page at a time)",
      path_, (most_ + kMiB - 1) / kMiB, page.number));
}

}  // namespace cli
