// SPDX-License-Identifier: Apache-2.0
// Prefixes in a folder's files: a thread of its own opens, reads and writes them, so that no step
// waits for a disk.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "serve/prefix_file.h"
#include "serve/prefix_tree.h"
#include "serve/store_fit.h"
#include "serve/store_shelf.h"
#include "vitrine/serve.h"

namespace vitrine::serve {

/// What goes wrong with a file is a note and a count, never an error. Thread-safe.
class PrefixStore {
 public:
  /// `wake` is called whenever something was opened, read or written.
  PrefixStore(PrefixStoreOptions options, StoreFit fit, std::function<void()> wake);
  /// Lets what is queued go.
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  /// Returns whether the files of a scope are known. Where they are not, it begins to open them.
  bool open(const PrefixKey& key);
  /// Returns the file by which most of these tokens are gone on from at once.
  StoreShelf::Found find(const PrefixKey& key, std::span<const int32_t> tokens) const;
  /// Returns the file that has most of the tokens.
  StoreShelf::Found covering(const PrefixKey& key, std::span<const int32_t> tokens) const;

  /// Begins to read a file, after those that it stands on and whose tokens nobody has: `known` says
  /// how many of the first tokens the caller has. Returns false where one of them is gone, or the
  /// file was read a moment ago.
  bool read(const PrefixKey& key, const std::string& name,
            const std::function<int64_t(std::span<const int32_t> tokens)>& known);
  /// Returns whether a file is being read, or waits for take_read().
  bool is_reading(const std::string& name) const;
  /// A file that was read.
  struct Read {
    PrefixKey key;
    StoredRecord record;
    StoredContent content;
  };
  std::vector<Read> take_read();

  /// Begins to write a prefix; its record's begin and parent are those of covering().
  void write(const PrefixKey& key, StoredRecord record, std::vector<std::byte> bytes,
             std::vector<int32_t> words);
  /// Returns whether nothing is queued or under way.
  bool is_idle() const;
  /// Waits until nothing is.
  void finish();

  /// Writes a line for the host to read.
  void note(const std::string& line);
  /// Returns the last lines.
  std::vector<std::string> notes() const;
  /// Adds what it has done.
  void add_counts(ServerTelemetry& telemetry) const;
  const StoreFit& fit() const { return fit_; }

 private:
  using Steady = std::chrono::steady_clock;
  /// One tenant's files, of one adapter. Without `files` nothing is read or written.
  struct Scope {
    bool is_open = false;
    std::string digest;
    std::optional<PrefixFiles> files;
    StoreFields fields;
    std::optional<StoreKey> key;
  };

  void run();
  void enqueue(std::function<void()> task);
  void look_around();
  void open_scope(const PrefixKey& key);
  void read_files(const PrefixKey& key, const std::vector<std::string>& names);
  void write_file(const PrefixKey& key, const StoredRecord& record,
                  std::span<const std::byte> bytes, std::span<const int32_t> words);
  bool make_room(uint64_t bytes);
  void check_record(const std::string& path, const StoredRecord& record) const;
  void check_words(const StoredRecord& record, std::span<const int32_t> words) const;
  std::string path_of(const std::string& name) const { return options_.folder + "/" + name; }
  void refuse(const std::string& name, const std::string& why);

  const PrefixStoreOptions options_;
  StoreFit fit_;  // the thread's, but for what is constant
  const std::function<void()> wake_;
  const StoreShelf::Time began_ = StoreShelf::Time::clock::now();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StoreShelf shelf_;
  std::map<PrefixKey, Scope> scopes_;
  std::set<std::string> reading_;
  std::map<std::string, Steady::time_point> tried_;  // when a file was last read
  std::deque<std::function<void()>> tasks_;
  std::vector<Read> read_;
  std::vector<std::string> tried_now_;  // names since the last take_read(), read or not
  std::deque<std::string> notes_;
  uint64_t num_refused_ = 0, num_written_ = 0, num_removed_ = 0;
  bool is_broken_ = false, is_working_ = false, is_ending_ = false;
  std::thread thread_;
};

}  // namespace vitrine::serve
