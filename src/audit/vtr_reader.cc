// SPDX-License-Identifier: Apache-2.0
#include "vtr_pages.h"

namespace vitrine {

struct VtrReader::Impl {
  Impl(const std::string& path, const std::optional<SealKey>& reader)
      : frames(path), opener(make_opener(reader)) {}

  audit::PageOpener make_opener(const std::optional<SealKey>& reader) const {
    try {
      return {frames.header(), frames.groups(), audit::open_data_keys(frames.header(), reader)};
    } catch (const Error& error) {
      frames.fail(error.what(), error.kind());
    }
  }

  audit::FrameReader frames;
  const audit::PageOpener opener;
  audit::Frame frame;
  audit::OpenPage page;
  std::optional<VtrEnd> end;
  bool is_done = false;
};

VtrReader::VtrReader(const std::string& path, const std::optional<SealKey>& reader)
    : impl_(std::make_unique<Impl>(path, reader)) {}
VtrReader::~VtrReader() = default;

const VtrHeader& VtrReader::header() const { return impl_->frames.header(); }
const std::optional<VtrEnd>& VtrReader::end() const { return impl_->end; }
uint64_t VtrReader::torn_bytes() const { return impl_->frames.torn_bytes(); }
const std::string& VtrReader::path() const { return impl_->frames.path(); }

bool VtrReader::next(VtrPage& page) {
  Impl& reader = *impl_;
  if (reader.is_done || !reader.frames.next(reader.frame)) {
    reader.is_done = true;
    return false;
  }
  try {
    if (reader.frame.tag == audit::FrameTag::kPage) {
      reader.opener.open(reader.frame, true, reader.page);
      page = std::move(reader.page.page);
      return true;
    }
    reader.is_done = true;
    reader.end = audit::parse_end(reader.frame.head);
    if (reader.frames.has_more()) audit::throw_damaged("has bytes after its end");
    return false;
  } catch (const Error& error) {
    reader.frames.fail(error.what(), error.kind());
  }
}

std::string_view log_detail_name(LogDetail detail) {
  switch (detail) {
    case LogDetail::kCounters: return "counters";
    case LogDetail::kStandard: return "standard";
    case LogDetail::kFull: return "full";
  }
  return "?";
}

std::string_view lost_reason_name(LostReason reason) {
  switch (reason) {
    case LostReason::kNotReported: return "not reported";
    case LostReason::kSinkSlow: return "sink too slow";
    case LostReason::kWriteFailed: return "page not written";
    case LostReason::kBadRecord: return "bad record";
  }
  return "?";
}

std::string_view seal_name(VtrReport::Seal seal) {
  switch (seal) {
    case VtrReport::Seal::kComplete: return "complete";
    case VtrReport::Seal::kOpen: return "open";
    case VtrReport::Seal::kBroken: return "broken";
  }
  return "?";
}

}  // namespace vitrine
