// SPDX-License-Identifier: Apache-2.0
#include "serve/prefix_store.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "audit/pass_record.h"
#include "core/sha256.h"
#include "serve/host_error.h"

namespace vitrine::serve {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStoredSuffix = ".prefix";
constexpr size_t kMostNotes = 64;
constexpr auto kTriedAgain = std::chrono::seconds(10);  // a file is not read more often than that
constexpr auto kStaysFor = std::chrono::minutes(10);    // a file that was just used
constexpr auto kLeftOver = std::chrono::hours(1);       // a temporary file that nobody writes

/// Hashes texts, under a tenant's key where there is one, so that a name tells nothing.
std::string short_digest(const std::optional<StoreKey>& key,
                         std::initializer_list<std::span<const uint8_t>> parts) {
  std::array<uint8_t, 16> digest;
  crypto_generichash_state state;
  crypto_generichash_init(&state, key ? key->data() : nullptr, key ? key->size() : 0,
                          digest.size());
  for (const std::span<const uint8_t> part : parts) {
    const uint64_t size = part.size();
    crypto_generichash_update(&state, reinterpret_cast<const uint8_t*>(&size), sizeof(size));
    crypto_generichash_update(&state, part.data(), part.size());
  }
  crypto_generichash_final(&state, digest.data(), digest.size());
  return hex(digest);
}

std::span<const uint8_t> text_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::optional<StoreKey> key_of(const std::string& secret) {
  if (secret.empty()) return std::nullopt;
  StoreKey key;
  constexpr std::string_view kPurpose = "vitrine prefix store";
  crypto_generichash(key.data(), key.size(), text_bytes(secret).data(), secret.size(),
                     text_bytes(kPurpose).data(), kPurpose.size());
  return key;
}

}  // namespace

PrefixStore::PrefixStore(PrefixStoreOptions options, StoreFit fit, std::function<void()> wake)
    : options_(std::move(options)),
      fit_(std::move(fit)),
      wake_(std::move(wake)),
      shelf_(fit_.sizes()) {
  if (sodium_init() < 0) throw Error(ErrorKind::kInternal, "libsodium cannot be used");
  tasks_.emplace_back([this] { look_around(); });
  thread_ = std::thread([this] { run(); });
}

PrefixStore::~PrefixStore() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PrefixStore::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !tasks_.empty(); });
    if (is_ending_) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    is_working_ = true;
    lock.unlock();
    try {
      task();
    } catch (...) {
      note(host_error().what());
    }
    lock.lock();
    is_working_ = false;
    changed_.notify_all();
    lock.unlock();
    wake_();
    lock.lock();
  }
}

void PrefixStore::enqueue(std::function<void()> task) {
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

bool PrefixStore::is_idle() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() && !is_working_;
}

void PrefixStore::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !is_working_; });
}

void PrefixStore::note(const std::string& line) {
  log_message(LogLevel::kWarning, line);
  const std::lock_guard lock(mutex_);
  if (notes_.size() == kMostNotes) notes_.pop_front();
  notes_.push_back(line);
}

std::vector<std::string> PrefixStore::notes() const {
  const std::lock_guard lock(mutex_);
  return {notes_.begin(), notes_.end()};
}

void PrefixStore::add_counts(ServerTelemetry& telemetry) const {
  const std::lock_guard lock(mutex_);
  telemetry.store_written += num_written_;
  telemetry.store_refused += num_refused_;
  telemetry.store_removed += num_removed_;
  telemetry.store_bytes += shelf_.num_bytes();
}

// What is refused stays where it is: it may be another server's.
void PrefixStore::refuse(const std::string& name, const std::string& why) {
  note("a stored prefix is left out: " + why);
  const std::lock_guard lock(mutex_);
  ++num_refused_;
  shelf_.drop_record(name);
}

// What the folder has, before anything is opened.
void PrefixStore::look_around() {
  try {
    if (!fs::exists(options_.folder)) {
      fs::create_directories(options_.folder);
      fs::permissions(options_.folder, fs::perms::owner_all);
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder)) {
      std::error_code gone;
      const std::string name = entry.path().filename().string();
      const StoreShelf::Time used = entry.last_write_time(gone);
      if (gone || !entry.is_regular_file(gone)) continue;
      if (name.find(std::string(kStoredSuffix) + ".tmp-") != std::string::npos) {
        if (began_ - used > kLeftOver) fs::remove(entry.path(), gone);
        continue;
      }
      const uint64_t bytes = entry.file_size(gone);
      if (gone || !name.ends_with(kStoredSuffix)) continue;
      const std::lock_guard lock(mutex_);
      shelf_.add_file(name, bytes, used);
    }
  } catch (const fs::filesystem_error& error) {
    {
      const std::lock_guard lock(mutex_);
      is_broken_ = true;
    }
    note(options_.folder + ": cannot be used to keep prefixes (" + error.code().message() +
         "); expected a folder that can be read and written (prefix_store)");
    return;
  }
  fit_.fields(-1);  // so that the first prompt does not wait until weights are hashed
}

bool PrefixStore::open(const PrefixKey& key) {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return true;
  const auto [scope, is_new] = scopes_.try_emplace(key);
  if (is_new) enqueue([this, key] { open_scope(key); });
  return scope->second.is_open;
}

void PrefixStore::open_scope(const PrefixKey& key) {
  Scope scope;
  scope.is_open = true;
  try {
    scope.fields = fit_.fields(key.adapter);
    if (options_.key) scope.key = key_of(options_.key(key.tenant));
    const std::string& adapter = scope.fields.back().second;
    scope.digest = short_digest(scope.key, {text_bytes(key.tenant), text_bytes(adapter)});
    scope.files.emplace(scope.fields, scope.digest, scope.key);
  } catch (...) {
    note("prefixes of tenant '" + key.tenant + "' are not stored: " + host_error().what());
  }
  std::vector<std::string> names;
  if (scope.files) {
    const std::lock_guard lock(mutex_);
    if (!is_broken_) names = shelf_.names();
  }
  for (const std::string& name : names) {
    if (!name.starts_with(scope.digest)) continue;
    try {
      StoredRecord record = scope.files->read_record(path_of(name));
      check_record(path_of(name), record);
      const std::lock_guard lock(mutex_);
      shelf_.add_record(key, name, std::move(record));
    } catch (...) {
      refuse(name, host_error().what());
    }
  }
  const std::lock_guard lock(mutex_);
  scopes_[key] = std::move(scope);
}

StoreShelf::Found PrefixStore::find(const PrefixKey& key, std::span<const int32_t> tokens) const {
  const std::lock_guard lock(mutex_);
  return shelf_.find(key, tokens);
}

StoreShelf::Found PrefixStore::covering(const PrefixKey& key,
                                        std::span<const int32_t> tokens) const {
  const std::lock_guard lock(mutex_);
  return shelf_.covering(key, tokens);
}

bool PrefixStore::is_reading(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return reading_.contains(name);
}

bool PrefixStore::read(const PrefixKey& key, const std::string& name,
                       const std::function<int64_t(std::span<const int32_t>)>& known) {
  const std::lock_guard lock(mutex_);
  const auto tried = tried_.find(name);
  if (tried != tried_.end() && Steady::now() - tried->second < kTriedAgain) return false;
  std::vector<std::string> names;
  for (std::string next = name; !next.empty();) {
    const StoredRecord* record = shelf_.record(next);
    // A chain that comes back to itself is none.
    if (record == nullptr || std::ranges::find(names, next) != names.end()) {
      shelf_.drop_record(name);
      return false;
    }
    names.push_back(next);
    const auto begin = std::span(record->shape.history).first(static_cast<size_t>(record->begin));
    next = known(begin) < record->begin ? record->parent : std::string();
  }
  std::ranges::reverse(names);
  reading_.insert(names.begin(), names.end());
  enqueue([this, key, names] { read_files(key, names); });
  return true;
}

// What fails takes those behind it along, which stand on it.
void PrefixStore::read_files(const PrefixKey& key, const std::vector<std::string>& names) {
  std::vector<Read> all;
  for (const std::string& name : names) {
    try {
      std::optional<StoredRecord> record;
      std::optional<PrefixFiles> files;
      {
        const std::lock_guard lock(mutex_);
        if (const StoredRecord* found = shelf_.record(name)) record = *found;
        files = scopes_.at(key).files;
      }
      if (!record || !files) break;
      const uint64_t bytes = engine::image_bytes(fit_.sizes(), record->shape);
      StoredContent content = files->read_content(path_of(name), *record, bytes);
      check_words(*record, content.words);
      all.push_back({key, std::move(*record), std::move(content)});
      std::error_code ignored;
      const StoreShelf::Time now = StoreShelf::Time::clock::now();
      fs::last_write_time(path_of(name), now, ignored);
      const std::lock_guard lock(mutex_);
      shelf_.touch(name, now);
    } catch (...) {
      refuse(name, host_error().what());
      break;
    }
  }
  const std::lock_guard lock(mutex_);
  tried_now_.insert(tried_now_.end(), names.begin(), names.end());
  std::ranges::move(all, std::back_inserter(read_));
}

std::vector<PrefixStore::Read> PrefixStore::take_read() {
  const std::lock_guard lock(mutex_);
  for (const std::string& name : std::exchange(tried_now_, {})) {
    reading_.erase(name);
    tried_[name] = Steady::now();
  }
  return std::exchange(read_, {});
}

void PrefixStore::check_record(const std::string& path, const StoredRecord& record) const {
  const kv::PrefixShape& shape = record.shape;
  const int64_t length = shape.length(), block = fit_.sizes().block_size;
  const bool fits = shape.first_block <= record.begin / block && shape.state_length >= 0 &&
                    shape.state_length <= length &&
                    std::ssize(shape.holds_window) <= (length + block - 1) / block;
  if (!fits) {
    throw Error(ErrorKind::kBadFile, path + ": has more blocks than tokens; expected " +
                                         std::to_string(length) + " tokens' at most");
  }
  if (fit_.token_words() > 0 && record.token_words != fit_.token_words()) {
    throw Error(ErrorKind::kBadFile, path + ": has " + std::to_string(record.token_words) +
                                         " words of each token from the recorder; expected " +
                                         std::to_string(fit_.token_words()));
  }
}

// The log's own reader looks at them: what it would not read is not copied into a log.
void PrefixStore::check_words(const StoredRecord& record, std::span<const int32_t> words) const {
  if (fit_.token_words() == 0) return;
  const auto tokens = static_cast<size_t>(record.shape.length() - record.begin);
  const AuditPassHeader header = audit::record_header(fit_.layout(), 1, tokens, 0);
  std::vector<std::byte> pass(audit_record_bytes(fit_.layout(), 0, tokens));
  std::byte* to = pass.data();
  std::memcpy(to, &header, sizeof(header));
  to += sizeof(header);
  for (size_t i = 0; i < tokens; ++i, to += sizeof(AuditToken)) {
    AuditToken token;
    token.sequence = 1;
    token.position = static_cast<int32_t>(i);
    std::memcpy(to, &token, sizeof(token));
  }
  std::memcpy(to, words.data(), words.size_bytes());
  decode_pass(fit_.layout(), pass);
}

void PrefixStore::write(const PrefixKey& key, StoredRecord record, std::vector<std::byte> bytes,
                        std::vector<int32_t> words) {
  const std::lock_guard lock(mutex_);
  if (is_broken_) return;
  enqueue([this, key, record = std::move(record), bytes = std::move(bytes),
           words = std::move(words)] { write_file(key, record, bytes, words); });
}

void PrefixStore::write_file(const PrefixKey& key, const StoredRecord& record,
                             std::span<const std::byte> bytes, std::span<const int32_t> words) {
  std::optional<Scope> scope;
  {
    const std::lock_guard lock(mutex_);
    const auto found = scopes_.find(key);
    const bool has_parent = record.parent.empty() || shelf_.record(record.parent) != nullptr;
    if (found != scopes_.end() && has_parent) scope = found->second;
  }
  if (!scope || !scope->files) return;
  {  // so that what it stands on does not give way to it
    const std::lock_guard lock(mutex_);
    shelf_.touch(record.parent, StoreShelf::Time::clock::now());
  }
  const uint64_t size = scope->files->file_bytes(record, bytes.size() + words.size_bytes());
  if (!make_room(size)) return;
  std::string fields;
  for (const auto& [name, value] : scope->fields)
    fields.append(name).append("=").append(value).append("\n");
  const std::span<const int32_t> ids = record.shape.history;
  const std::string name =
      scope->digest + "-" +
      short_digest(scope->key, {text_bytes(fields),
                                {reinterpret_cast<const uint8_t*>(ids.data()), ids.size_bytes()}}) +
      kStoredSuffix;
  scope->files->write(path_of(name), record, bytes, words);
  const std::lock_guard lock(mutex_);
  shelf_.add_file(name, size, StoreShelf::Time::clock::now());
  shelf_.add_record(key, name, record);
  ++num_written_;
}

// Files that this server has just written or read stay: what came first was worth more.
bool PrefixStore::make_room(uint64_t bytes) {
  const StoreShelf::Time before = std::max(began_, StoreShelf::Time::clock::now() - kStaysFor);
  for (;;) {
    std::string next;
    {
      const std::lock_guard lock(mutex_);
      if (shelf_.num_bytes() + bytes <= options_.max_bytes) return true;
      next = shelf_.next_to_go(before);
      if (next.empty() || bytes > options_.max_bytes) return false;
      shelf_.drop_file(next);
      ++num_removed_;
    }
    std::error_code ignored;
    fs::remove(path_of(next), ignored);
  }
}

}  // namespace vitrine::serve
