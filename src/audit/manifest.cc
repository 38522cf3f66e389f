// SPDX-License-Identifier: Apache-2.0
#include "manifest.h"
#include "core/same_file.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <optional>
#include <system_error>
#include <tuple>

#include "core/json_text.h"
#include "core/sha256.h"
#include "dsse.h"
#include "log_file.h"

namespace vitrine {
namespace audit {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxManifestBytes = size_t{8} << 20;
constexpr size_t kMaxStatementValues = size_t{1} << 20;

/// A file that is read; closes itself.
class InputFile {
 public:
  explicit InputFile(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail("cannot be opened");
    // Nobody waits for the writer of a named pipe.
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) return;
    ::close(descriptor_);
    throw Error(ErrorKind::kBadFile, path_ + ": is no regular file; expected one");
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() { ::close(descriptor_); }

  /// 0 at the end.
  size_t read(std::span<uint8_t> buffer) {
    ssize_t count;
    do {
      count = ::read(descriptor_, buffer.data(), buffer.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) fail("cannot be read");
    return static_cast<size_t>(count);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const int error_number = errno;
    throw Error(ErrorKind::kIo, path_ + ": " + what + ": " +
                                    std::generic_category().message(error_number) +
                                    "; expected a readable file");
  }
  const std::string path_;
  const int descriptor_;
};

/// Returns what changes when a file changes.
auto file_state(const std::string& path) {
  struct stat status {};
  ::stat(path.c_str(), &status);
  return std::tuple(status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

Json materials(const std::string& log_path, const VtrHeader& header) {
  Json list = Json::array();
  for (const auto& [name, hash] : header.log.hashes) {
    if (!is_hex_of_32_bytes(hash)) {
      throw Error(ErrorKind::kBadFile, log_path + ": the hash of " + quote_text(name) + " is " +
                                           quote_text(hash) +
                                           "; a manifest needs a SHA-256 in hexadecimal");
    }
    list.push_back({{"name", name}, {"digest", {{"sha256", hash}}}});
  }
  return list;
}

/// Numbers of 64 bits are strings: many readers keep a number in a double.
Json predicate(const std::string& log_path, const VtrReport& log) {
  const VtrHeader& header = log.header;
  const VtrCounts& counts = log.counts;
  const VtrAccount& positions = counts.positions;
  const bool is_complete = log.seal == VtrReport::Seal::kComplete;
  Json json;
  json["schema"] = "vitrine.run/1";
  json["log"] = {{"id", hex(header.log_id)},
                 {"publicKey", public_key_text(header.public_key)},
                 {"seal", seal_name(log.seal)},
                 {"level", log_detail_name(header.detail)},
                 {"hasText", header.has_text},
                 {"hasAttribution", !header.terms.empty()},
                 {"redactedColumnGroups", log.redacted_groups}};
  Json recipients = Json::array();
  for (const VtrSealedKeys& keys : header.sealed_keys) {
    recipients.push_back(public_key_text(keys.recipient));
  }
  json["log"]["recipients"] = recipients;
  json["engine"] = {{"build", header.engine_build}};
  json["run"] = {{"started", utc_text(header.started_unix_ns)},
                 {"closed", is_complete ? Json(utc_text(log.closed_unix_ns)) : Json(nullptr)},
                 {"stopReason", is_complete ? Json(log.stop_reason) : Json(nullptr)},
                 {"traceId", header.trace_id}};
  json["model"] = {{"architecture", header.log.architecture},
                   {"layers", header.log.num_layers},
                   {"vocabulary", header.log.vocab_size}};
  json["runtime"] = {{"device", header.log.device},
                     {"kernels", header.log.kernels},
                     {"instructionSet", header.log.isa},
                     {"threads", header.log.threads}};
  Json options = Json::object();
  for (const auto& [option, value] : header.log.sampler) options[option] = value;
  Json settings = Json::object();
  for (const auto& [option, value] : header.log.engine) settings[option] = value;
  json["runtime"]["options"] = settings;
  json["sampler"] = {{"seed", std::to_string(header.log.seed)}, {"options", options}};
  json["counts"] = {{"pages", counts.pages},         {"passes", counts.passes},
                    {"step_ns", counts.step_ns},     {"tokens", counts.tokens},
                    {"generated", counts.generated}, {"scored", counts.scored},
                    {"sequences", counts.sequences}, {"events", counts.events}};
  Json lost = Json::object();
  for (size_t i = 0; i < kLostReasons; ++i) {
    lost[std::string(lost_reason_name(static_cast<LostReason>(i)))] = positions.lost[i];
  }
  json["positions"] = {{"total", positions.total()},       {"captured", positions.captured},
                       {"counted", positions.counted},     {"replayed", positions.replayed},
                       {"discarded", positions.discarded}, {"lost", lost}};
  json["materials"] = materials(log_path, header);
  return json;
}

struct Disagreement {
  std::string field, found, expected;
};

/// Returns the first field of `expected` that `found` lacks or has otherwise. Further fields are
/// ignored: a later version may add some.
std::optional<Disagreement> find_disagreement(const nlohmann::json& expected,
                                              const nlohmann::json& found,
                                              const std::string& field) {
  const auto within = [&](const std::string& name) {
    return field.empty() ? name : field + "." + name;
  };
  if (expected.is_object() && found.is_object()) {
    for (const auto& [name, value] : expected.items()) {
      const auto other = found.find(name);
      if (other == found.end()) {
        return Disagreement{within(name), "not there", found_text(value)};
      }
      if (auto problem = find_disagreement(value, *other, within(name))) return problem;
    }
    return std::nullopt;
  }
  if (expected.is_array() && found.is_array() && expected.size() == found.size()) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string element = field + "[" + std::to_string(i) + "]";
      if (auto problem = find_disagreement(expected[i], found[i], element)) return problem;
    }
    return std::nullopt;
  }
  if (expected == found) return std::nullopt;
  const auto text = [](const nlohmann::json& value) {
    return value.is_array() ? "a list of " + std::to_string(value.size()) : found_text(value);
  };
  return Disagreement{field, text(found), text(expected)};
}

std::string read_manifest(const std::string& path) {
  InputFile file(path);
  std::string text;
  std::array<uint8_t, 65536> block;
  while (const size_t count = file.read(block)) {
    text.append(reinterpret_cast<const char*>(block.data()), count);
    if (text.size() > kMaxManifestBytes) {
      throw Error(ErrorKind::kBadFile, path + ": has more than " +
                                           std::to_string(kMaxManifestBytes) +
                                           " bytes; expected a log's manifest");
    }
  }
  return text;
}

}  // namespace

FileDigests digest_file(const std::string& path) {
  Sha256 sha256;
  crypto_generichash_state blake2b;
  crypto_generichash_init(&blake2b, nullptr, 0, crypto_generichash_BYTES_MAX);
  InputFile file(path);
  std::array<uint8_t, 65536> block;
  while (const size_t count = file.read(block)) {
    sha256.update({block.data(), count});
    crypto_generichash_update(&blake2b, block.data(), count);
  }
  std::array<uint8_t, crypto_generichash_BYTES_MAX> long_digest;
  crypto_generichash_final(&blake2b, long_digest.data(), long_digest.size());
  return {hex(sha256.finish()), hex(long_digest)};
}

std::string statement_text(const std::string& log_path, const FileDigests& digests,
                           const VtrReport& log) {
  const size_t slash = log_path.rfind('/');
  Json statement;
  statement["_type"] = kStatementType;
  statement["subject"] = {
      {{"name", slash == std::string::npos ? log_path : log_path.substr(slash + 1)},
       {"digest", {{"sha256", digests.sha256}, {"blake2b", digests.blake2b}}}}};
  statement["predicateType"] = kPredicateType;
  statement["predicate"] = predicate(log_path, log);
  // A host's names may be in any encoding.
  return statement.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void remove_manifest(const std::string& log_path) noexcept {
  const int before = errno;
  ::unlink(manifest_path(log_path).c_str());
  errno = before;
}

}  // namespace audit

std::string manifest_path(const std::string& log_path) {
  return audit::behind_links(log_path) + ".manifest.json";
}

std::string seal_manifest(const std::string& log_path, const SealKey& key) {
  const auto before = audit::file_state(log_path);
  const VtrReport log = verify_vtr(log_path);
  if (log.seal == VtrReport::Seal::kBroken) {
    throw Error(ErrorKind::kBadFile, log_path + ": is broken and gets no manifest: " + log.problem);
  }
  if (log.header.public_key != key.public_key()) {
    throw Error(ErrorKind::kInvalidArgument,
                log_path + ": is sealed with the key " + public_key_text(log.header.public_key) +
                    ", the given one is " + public_key_text(key.public_key()) +
                    "; expected the log's own");
  }
  const audit::FileDigests digests = audit::digest_file(log_path);
  if (audit::file_state(log_path) != before) {
    throw Error(ErrorKind::kBadFile,
                log_path + ": changed while it was read; make the manifest when the run has ended");
  }
  const std::string statement = audit::statement_text(log_path, digests, log);
  std::string text = audit::seal_envelope(audit::kStatementMediaType, statement, key);
  if (text.size() > audit::kMaxManifestBytes) {
    throw Error(ErrorKind::kUnsupported,
                log_path + ": its manifest has " + std::to_string(text.size()) +
                    " bytes, expected at most " + std::to_string(audit::kMaxManifestBytes) +
                    "; give the log fewer names");
  }
  return text;
}

void write_manifest(const std::string& log_path, const SealKey& key, const std::string& target) {
  refuse_to_replace(log_path, target);
  const std::string text = seal_manifest(log_path, key);
  audit::LogFile file(target);
  file.write(text);
  file.sync_and_close();
  file.publish();
}

void verify_manifest(const VtrReport& log, const std::string& log_path,
                     const std::string& manifest) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kBadFile, manifest + ": " + what);
  };
  if (log.seal == VtrReport::Seal::kBroken) refuse("the log itself is broken: " + log.problem);
  const audit::Envelope envelope = audit::parse_envelope(audit::read_manifest(manifest), manifest);
  if (envelope.payload_type != audit::kStatementMediaType) {
    refuse("payloadType is " + quote_text(envelope.payload_type) + ", expected '" +
           audit::kStatementMediaType + "'");
  }
  if (!envelope.is_signed_by(log.header.public_key)) {
    refuse("no signature is by the log's key " + public_key_text(log.header.public_key) +
           "; it was changed, or is of another log");
  }
  const nlohmann::json found =
      parse_json_object(envelope.payload, manifest, audit::kMaxStatementValues);
  const audit::FileDigests digests = audit::digest_file(log_path);
  // A reader of an encrypted log counts what the manifest, which needs none, could not.
  const VtrReport own = log.header.sealed_keys.empty() ? log : verify_vtr(log_path);
  nlohmann::json expected = nlohmann::json::parse(audit::statement_text(log_path, digests, own));
  expected["subject"][0].erase("name");  // a log may be renamed
  for (const char* field : {"_type", "subject", "predicateType", "predicate"}) {
    const nlohmann::json part{{field, expected[field]}};
    if (const auto problem = audit::find_disagreement(part, found, "")) {
      refuse(quote_text(problem->field) + " is " + problem->found + "; the log's is " +
             problem->expected);
    }
  }
}

}  // namespace vitrine
