// SPDX-License-Identifier: Apache-2.0
// Feeds damaged GGUF files to the checkpoint and tokenizer rooms: whatever happens must be a
// vitrine::Error of one line, or a model that reads. The seeds are files that PyPI's `gguf` wrote
// (tests/data/gguf), and the metadata of each of the newer families. Under sanitizers any crash,
// overflow or leak ends the program.
//
//   fuzz_gguf SECONDS [SEED]
#include <cstring>
#include <random>
#include <stdexcept>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "gguf_families.h"
#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"
#include "tests/support/test_data.h"
#include "vitrine/tokenizer.h"

using namespace vitrine;  // NOLINT(google-build-using-namespace): a small program

namespace {

using testing::Files;

/// Damages numbers and bytes; the header's fields stand anywhere, so any place may be one.
class GgufMutator {
 public:
  explicit GgufMutator(uint64_t seed) : random_(seed) {}

  void mutate(Files& files) {
    auto file = std::next(files.begin(), static_cast<long>(below(files.size())));
    for (size_t count = 1 + below(3); count > 0; --count) damage(file->second);
    if (below(60) == 0) files.erase(file);
  }

 private:
  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void damage(std::string& bytes) {
    if (bytes.size() < 32) return bytes.push_back('G');
    // Most of the damage where the header is: the data that follows it is just numbers.
    const size_t place = below(below(4) == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 3000));
    switch (below(8)) {
      case 0: bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8))); break;
      case 1: bytes[place] = static_cast<char>(below(256)); break;
      case 2: set_number(bytes, place, 8); break;
      case 3: set_number(bytes, place, 4); break;
      case 4: set_number(bytes, 8 + 8 * below(2), 8); break;  // the counts
      case 5: bytes.erase(place, 1 + below(8)); break;
      case 6: bytes.insert(place, 1 + below(8), static_cast<char>(below(256))); break;
      default: bytes.resize(below(16) == 0 ? below(bytes.size()) : bytes.size() - below(64));
    }
  }

  void set_number(std::string& bytes, size_t place, size_t size) {
    constexpr uint64_t kNumbers[] = {0,           1,
                                     2,           3,
                                     4,           7,
                                     8,           9,
                                     12,          31,
                                     32,          33,
                                     255,         4096,
                                     65535,       65536,
                                     0x7fffffff,  0x80000000u,
                                     0xffffffffu, 1ull << 32,
                                     1ull << 40,  1ull << 61,
                                     INT64_MAX,   1ull << 63,
                                     UINT64_MAX,  UINT64_MAX - 31};
    const uint64_t number =
        below(3) == 0 ? random_() >> below(64) : kNumbers[below(std::size(kNumbers))];
    if (place + size > bytes.size()) return;
    std::memcpy(bytes.data() + place, &number, size);
  }

  std::mt19937_64 random_;
};

std::vector<Files> healthy_files() {
  const auto content = [](const std::string& name) {
    return testing::read_bytes(testing_support::test_data("gguf/" + name));
  };
  const std::string first = "split-00001-of-00002.gguf", second = "split-00002-of-00002.gguf";
  std::vector<Files> files = {{{"dense.gguf", content("dense.gguf")}},
                              {{"experts.gguf", content("experts.gguf")}},
                              {{"delta.gguf", content("delta.gguf")}},
                              {{"gemma.gguf", content("gemma.gguf")}},
                              {{first, content(first)}, {second, content(second)}}};
  for (const testing::Family& family : testing::families()) {
    files.push_back({{family.name + ".gguf", testing::family_file(family)}});
  }
  return files;
}

/// Reads all of a model; true where nothing was refused.
bool read_all(const std::string& path) {
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
    const Checkpoint checkpoint = Checkpoint::open(path);
    attempt([&] { parse_model_config(checkpoint); });
    attempt([&] {
      const std::string json = checkpoint.tokenizer_json();
      if (json.empty()) return;
      const Tokenizer tokenizer = Tokenizer::from_json(json, checkpoint.tokenizer_name());
      tokenizer.decode(tokenizer.encode("ab a<|end|>\xff <s>\n"));
    });
    attempt([&] { checkpoint.tokenizer_config_json(); });
    for (const TensorInfo& info : checkpoint.tensors()) {
      std::vector<std::byte> part(info.num_bytes / 3);
      attempt([&] { checkpoint.read(info, info.num_bytes / 2, part); });
      attempt([&] { checkpoint.read_f32(info); });
      const std::string base = info.name.substr(0, info.name.rfind('.'));
      attempt([&] {
        if (const auto matrix = checkpoint.read_quantized(base)) dequantize_matrix(*matrix);
      });
    }
  });
  return is_clean;
}

}  // namespace

int main(int argc, char** argv) {
  const testing::TemporaryFolder folder;
  return testing::run_fuzz(argc, argv, "fuzz_gguf", "files", [&](uint64_t seed) {
    const auto healthy = healthy_files();
    const auto run = [&folder, healthy,
                      mutator = GgufMutator(seed)](long iteration) mutable -> std::optional<bool> {
      const bool is_mutated = iteration >= static_cast<long>(healthy.size());
      const Files& whole = healthy[static_cast<size_t>(iteration) % healthy.size()];
      Files files = whole;
      if (is_mutated) mutator.mutate(files);
      for (const auto& [name, bytes] : whole) std::filesystem::remove(folder / name);
      for (const auto& [name, bytes] : files) testing::write_bytes(folder / name, bytes);
      const bool is_clean = read_all(folder / whole.begin()->first);
      if (!is_mutated && !is_clean) throw std::runtime_error("a healthy file was refused");
      return is_clean;
    };
    return testing::FuzzTarget{run, static_cast<long>(healthy.size())};
  });
}
