// SPDX-License-Identifier: Apache-2.0
// fuzz_vtr SECONDS [SEED]: changes .vtr logs and reads, verifies, exports and redacts them.
//
// Some changes are blind, others are chained, signed and committed to anew, so that they get past
// the hashes to the parsers behind. Every outcome must be success or vitrine::Error with one line;
// anything else ends with 1 and the iteration, which the same seed repeats. A blind change must
// never verify as complete. Meant for a build with AddressSanitizer and UBSan.
#include <random>
#include <stdexcept>

#include "../checkpoint/folders.h"
#include "record_builder.h"
#include "src/audit/vtr_pages.h"
#include "tests/support/fuzz.h"

namespace {

using namespace vitrine;
using audit::Bytes;
using audit::ByteSpan;
using audit::Encoding;

std::mt19937_64 random_bits;
const SealKey& key() {
  static const SealKey made = SealKey::generate();
  return made;
}

size_t below(size_t bound) { return bound == 0 ? 0 : random_bits() % bound; }
bool one_in(size_t n) { return below(n) == 0; }

/// One change of some bytes.
void mutate(Bytes& bytes) {
  if (bytes.empty()) return bytes.push_back(static_cast<uint8_t>(below(256)));
  const size_t at = below(bytes.size());
  const auto place = bytes.begin() + static_cast<long>(at);
  switch (below(7)) {
    case 0: bytes[at] ^= static_cast<uint8_t>(1 << below(8)); break;
    case 1: bytes[at] = static_cast<uint8_t>(below(256)); break;
    case 2: bytes[at] = one_in(2) ? 0xFF : 0x80; break;
    case 3:
      bytes.erase(place,
                  place + static_cast<long>(1 + below(std::min<size_t>(8, bytes.size() - at))));
      break;
    case 4: bytes.insert(place, 1 + below(8), static_cast<uint8_t>(below(256))); break;
    case 5: bytes.insert(place, 9, 0xFF); break;  // a huge varint
    default: bytes.resize(below(bytes.size()));
  }
}

Bytes write_log(const std::string& path, LogDetail detail, bool has_text, bool is_encrypted) {
  using namespace audit_test;
  Rng rng(below(1000));
  AuditLayout layout =
      make_layout({{2, 8}, {0, 0}, {3, 5, static_cast<RouterKind>(below(3))}},
                  detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard, rng);
  if (below(2) == 0) layout = with_terms(layout);
  if (below(3) == 0) layout = with_specialists(layout);
  if (detail == LogDetail::kFull) layout = with_hidden_states(layout, {0, 2, 3}, 5);
  VtrOptions options;
  options.detail = detail;
  options.text = has_text;
  options.seal = key();
  options.page_tokens = 7;
  if (is_encrypted) {
    options.recipients = {{SealKey::generate().public_key(), {"tokens", "routing", "counters"}},
                          {key().public_key()}};
    options.redact = {{{"norms"}, [](uint64_t, int64_t position) { return position < 9; }}};
  }
  options.hidden_states_at = [](const TokenRecord& record) { return record.position % 4 != 1; };
  LogHeader header;
  header.vocab_size = 300;
  header.hashes = {{"config.json", "ab"}};
  options.overwrite = true;
  const bool has_drafts = below(2) == 0;
  if (has_drafts) header.speculation = {{"drafter", "suffix"}};
  VtrLog log(path, header, options, [](int32_t id) { return std::to_string(id); });
  log.sink().open(layout, audit_record_bytes(layout, 8, 8));
  log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
  for (int32_t i = 0; i < 20; ++i) {
    BuiltPass built = build_pass(layout, 0, 1, rng, 300);
    put(built.bytes, 24, uint64_t{1});
    put(built.bytes, 32, i);
    send(log.sink(), built.bytes);
    if (!has_drafts || i % 3 != 0) continue;
    DraftedPass drafts{
        .sequence = 1, .position = i, .drafter = "suffix", .tokens = {i, 200, 7}, .discarded = 2};
    if (i % 2 == 0) drafts.parents = {-1, -1, 1};
    drafts.accepted = {i % 2 == 0 ? 1 : 0};
    if (i % 2 == 0) drafts.accepted.push_back(2), drafts.discarded = 1;
    log.sink().on_drafts(drafts);
  }
  log.sink().on_event({AuditEvent::Kind::kForked, 2, 1, 20, 0});
  log.sink().on_event({AuditEvent::Kind::kTruncated, 2, 0, 3, 20});
  log.finish("length");
  const std::string text = testing::read_bytes(path);
  return {text.begin(), text.end()};
}

/// A group's block with a changed content, and what the head has to say for it to be believed.
void change_group(const audit::GroupSpec& spec, audit::OpenGroup& group, audit::GroupSeal& seal,
                  uint32_t rows, const audit::DataKey* data_key, Bytes& payload) {
  audit::ColumnSealer sealer;
  const audit::Treatment treatment{.data_key = data_key};
  if (one_in(2)) {
    audit::GroupRows changed = group.rows;
    mutate(changed.bytes);
    if (spec.kind == audit::GroupKind::kRows) changed.bytes.resize(size_t{spec.row_bytes} * rows);
    if (spec.kind == audit::GroupKind::kVariableRows) changed = group.rows;
    seal = sealer.seal(spec, changed, rows, group.key, treatment, payload);
    return;
  }
  // The stored bytes themselves: what the decompressor gets.
  Bytes block;
  seal = sealer.seal(spec, group.rows, rows, group.key, {}, block);
  Bytes stored(block.begin() + 5 + 32, block.end());
  for (size_t count = 1 + below(3); count > 0; --count) mutate(stored);
  if (one_in(3))
    seal.encoding = seal.encoding == Encoding::kZstd ? Encoding::kRaw : Encoding::kZstd;
  Bytes salts;
  audit::make_salts(group.key, 1, salts);
  seal.stored = audit::hash(audit::kStoredPurpose, salts, stored);
  audit::ByteWriter writer(payload);
  if (data_key != nullptr) {
    Bytes encrypted;
    const auto inner = one_in(4) ? static_cast<Encoding>(below(6)) : seal.encoding;
    audit::encrypt_block(*data_key, inner, group.key, stored, encrypted);
    if (one_in(4)) mutate(encrypted);
    seal.encoding = Encoding::kEncrypted;
    seal.stored = audit::hash(audit::kStoredPurpose, {}, encrypted);
    writer.u8(static_cast<uint8_t>(seal.encoding));
    writer.u32(static_cast<uint32_t>(encrypted.size()));
    return writer.raw(encrypted);
  }
  writer.u8(static_cast<uint8_t>(seal.encoding));
  writer.u32(static_cast<uint32_t>(32 + stored.size()));
  writer.raw(group.key);
  writer.raw(stored);
}

Bytes changed_page(const audit::Frame& frame, const audit::PageOpener& opener,
                   const std::vector<audit::GroupSpec>& specs, const audit::DataKeys& data_keys,
                   Bytes& payload) {
  audit::OpenPage page;
  opener.open(frame, true, page);
  const size_t chosen = below(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    audit::OpenGroup& group = page.groups[i];
    const bool is_left_out = !group.is_readable();
    if (is_left_out) {  // at capture: there have to be some rows to seal anew
      group.rows.bytes.assign(size_t{specs[i].row_bytes} * page.head.rows, 0);
      group.rows.lengths.assign(page.head.rows, 0);
    }
    const auto found = data_keys.find(specs[i].id);
    const audit::DataKey* data_key = found == data_keys.end() ? nullptr : &found->second;
    if (i == chosen) {
      change_group(specs[i], group, page.head.groups[i], page.head.rows, data_key, payload);
    } else if (specs[i].kind != audit::GroupKind::kWhole && !is_left_out && one_in(4)) {
      std::vector<bool> visible(page.head.rows);
      for (size_t row = 0; row < visible.size(); ++row) visible[row] = !one_in(3);
      audit::append_redacted(specs[i], group, visible, payload);
    } else {
      audit::ColumnSealer sealer;
      page.head.groups[i] = sealer.seal(specs[i], group.rows, page.head.rows, group.key,
                                        {.data_key = data_key}, payload);
    }
  }
  if (one_in(4)) page.head.rows = static_cast<uint32_t>(below(5000));
  Bytes head;
  audit::encode_page_head(page.head, head);
  return head;
}

/// The log with one frame changed, and all of them chained and signed anew.
Bytes resealed(const std::string& path) {
  audit::FrameReader reader(path);
  const audit::DataKeys data_keys = audit::open_data_keys(reader.header(), key());
  const audit::PageOpener opener(reader.header(), reader.groups(), data_keys);
  Bytes log(audit::kMagic.begin(), audit::kMagic.end());
  audit::Digest chain{};
  const size_t chosen = below(6);
  Bytes head(reader.head_frame().head.begin(), reader.head_frame().head.end());
  if (chosen == 0) mutate(head);
  audit::append_frame(log, audit::FrameTag::kHead, head, {}, key(), chain);
  audit::Frame frame;
  for (size_t i = 1; reader.next(frame); ++i) {
    head.assign(frame.head.begin(), frame.head.end());
    Bytes payload(frame.payload.begin(), frame.payload.end());
    if (i == chosen) {
      if (frame.tag == audit::FrameTag::kPage && one_in(2)) {
        payload.clear();
        head = changed_page(frame, opener, reader.groups(), data_keys, payload);
      } else {
        mutate(one_in(2) ? head : payload);
      }
      if (one_in(20)) frame.tag = static_cast<audit::FrameTag>(random_bits());
    }
    audit::append_frame(log, frame.tag, head, payload, key(), chain);
  }
  return log;
}

/// True where nothing was refused.
bool read_all(const std::string& path, const std::string& other, bool is_blind) {
  bool is_clean = true;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      is_clean = false;
      testing::check_message(error);
    }
  };
  attempt([&] {
    VtrReader reader(path, one_in(2) ? std::optional(key()) : std::nullopt);
    VtrPage page;
    while (reader.next(page)) {
    }
  });
  attempt([&] {
    const VtrReport report = verify_vtr(path, key().public_key(), key());
    if (report.seal != VtrReport::Seal::kComplete) is_clean = false;
    if (report.seal == VtrReport::Seal::kComplete && is_blind) {
      throw std::runtime_error("a changed log is complete");
    }
  });
  attempt([&] {
    VtrReader reader(path, key());
    if (reader.header().detail != LogDetail::kCounters) {
      export_json(reader, [](std::string_view) {});
    }
  });
  if (!one_in(20)) return is_clean;  // it waits for the disk
  attempt([&] {
    redact_vtr(path, other,
               {.groups = {"tokens", "text"},
                .rows = [](uint64_t, int64_t position) { return position % 3 == 0; }},
               key(), true);
  });
  return is_clean;
}

}  // namespace

int main(int argc, char** argv) {
  const testing::TemporaryFolder folder;
  return testing::run_fuzz(argc, argv, "fuzz_vtr", "logs", [&](uint64_t seed) {
    random_bits.seed(seed);
    std::vector<std::string> paths;
    for (int kind = 0; kind < 6; ++kind) {
      const auto detail = static_cast<LogDetail>(kind % 3);
      paths.push_back(folder / ("healthy" + std::to_string(paths.size()) + ".vtr"));
      write_log(paths.back(), detail, detail == LogDetail::kFull, kind >= 3);
      if (!read_all(paths.back(), folder / "other.vtr", false)) {
        throw std::runtime_error("a healthy log was refused");
      }
    }
    const auto run = [&folder, paths](long) -> std::optional<bool> {
      const std::string& path = paths[below(paths.size())];
      const std::string healthy = testing::read_bytes(path);
      Bytes log(healthy.begin(), healthy.end());
      const bool is_blind = one_in(3);
      if (is_blind) {
        mutate(log);
      } else {
        log = resealed(path);
      }
      const std::string text(log.begin(), log.end());
      testing::write_bytes(folder / "changed.vtr", text);
      return read_all(folder / "changed.vtr", folder / "other.vtr", is_blind && text != healthy);
    };
    return testing::FuzzTarget{run, 0};
  });
}
