// SPDX-License-Identifier: Apache-2.0
// The sealed log `.vtr` (docs/vtr-format.md): writer, reader, verification.
//
//     VtrLog log("run.vtr", header, {.seal = SealKey::load_or_create("key")});
//     engine->set_audit_sink(&log.sink());
//     …
//     engine->set_audit_sink(nullptr);
//     log.finish("length");
//     VtrReport report = verify_vtr("run.vtr", load_public_key("key.pub"));
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/audit.h"

namespace vitrine {

using PublicKey = std::array<uint8_t, 32>;  ///< Ed25519

/// An Ed25519 key pair that seals logs. Its file is one line of text with the secret seed, mode
/// 0600; the public half stands beside it under the same name and `.pub`. Errors: kIo where the
/// system refuses, kBadFile for a file that is no key, kInvalidArgument for a taken name.
class VITRINE_API SealKey {
 public:
  /// Makes a new random pair; no file is written.
  static SealKey generate();
  /// Reads the secret file. One that others can read is used with a warning, which a process logs
  /// once for each file (log_message).
  static SealKey load(const std::string& path);
  /// Makes the two files where `path` does not exist, and PATH.pub where it alone is missing and
  /// its folder takes it. kInvalidArgument where PATH.pub is of another key.
  static SealKey load_or_create(const std::string& path);
  /// Makes or checks PATH.pub as load_or_create does.
  void require_public_half(const std::string& path) const;
  /// Writes both files; neither may exist.
  void save(const std::string& path) const;
  /// Returns the half that anybody may know.
  const PublicKey& public_key() const { return public_key_; }
  /// Returns the signature over `message`.
  std::array<uint8_t, 64> sign(std::span<const uint8_t> message) const;
  /// Opens what was sealed for this key's public half (libsodium's crypto_box_seal, by the X25519
  /// form of the key): `message` is 48 bytes shorter than `box`. False where it was sealed for
  /// another or was changed.
  bool open_box(std::span<const uint8_t> box, std::span<uint8_t> message) const;
  ~SealKey();
  SealKey(const SealKey&) = default;
  SealKey& operator=(const SealKey&) = default;

 private:
  SealKey() = default;
  static SealKey from_seed(const std::array<uint8_t, 32>& seed);
  std::array<uint8_t, 32> seed_{};
  std::array<uint8_t, 64> secret_{};
  PublicKey public_key_{};
};

/// Returns true for a file whose permission bits let its group or others read or write it.
VITRINE_API bool is_open_to_others(const std::string& path);
/// Reads a `.pub` file. Throws kBadFile (also for a secret key given by mistake), kIo.
VITRINE_API PublicKey load_public_key(const std::string& path);
/// Returns the key as 64 hexadecimal digits.
VITRINE_API std::string public_key_text(const PublicKey& key);

/// How much of a token a log keeps.
enum class LogDetail : uint8_t {
  kCounters,  ///< how often each expert was used, page by page; nothing of a single token
  kStandard,  ///< everything but whole router distributions, in 16 bits a value
  kFull,      ///< everything the recorder saw, in 32 bits a value
};
/// Returns "counters", "standard" or "full".
VITRINE_API std::string_view log_detail_name(LogDetail detail);

/// Why a position has no record although the model processed it.
enum class LostReason : uint8_t {
  kNotReported,  ///< the recorder was off or not there yet
  kSinkSlow,     ///< the log fell behind and its policy is to drop
  kWriteFailed,  ///< the page that held it could not be written
  kBadRecord,    ///< its record contradicted itself
};
inline constexpr size_t kLostReasons = 4;  ///< of LostReason
/// Returns "not reported", "sink too slow", "page not written" or "bad record".
VITRINE_API std::string_view lost_reason_name(LostReason reason);

/// States of positions. Every position that a sequence ever had is in exactly one.
struct VtrAccount {
  uint64_t captured = 0;                      ///< has a record
  uint64_t counted = 0;                       ///< is in the expert counters
  uint64_t replayed = 0;                      ///< taken over from another sequence
  uint64_t discarded = 0;                     ///< was in one of the other states, then undone
  std::array<uint64_t, kLostReasons> lost{};  ///< positions without a record, by LostReason
  /// Returns the lost ones of every reason together.
  uint64_t num_lost() const { return lost[0] + lost[1] + lost[2] + lost[3]; }
  /// Returns all positions of the account.
  uint64_t total() const { return captured + counted + replayed + discarded + num_lost(); }
  bool operator==(const VtrAccount&) const = default;
};

/// What the end record says.
struct VtrCounts {
  uint64_t pages = 0;      ///< of the log
  uint64_t passes = 0;     ///< passes that began in these pages
  uint64_t step_ns = 0;    ///< nanoseconds that the passes' steps took, by the host's clock
  uint64_t tokens = 0;     ///< records
  uint64_t generated = 0;  ///< records whose prediction chose the next token
  uint64_t scored = 0;     ///< records whose prediction scores the prompt
  uint64_t sequences = 0;  ///< sequences that were created or forked
  uint64_t events = 0;     ///< lines of the event columns
  VtrAccount positions;    ///< all of them, by state
  bool operator==(const VtrCounts&) const = default;
};

/// One line of a page's event column: where a run of positions came from or went.
struct VtrEvent {
  /// What happened.
  enum class Kind : uint8_t {
    kCreated,
    kForked,    ///< positions 0 … count - 1 are replayed from `source`
    kReplayed,  ///< positions first … first + count - 1 come from a cache; `source`: the sequence
                ///< whose record they refer to
    kTruncated,  ///< positions from `first` on were undone
    kReleased,   ///< the sequence had `first` positions
    kCounted,    ///< first … first + count - 1 are in the expert counters
    kLost,       ///< first … first + count - 1, with `reason`
    kCopied,     ///< the records of first … first + count - 1 are copies of an earlier request's
  };
  Kind kind = Kind::kCreated;                    ///< what happened
  LostReason reason = LostReason::kNotReported;  ///< kLost: why
  uint32_t row = 0;                              ///< records of the page that stand before it
  uint64_t sequence = 0;                         ///< to which it happened
  /// kForked, kReplayed: the sequence that they refer to. kCopied: a digest of where the copies are
  /// from, which tells nothing to whoever has this log alone.
  uint64_t source = 0;
  int64_t first = 0;  ///< where a run of positions begins, as `kind` says
  int64_t count = 0;  ///< positions in that run
  bool operator==(const VtrEvent&) const = default;
};

/// Who may read an encrypted log, and what of it.
struct VtrRecipient {
  PublicKey key{};                       ///< a reader's, as `vitrine audit keygen` makes it
  std::vector<std::string> groups = {};  ///< names as in VtrRedaction; empty: all
};

/// The keys of column groups, sealed for one reader.
struct VtrSealedKeys {
  /// One column group's key.
  struct Box {
    uint8_t group = 0;                 ///< the column group's number
    std::array<uint8_t, 80> sealed{};  ///< crypto_box_seal of 32 bytes
    bool operator==(const Box&) const = default;
  };
  PublicKey recipient{};   ///< whose key opens the boxes
  std::vector<Box> boxes;  ///< ascending groups
};

/// What is taken out of a log: only what a column group's name says. Sequences, positions and
/// states stay.
struct VtrRedaction {
  std::vector<std::string> groups = {};  ///< "tokens", "text", "prediction", "routing", "norms",
                                         ///< "digests", "router_probs", "attribution",
                                         ///< "sampler", "constraint", "hidden_states",
                                         ///< "federation", "failures", "drafts",
                                         ///< "counters"
  /// Says true, for a sequence and a position, of the rows that are taken out; empty: every row is.
  std::function<bool(uint64_t, int64_t)> rows = {};
};

/// Returns what keeps a prompt of so many tokens out of a log: its tokens, and all that tells them.
/// Routes, norms and probabilities are among it, since whoever has the model finds each token by
/// them, and so are guesses, which repeat what stands in the prompt.
VITRINE_API std::vector<VtrRedaction> redact_prompt(int64_t prompt_tokens);

/// The head of a log.
struct VtrHeader {
  uint32_t format_version = 8;              ///< of the file; 6 and 7 are read, too
  LogHeader log;                            ///< the facts that every log begins with
  LogDetail detail = LogDetail::kStandard;  ///< what is kept of each record
  AuditMode mode = AuditMode::kDeferred;    ///< how the engine recorded
  /// The layers, of which only layer, top_k, num_experts, reads_embedding and router are set, and
  /// two marks: router_scores is 0 where the log has scores and selection keys, expert_norms is 0
  /// where it has norms of experts' outputs; else they are -1.
  std::vector<AuditLayout::Layer> layers;
  std::vector<AuditLayout::Term> terms;      ///< of the attribution; empty: there is none
  std::vector<int32_t> hidden_state_layers;  ///< ascending; empty: no hidden states
  AuditLayout::Federation federation;        ///< without word offsets; no names: a single model
  int32_t hidden_size = 0;                   ///< of the hidden states; 0: there are none
  PublicKey public_key{};                    ///< the key that checks the pages' signatures
  bool is_key_ephemeral = true;              ///< made for this log alone and thrown away
  std::array<uint8_t, 16> log_id{};          ///< random
  uint64_t started_unix_ns = 0;              ///< by the system's clock
  uint64_t started_monotonic_ns = 0;         ///< by the host's monotonic clock; version 6: 0
  /// Each count of experts is over so many tokens at least; 0: the log has no counts (but one of
  /// version 6 at level counters has them for each page).
  int32_t counter_tokens = 0;
  bool has_text = false;     ///< each token's piece is kept
  std::string engine_build;  ///< version, and BLAKE2b-256 of the library's file
  std::string trace_id;      ///< the host's OpenTelemetry trace, or empty
  /// The keys, where every column group but sequences, positions and states is encrypted.
  std::vector<VtrSealedKeys> sealed_keys;
};

/// Returns true for the id of a trace as W3C's Trace Context has it: 32 hexadecimal digits in lower
/// case, not all 0.
VITRINE_API bool is_trace_id(std::string_view id);

/// Returns nanoseconds since 1970 as RFC 3339 writes them, in UTC:
/// "2026-11-27T06:34:31.000000000Z". Thread-safe.
VITRINE_API std::string utc_text(uint64_t unix_ns);

/// How a log is written.
struct VtrOptions {
  LogDetail detail = LogDetail::kStandard;  ///< what is kept of each record
  /// The key that seals it. Without one the log makes its own, and vouches only for itself.
  std::optional<SealKey> seal = {};
  bool durable = false;  ///< fsync after each page
  bool text = false;     ///< keep each token's piece too
  /// What happens to a pass that comes while the log is behind.
  enum class WhenBehind : uint8_t {
    kWait,   ///< the next step waits
    kDrop,   ///< the pass is not recorded; its positions are counted as lost
    kSpill,  ///< the pass goes to a nameless file beside the log until the log catches up
  } when_behind = WhenBehind::kWait;  ///< for a pass that comes while the log is behind
  /// What happens where the file cannot be written.
  enum class OnError : uint8_t {
    kFail,     ///< the step after a failed write throws, and so does finish()
    kDegrade,  ///< go on; the positions of pages that could not be written are counted as lost
  } on_error = OnError::kFail;          ///< for a file that cannot be written
  double page_seconds = 1;              ///< a page is closed at this age …
  int page_tokens = 4096;               ///< … or with this many records (1 to 4096)
  size_t ring_bytes = size_t{1} << 20;  ///< of the ring between the step's thread and the log's
  std::string trace_id = {};            ///< carried in the head: 32 hexadecimal digits, or empty
  bool overwrite = false;               ///< true replaces a log of that name, with its manifest
  /// Which records keep the hidden states that the engine recorded (level full); empty: all. Called
  /// from the log's thread; what it throws comes out of finish().
  std::function<bool(const TokenRecord&)> hidden_states_at = {};
  /// Who can read it; empty: everyone. Each column group needs one recipient at least.
  std::vector<VtrRecipient> recipients = {};
  /// What is never written. Its functions are called from the log's thread, and the commitments
  /// stay, as with redact_vtr().
  std::vector<VtrRedaction> redact = {};
};

/// Writes a `.vtr` log from a thread of its own, page by page, under its final name. The file
/// appears, with its head on the disk, before the first pass is recorded (the first reserve() of
/// its sink waits for that), so that whatever a run has shown, there is a log of it. A log that is
/// there already is refused, or with VtrOptions::overwrite replaced then: a run that is refused
/// before its first pass leaves it as it was. A crash afterwards leaves everything up to the last
/// whole page readable. A log is for one engine at a time: each engine numbers its sequences from
/// 1, so that the records of two at once would be taken for one engine's. Give each a log of its
/// own.
class VITRINE_API VtrLog {
 public:
  /// Opens a temporary file beside `path` now, so that an unwritable path fails before anything is
  /// generated (kIo). Throws kUnsupported for an extension other than .vtr, kInvalidArgument for
  /// options out of range and where a log or manifest of that name is there already and may not be
  /// overwritten. `token_text` is needed for `text` only and is called from the log's
  /// thread.
  VtrLog(const std::string& path, LogHeader header, VtrOptions options = {},
         std::function<std::string(int32_t)> token_text = {});
  /// Without finish() the log stays open: whole pages without an end record. Before the first pass
  /// nothing is left of it, and an older file there stays as it was.
  ~VtrLog();
  /// The sink for Engine::set_audit_sink; take it away from there before the log ends. Failures of
  /// a constraint are kept where the head names one (LogHeader::constraint), guesses where it names
  /// a drafter (LogHeader::speculation). A log has one layout: open() throws kInvalidArgument for a
  /// second one and for a column group without a recipient, and kUnsupported where `detail` is full
  /// and the layout has no router probabilities though it has experts, or hidden states of more
  /// than 1 MiB a token.
  AuditSink& sink();
  /// Called from the log's thread with each unrounded record, before its page is written. Set
  /// before use. What it throws comes out of finish().
  void on_record(std::function<void(const TokenRecord&)> callback);
  /// Drains, writes the last page and the end record, syncs. Call it once, after the last commit().
  /// With kFail it throws what went wrong (kIo: disk full, …); the file is then an open log. The
  /// first 4,096 bytes of the reason are kept.
  void finish(const std::string& stop_reason);
  /// Returns, after finish(), what the end record says (or would have said).
  const VtrCounts& counts() const;
  /// Returns, after finish(), the bytes of the file.
  uint64_t bytes_written() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Two hash bytes of a layer's unrounded values. Where two records differ, the first marks that
/// differ say in which layer they begin to (one difference in 256 is missed).
struct LayerMark {
  uint8_t residual_norm = 0;  ///< of the layer's residual norm
  uint8_t routes = 0;         ///< of the layer's experts and their weights
};

/// A page, decoded. Fields of columns that the log does not have (or that were left out) are empty
/// or NaN.
struct VtrPage {
  uint64_t number = 0;                              ///< counts from 0
  uint64_t offset = 0;                              ///< in the file
  uint64_t bytes = 0;                               ///< in the file
  uint64_t closed_unix_ns = 0;                      ///< by the system's clock
  uint64_t passes = 0;                              ///< passes that began in it
  uint64_t step_ns = 0;                             ///< nanoseconds that their steps took
  std::vector<TokenRecord> records;                 ///< in the order of their passes
  std::vector<uint64_t> digests;                    ///< [records]: over the unrounded values
  std::vector<std::vector<LayerMark>> layer_marks;  ///< [records][layers], level standard; or empty
  std::vector<std::string> text;                    ///< [records], or empty
  std::vector<bool> is_redacted;  ///< [records]: some column of it was left out or is encrypted
  std::vector<VtrEvent> events;   ///< in the order in which they came
  std::vector<ConstraintFailure> failures;  ///< those that the log heard of since the page before
  std::vector<DraftedPass> drafts;          ///< those that the log heard of since the page before
  /// [layer][expert] how often each expert was used by `expert_use_tokens` tokens, which stand in
  /// this page and in pages before it; empty where the log or the page has no counts.
  std::vector<std::vector<uint64_t>> expert_uses;
  uint64_t expert_use_tokens = 0;  ///< how many tokens these are
};

/// What ends a log that was finished.
struct VtrEnd {
  std::string stop_reason;      ///< as finish() was given it
  VtrCounts counts;             ///< what the writer counted
  uint64_t closed_unix_ns = 0;  ///< by the system's clock
};

/// Reads a log page by page; checks sizes and the chain of hashes, not signatures. Never trusts the
/// file: a page decodes to a few MiB, and no file can ask for more than a few hundred. Not
/// thread-safe.
class VITRINE_API VtrReader {
 public:
  /// `reader` opens what is encrypted for it; without, such columns read as left out. Throws kIo
  /// where the file cannot be read, kBadFile (path, byte and reason) where it is no log or its head
  /// is damaged, kUnsupported for another version, kInvalidArgument for a `reader` that is no
  /// recipient of an encrypted log.
  explicit VtrReader(const std::string& path, const std::optional<SealKey>& reader = {});
  ~VtrReader();
  /// Returns the head, which the constructor has read.
  const VtrHeader& header() const;
  /// The next page; false at the end record and where the file ends. Throws kBadFile for damage.
  bool next(VtrPage& page);
  /// Returns, after next() said false, the end record, if there is one.
  const std::optional<VtrEnd>& end() const;
  /// Returns, after next() said false without an end, the bytes of an unfinished page behind the
  /// last whole one.
  uint64_t torn_bytes() const;
  /// The path, as given.
  const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns SipHash-2-4 of a record's unrounded words (docs/vtr-format.md has the order). A log
/// keeps it at every level, so that a rerun can be compared to the last bit. Thread-safe.
VITRINE_API uint64_t record_digest(const TokenRecord& record);
/// Returns the marks of a record's layers, which a log of level standard keeps. Thread-safe.
VITRINE_API std::vector<LayerMark> layer_marks(const TokenRecord& record);
/// Returns the record with its values as a log of this detail gives them back. Thread-safe.
VITRINE_API TokenRecord round_record(TokenRecord record, LogDetail detail);
/// Returns what stands in a log's head: the library's version, and the BLAKE2b-256 of its file.
VITRINE_API const std::string& engine_build();

/// verify_vtr()'s answer.
struct VtrReport {
  /// What the log's seal is worth.
  enum class Seal : uint8_t {
    kComplete,  ///< chain and signatures hold, and the end record's counts agree
    kOpen,  ///< chain and signatures hold up to the last whole page, but there is no end record: a
            ///< crash or a cut
    kBroken,                  ///< something was changed; see `problem`
  } seal = Seal::kBroken;     ///< what the seal is worth
  std::string problem;        ///< one line: what, and what was expected
  uint64_t page = 0;          ///< kBroken: in which page (the head and the end count as pages, too)
  uint64_t offset = 0;        ///< kBroken: the byte at which that page begins
  uint64_t torn_bytes = 0;    ///< kOpen: bytes of an unfinished page
  bool is_key_given = false;  ///< false: the log vouches only for itself
  uint64_t redacted_groups = 0;  ///< column groups of pages that were left out, whole or in part
  /// Column groups of pages that are encrypted and could not be opened.
  uint64_t closed_groups = 0;
  /// The names of the column groups that were left out, as VtrRedaction::groups has them, in the
  /// log's order, each once.
  std::vector<std::string> redacted_columns;
  std::vector<std::string> closed_columns;  ///< the names of those that could not be opened
  std::vector<std::string> columns;         ///< the names of all that the log has, there or not
  VtrHeader header;                         ///< as far as it could be read
  VtrCounts counts;             ///< counted by the verification, not taken from the end record
  std::string stop_reason;      ///< of the end record
  uint64_t closed_unix_ns = 0;  ///< kComplete: when the end record was written
};
/// Returns "complete", "open" or "broken".
VITRINE_API std::string_view seal_name(VtrReport::Seal seal);

/// Checks everything: the chain, every signature (by `key` if given, else by the key in the head),
/// every commitment, that each byte is what the content's canonical encoding has there, that every
/// position is in exactly one state, and that the end's counts agree. Of encrypted columns that
/// `reader` cannot open, chain and hashes are checked and their rows are not. A damaged log is an
/// answer and no error. Throws kIo where the file cannot be read, kInvalidArgument for a `reader`
/// that is no recipient.
VITRINE_API VtrReport verify_vtr(const std::string& path, const std::optional<PublicKey>& key = {},
                                 const std::optional<SealKey>& reader = {});

/// Hands the log to `write` as JSON ("vitrine.audit/1", docs/audit-log.md), in pieces. Throws
/// kBadFile for damage, kUnsupported for level counters. An open log's stop_reason is "open".
VITRINE_API void export_json(VtrReader& reader, const std::function<void(std::string_view)>& write,
                             std::function<TokenPiece(int32_t)> token_text = {});

/// AES keys of 16, 24 or 32 bytes for Parquet's modular encryption (AES_GCM_V1, encrypted footers).
struct ParquetKeys {
  std::string footer = {};  ///< of footers and columns; empty: nothing is encrypted
  std::string text = {};    ///< of columns that tell the text (ids, pieces, probabilities of both,
                            ///< hidden states); empty: `footer` opens those, too
};

/// A run as Parquet tables in a folder, for DuckDB, pandas and the like: tokens.parquet (a row a
/// record), logprobs.parquet (a row a prediction), routing.parquet (a row a record, layer and
/// slot), with `has_attribution` attribution.parquet (a row a term), with `specialists` of a
/// federation federation.parquet (a row a prediction and specialist), and where there are hidden
/// states hidden.parquet (a row a record and layer). docs/audit-log.md has the columns; the
/// schema's version is in each footer. Needs libvitrine_parquet.so, which is loaded here.
class VITRINE_API ParquetExport {
 public:
  /// `folder` appears whole in finish(), or not at all. `token_bytes`: what an id adds to the
  /// output (may be empty: then there is no text). `notes`: what else the footers are to say, as
  /// names (`vitrine.` is put before them) and values. Throws kUnavailable where the library is not
  /// there, kInvalidArgument where `folder` holds something or a key has another length, kIo.
  ParquetExport(const std::string& folder, const LogHeader& header, bool has_attribution,
                std::function<std::string(int32_t)> token_bytes = {}, const ParquetKeys& keys = {},
                const std::vector<std::string>& specialists = {},
                const std::vector<std::pair<std::string, std::string>>& notes = {});
  ~ParquetExport();
  /// Throws kIo, kOutOfMemory.
  void add(const TokenRecord& record);
  /// Writes what is left and gives the folder its name. Throws kIo, kOutOfMemory.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Copies a log without some of its columns, so that its seal still holds. Of an encrypted column
/// group single rows can be left out only with a `reader` that opens it; the other rows of that
/// group are in the clear in the copy. Throws kInvalidArgument for an unknown group and for rows of
/// one that is closed, and where `target` is there and `overwrite` is not given; kBadFile for
/// damage, kIo. Nothing is left under `target` then.
VITRINE_API void redact_vtr(const std::string& path, const std::string& target,
                            const VtrRedaction& redaction,
                            const std::optional<SealKey>& reader = {}, bool overwrite = false);

/// Returns where a log's manifest stands: `log_path`, or the file that it links to, and
/// ".manifest.json". A new VtrLog and redact_vtr() remove a manifest there when their log takes its
/// name.
VITRINE_API std::string manifest_path(const std::string& log_path);

/// Returns the manifest of a log, one line of JSON. Verifies the log first; the same log and key
/// give the same bytes. An open log has one too, which says that the log is open. Throws kBadFile
/// where the log is broken, changes meanwhile or names a file's hash that is no SHA-256,
/// kInvalidArgument where it is sealed with another key than `key`, kUnsupported where its head
/// names so much that the manifest would have more than 8 MiB, kIo. Thread-safe.
VITRINE_API std::string seal_manifest(const std::string& log_path, const SealKey& key);

/// Writes what seal_manifest() returns into the file `target`, which appears whole or not at all.
VITRINE_API void write_manifest(const std::string& log_path, const SealKey& key,
                                const std::string& target);

/// Checks the manifest in the file `manifest` against the log: its signature is by the key in the
/// log's head, its subject is the log's file, and it says of the run what the log says. `log` is
/// verify_vtr()'s answer for `log_path`. What a later version adds to a manifest is ignored. Throws
/// kBadFile with one line (file, field, what was found and what was expected), kIo. Thread-safe.
VITRINE_API void verify_manifest(const VtrReport& log, const std::string& log_path,
                                 const std::string& manifest);

}  // namespace vitrine
