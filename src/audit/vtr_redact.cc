// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/same_file.h"
#include "draft_list.h"
#include "failure_list.h"
#include "log_file.h"
#include "manifest.h"
#include "vtr_pages.h"

namespace vitrine {
namespace {

std::string_view text_of(audit::ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The payload with some rows of some groups left out; what was left out before stays so.
audit::Bytes redact_payload(const std::vector<audit::GroupSpec>& specs, const audit::Frame& frame,
                            const audit::OpenPage& page, const std::vector<audit::GroupId>& ids,
                            const VtrRedaction& redaction) {
  audit::Bytes payload;
  audit::ByteReader in(frame.payload);
  for (size_t i = 0; i < specs.size(); ++i) {
    const audit::OpenGroup& group = page.groups[i];
    const size_t before = in.left();
    audit::ByteReader block = in;
    in.u8();
    in.raw(in.u32());
    const audit::ByteSpan same = block.raw(before - in.left());
    const bool is_named = std::find(ids.begin(), ids.end(), specs[i].id) != ids.end();
    const bool is_there = group.encoding != audit::Encoding::kLeftOut;
    const bool is_whole_group = specs[i].kind == audit::GroupKind::kWhole;
    // All failures of the page go, and likewise all guesses, where one of the rows has some.
    const bool is_touched =
        redaction.rows && ((specs[i].id == audit::GroupId::kFailures &&
                            audit::touches(page.page.failures, redaction.rows)) ||
                           (specs[i].id == audit::GroupId::kDrafts &&
                            audit::touches(page.page.drafts, redaction.rows)));
    if (is_named && is_there && (!redaction.rows || is_touched) &&
        (is_whole_group || group.is_closed())) {
      audit::append_redacted(specs[i], group, {false}, payload);
      continue;
    }
    if (is_named && group.is_closed()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "redaction: column group '" + audit::group_name(specs[i].id) +
                      "' is encrypted, so that single positions cannot be left out; leave out all "
                      "of it, or give the key of a recipient");
    }
    if (!is_named || !is_there || is_whole_group) {
      audit::ByteWriter(payload).raw(same);
      continue;
    }
    std::vector<bool> visible(page.head.rows, false);
    for (size_t row = 0; redaction.rows && row < visible.size(); ++row) {
      const TokenRecord& record = page.page.records[row];
      visible[row] = group.shows(row) && !redaction.rows(record.sequence, record.position);
    }
    const bool hides_none = std::find(visible.begin(), visible.end(), false) == visible.end();
    if (hides_none) {
      audit::ByteWriter(payload).raw(same);
    } else {
      audit::append_redacted(specs[i], group, visible, payload);
    }
  }
  return payload;
}

}  // namespace

void redact_vtr(const std::string& path, const std::string& target, const VtrRedaction& redaction,
                const std::optional<SealKey>& reader, bool overwrite) {
  refuse_to_replace(path, target);
  const std::vector<audit::GroupId> ids = audit::find_hidden_groups(redaction.groups);
  audit::FrameReader frames(path);
  audit::LogFile file(target, overwrite);
  file.write(text_of(audit::kMagic));
  file.write(text_of(frames.head_frame().bytes));
  try {
    const audit::PageOpener opener(frames.header(), frames.groups(),
                                   audit::open_data_keys(frames.header(), reader));
    audit::Frame frame;
    audit::OpenPage page;
    while (frames.next(frame)) {
      if (frame.tag != audit::FrameTag::kPage) {
        if (frames.has_more()) audit::throw_damaged("has bytes after its end");
        file.write(text_of(frame.bytes));
        continue;
      }
      opener.open(frame, true, page);
      const audit::Bytes payload = redact_payload(frames.groups(), frame, page, ids, redaction);
      audit::Bytes sizes;
      audit::ByteWriter writer(sizes);
      writer.u32(static_cast<uint32_t>(frame.tag));
      writer.u32(static_cast<uint32_t>(frame.head.size()));
      writer.u64(payload.size());
      file.write(text_of(sizes));
      file.write(
          text_of(audit::ByteSpan(frame.bytes)
                      .subspan(audit::kFrameHeadBytes, frame.head.size() + audit::kSealBytes)));
      file.write(text_of(payload));
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    frames.fail(error.what(), error.kind());
  }
  file.sync_and_close();
  file.publish();
  if (overwrite) audit::remove_manifest(target);
}

std::vector<VtrRedaction> redact_prompt(int64_t prompt_tokens) {
  const auto before = [](int64_t end) {
    return [end](uint64_t, int64_t position) { return position < end; };
  };
  std::vector<VtrRedaction> redactions;
  redactions.push_back(
      {{"tokens", "text", "digests", "hidden_states", "routing", "norms", "router_probs"},
       before(prompt_tokens)});
  // The last token of the prompt predicts the first of the answer.
  redactions.push_back({{"prediction", "attribution", "federation", "sampler", "constraint"},
                        before(prompt_tokens - 1)});
  // Guesses repeat what stands in the prompt, wherever they stand themselves.
  redactions.push_back({.groups = {"drafts"}, .rows = {}});
  return redactions;
}

}  // namespace vitrine
