// SPDX-License-Identifier: Apache-2.0
#include "serve/prefix_file.h"

#include <sodium.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/file_io.h"
#include "vitrine/core.h"

namespace vitrine::serve {

namespace {

constexpr char kPrefixMagic[8] = {'V', 'I', 'T', 'P', 'R', 'F', 'X', '\n'};
constexpr uint32_t kPrefixVersion = 1;
constexpr uint32_t kMostHeadBytes = 1 << 16, kMostRecordBytes = 1 << 28;
constexpr size_t kPrefixNonce = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr size_t kSealedExtra = kPrefixNonce + crypto_aead_xchacha20poly1305_ietf_ABYTES;

using FileBytes = std::vector<std::byte>;
using FileHash = std::array<std::byte, 32>;

struct PrefixPrelude {
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t is_encrypted = 0;
  uint32_t head_bytes = 0;
  uint32_t record_bytes = 0;
  uint64_t content_bytes = 0;
};
static_assert(sizeof(PrefixPrelude) == 32);

[[noreturn]] void refuse_file(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kBadFile, path + ": " + what);
}

const unsigned char* unsigned_bytes(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

FileHash hash_of(std::span<const std::byte> first, std::span<const std::byte> second = {}) {
  FileHash hash;
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, hash.size());
  crypto_generichash_update(&state, unsigned_bytes(first), first.size());
  crypto_generichash_update(&state, unsigned_bytes(second), second.size());
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(hash.data()), hash.size());
  return hash;
}

void append(FileBytes& all, std::span<const std::byte> more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// A nonce, then the sealed bytes. Without a key the bytes as they are.
FileBytes seal_bytes(const std::optional<StoreKey>& key, std::span<const std::byte> plain,
                     std::span<const std::byte> bound) {
  if (!key) return {plain.begin(), plain.end()};
  FileBytes sealed(plain.size() + kSealedExtra);
  auto* out = reinterpret_cast<unsigned char*>(sealed.data());
  randombytes_buf(out, kPrefixNonce);
  crypto_aead_xchacha20poly1305_ietf_encrypt(out + kPrefixNonce, nullptr, unsigned_bytes(plain),
                                             plain.size(), unsigned_bytes(bound), bound.size(),
                                             nullptr, out, key->data());
  return sealed;
}

FileBytes open_bytes(const std::string& path, const std::optional<StoreKey>& key, FileBytes sealed,
                     std::span<const std::byte> bound) {
  if (!key) return sealed;
  if (sealed.size() < kSealedExtra) refuse_file(path, "is too short to be encrypted");
  FileBytes plain(sealed.size() - kSealedExtra);
  const unsigned char* in = unsigned_bytes(sealed);
  if (crypto_aead_xchacha20poly1305_ietf_decrypt(
          reinterpret_cast<unsigned char*>(plain.data()), nullptr, nullptr, in + kPrefixNonce,
          sealed.size() - kPrefixNonce, unsigned_bytes(bound), bound.size(), in,
          key->data()) != 0) {
    refuse_file(path, "is not opened by the tenant's key; expected a file of this key");
  }
  return plain;
}

FileBytes read_part(std::ifstream& file, const std::string& path, size_t count) {
  FileBytes bytes(count);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(count));
  if (!file) refuse_file(path, "is cut off");
  return bytes;
}

std::string record_text(const StoredRecord& record) {
  const kv::PrefixShape& shape = record.shape;
  return nlohmann::json{{"tokens", shape.history},
                        {"begin", record.begin},
                        {"parent", record.parent},
                        {"first_block", shape.first_block},
                        {"holds_window", shape.holds_window},
                        {"window_points", shape.window_points},
                        {"state_length", shape.state_length},
                        {"token_words", record.token_words}}
      .dump();
}

/// Its numbers are checked where they are used (BlockPool::restore), but for what is read by them.
StoredRecord parse_record(const std::string& path, const FileBytes& bytes) {
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  StoredRecord record;
  try {
    const nlohmann::json json = nlohmann::json::parse(text, text + bytes.size());
    json.at("tokens").get_to(record.shape.history);
    json.at("begin").get_to(record.begin);
    json.at("parent").get_to(record.parent);
    json.at("first_block").get_to(record.shape.first_block);
    json.at("holds_window").get_to(record.shape.holds_window);
    json.at("window_points").get_to(record.shape.window_points);
    json.at("state_length").get_to(record.shape.state_length);
    json.at("token_words").get_to(record.token_words);
  } catch (const nlohmann::json::exception& error) {
    refuse_file(path, std::string("its record is none: ") + error.what());
  }
  const int64_t length = record.shape.length();
  if (length < 1 || record.begin < 0 || record.begin >= length || record.token_words < 0 ||
      record.token_words > (1 << 24) || record.shape.first_block < 0 ||
      record.shape.first_block > record.begin || record.parent.find('/') != std::string::npos ||
      (record.begin > 0) != !record.parent.empty()) {
    refuse_file(path, "its record contradicts itself; expected tokens, and a beginning of them");
  }
  return record;
}

}  // namespace

/// A file whose record has been read and checked; the content follows.
struct PrefixFiles::Opened {
  std::ifstream file;
  PrefixPrelude prelude;
  FileHash hash = {};
  StoredRecord record;
};

std::string PrefixFiles::head_text() const {
  nlohmann::ordered_json head = {{"scope", scope_}};
  for (const auto& [name, value] : fields_) head[name] = value;
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

uint64_t PrefixFiles::file_bytes(const StoredRecord& record, uint64_t content_bytes) const {
  return sizeof(PrefixPrelude) + head_text().size() + record_text(record).size() + content_bytes +
         2 * sizeof(FileHash) + (key_ ? 2 * kSealedExtra : 0);
}

void PrefixFiles::write(const std::string& path, const StoredRecord& record,
                        std::span<const std::byte> bytes, std::span<const int32_t> words) const {
  const std::string head = head_text(), text = record_text(record);
  const size_t extra = key_ ? kSealedExtra : 0;
  PrefixPrelude prelude;
  std::memcpy(prelude.magic, kPrefixMagic, sizeof(kPrefixMagic));
  prelude.version = kPrefixVersion;
  prelude.is_encrypted = key_ ? 1 : 0;
  prelude.head_bytes = static_cast<uint32_t>(head.size());
  prelude.record_bytes = static_cast<uint32_t>(text.size() + extra);
  prelude.content_bytes = bytes.size() + words.size_bytes() + extra;
  FileBytes all;
  all.reserve(sizeof(prelude) + head.size() + prelude.record_bytes + prelude.content_bytes +
              2 * sizeof(FileHash));
  append(all, std::as_bytes(std::span(&prelude, 1)));
  append(all, bytes_of_text(head));
  append(all, seal_bytes(key_, bytes_of_text(text), all));
  const FileHash hash = hash_of(all);
  append(all, hash);
  const size_t content = all.size();
  if (key_) {
    FileBytes plain(bytes.begin(), bytes.end());
    append(plain, std::as_bytes(words));
    append(all, seal_bytes(key_, plain, hash));
  } else {
    append(all, bytes);
    append(all, std::as_bytes(words));
  }
  append(all, hash_of(hash, std::span(all).subspan(content)));
  constexpr unsigned kOwnerAlone = 0600;  // a prompt may stand in it
  checkpoint::ReplacementFile file(path, kOwnerAlone);
  file.write(0, all);
  file.commit();
}

PrefixFiles::Opened PrefixFiles::open(const std::string& path) const {
  Opened opened;
  opened.file.open(path, std::ios::binary | std::ios::ate);
  if (!opened.file) throw Error(ErrorKind::kIo, path + ": cannot be read");
  const auto size = static_cast<uint64_t>(opened.file.tellg());
  opened.file.seekg(0);
  PrefixPrelude& prelude = opened.prelude;
  FileBytes all = read_part(opened.file, path, sizeof(prelude));
  std::memcpy(&prelude, all.data(), sizeof(prelude));
  if (std::memcmp(prelude.magic, kPrefixMagic, sizeof(kPrefixMagic)) != 0) {
    refuse_file(path, "is no stored prefix");
  }
  if (prelude.version != kPrefixVersion) {
    refuse_file(path, "its format has version " + std::to_string(prelude.version) + "; expected " +
                          std::to_string(kPrefixVersion));
  }
  const uint64_t before = sizeof(prelude) + uint64_t{prelude.head_bytes} + prelude.record_bytes;
  if (prelude.head_bytes > kMostHeadBytes || prelude.record_bytes > kMostRecordBytes ||
      size < before + 2 * sizeof(FileHash) ||
      size - before - 2 * sizeof(FileHash) != prelude.content_bytes) {
    refuse_file(path, "has " + std::to_string(size) +
                          " bytes, which is not what its beginning says (cut off?)");
  }
  const FileBytes head = read_part(opened.file, path, prelude.head_bytes);
  append(all, head);
  const size_t bound = all.size();
  FileBytes record = read_part(opened.file, path, prelude.record_bytes);
  append(all, record);
  const FileBytes hash = read_part(opened.file, path, sizeof(FileHash));
  opened.hash = hash_of(all);
  if (!std::ranges::equal(hash, opened.hash)) {
    refuse_file(path, "its beginning has another hash than it says; expected the bytes as written");
  }
  const auto* text = reinterpret_cast<const char*>(head.data());
  const auto json = nlohmann::json::parse(text, text + head.size(), nullptr, false);
  StoreFields expected = fields_;
  expected.emplace_back("scope", scope_);
  for (const auto& [name, value] : expected) {
    std::string said;
    if (json.is_object() && json.contains(name) && json[name].is_string()) said = json[name];
    if (said == value) continue;
    std::string told = "field '";
    told.append(name).append("' is '").append(said).append("'; expected '").append(value);
    refuse_file(path, told.append("'"));
  }
  if ((prelude.is_encrypted != 0) != key_.has_value()) {
    refuse_file(path, key_ ? "is not encrypted; expected a file of the tenant's key"
                           : "is encrypted, and there is no key for its tenant");
  }
  opened.record =
      parse_record(path, open_bytes(path, key_, std::move(record), std::span(all).first(bound)));
  return opened;
}

StoredRecord PrefixFiles::read_record(const std::string& path) const { return open(path).record; }

StoredContent PrefixFiles::read_content(const std::string& path, const StoredRecord& record,
                                        uint64_t bytes) const {
  Opened opened = open(path);
  const StoredRecord& now = opened.record;
  if (record_text(now) != record_text(record)) refuse_file(path, "was replaced meanwhile");
  const auto words = static_cast<uint64_t>((now.shape.length() - now.begin) * now.token_words);
  const uint64_t expected = bytes + words * sizeof(int32_t);
  constexpr uint64_t kMostSeal = 4096;  // what encryption adds, at most
  if (opened.prelude.content_bytes < expected ||
      opened.prelude.content_bytes > expected + kMostSeal) {
    refuse_file(path, "says that it holds " + std::to_string(opened.prelude.content_bytes) +
                          " bytes; expected " + std::to_string(expected));
  }
  FileBytes sealed = read_part(opened.file, path, opened.prelude.content_bytes);
  const FileBytes hash = read_part(opened.file, path, sizeof(FileHash));
  if (!std::ranges::equal(hash, hash_of(opened.hash, sealed))) {
    refuse_file(path, "has another hash than it says; expected the bytes as written");
  }
  FileBytes plain = open_bytes(path, key_, std::move(sealed), opened.hash);
  if (plain.size() != bytes + words * sizeof(int32_t)) {
    refuse_file(path, "holds " + std::to_string(plain.size()) + " bytes; expected " +
                          std::to_string(bytes + words * sizeof(int32_t)));
  }
  StoredContent content;
  content.words.resize(words);
  std::memcpy(content.words.data(), plain.data() + bytes, words * sizeof(int32_t));
  plain.resize(bytes);
  content.bytes = std::move(plain);
  return content;
}

}  // namespace vitrine::serve
