// SPDX-License-Identifier: Apache-2.0
// Schedulers that keep prefixes in a folder, one after another, as servers that are restarted.
#pragma once

#include <filesystem>
#include <fstream>

#include "tests/serve/schedule_fixture.h"

namespace vitrine::testing {

inline EngineOptions store_options(const std::string& codec = "f32", int block_size = 16) {
  EngineOptions options = test_options(1, block_size);
  options.max_context = 256;
  options.max_sequences = 16;
  options.max_step_tokens = 96;
  options.max_logit_rows = 6;
  options.max_states = 64;
  options.kv_codecs = {codec};
  return options;
}

/// What came of jobs on a server that was just started.
struct StoredRun {
  std::vector<AnsweredJob> answers;
  ServerTelemetry telemetry;
  std::vector<std::string> notes;
  int64_t computed = 0;  // tokens
  int64_t cached() const {
    int64_t all = 0;
    for (const AnsweredJob& answer : answers) all += answer.cached_tokens;
    return all;
  }
};

/// Runs jobs on a scheduler of its own and stores what it has then.
inline StoredRun run_stored(Engine& engine, const PrefixStoreOptions& store,
                            const std::vector<AskedJob>& asked, bool stores = true) {
  TimedStepper stepper(engine);
  ServerOptions options;
  options.prefix_store = store;
  serve::Scheduler scheduler(stepper, options, [&] { return stepper.now; });
  scheduler.keep_in(engine, std::make_unique<serve::PrefixStore>(
                                store, serve::StoreFit(engine, scheduler.keeps_words()), [] {}));
  StoredRun run;
  run.answers = serve_all(stepper, asked, scheduler);
  if (stores) scheduler.store_prefixes();
  run.telemetry = scheduler.telemetry();
  run.notes = scheduler.store_notes();
  run.computed = stepper.computed;
  return run;
}

/// The files of a store, ascending.
inline std::vector<std::filesystem::path> files_in(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace vitrine::testing
