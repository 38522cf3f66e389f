#include "blake2b.h"

#include <sodium.h>

#include <algorithm>

namespace vitrine::audit {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kBlockBytes = 128;
typedef uint64_t Lanes __attribute__((vector_size(8 * kLanes)));  // one word of each message

constexpr uint64_t kInitial[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                  0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                  0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint8_t kSigma[12][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
                                    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

/// Up to eight messages of one length.
struct Job {
  const uint8_t* salts;
  const uint8_t* rows;
  size_t row_bytes;
  size_t count;
  uint64_t person[2];
  uint8_t* digests;
};

#define VITRINE_INLINE static inline __attribute__((always_inline))

VITRINE_INLINE void mix(Lanes* v, int a, int b, int c, int d, const Lanes& x, const Lanes& y) {
  v[a] = v[a] + v[b] + x;
  v[d] ^= v[a];
  v[d] = v[d] >> 32 | v[d] << 32;
  v[c] += v[d];
  v[b] ^= v[c];
  v[b] = v[b] >> 24 | v[b] << 40;
  v[a] = v[a] + v[b] + y;
  v[d] ^= v[a];
  v[d] = v[d] >> 16 | v[d] << 48;
  v[c] += v[d];
  v[b] ^= v[c];
  v[b] = v[b] >> 63 | v[b] << 1;
}

VITRINE_INLINE void compress(Lanes* h, const Lanes* m, uint64_t bytes_so_far, bool is_last) {
  Lanes v[16] = {};
  for (int i = 0; i < 8; ++i) {
    v[i] = h[i];
    v[i + 8] = Lanes{} + kInitial[i];
  }
  v[12] ^= bytes_so_far;
  if (is_last) v[14] = ~v[14];
#pragma GCC unroll 12
  for (int round = 0; round < 12; ++round) {
    const uint8_t* s = kSigma[round];
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

/// Bytes [at, at + 128) of message `lane`, padded with zeros.
VITRINE_INLINE void load_block(const Job& job, size_t lane, size_t at, uint8_t* block) {
  const size_t salt_bytes = job.salts == nullptr ? 0 : kSaltBytes;
  const uint8_t* row = job.rows + lane * job.row_bytes;
  size_t filled = 0;
  if (at == 0 && salt_bytes > 0) {
    std::memcpy(block, job.salts + lane * kSaltBytes, kSaltBytes);
    filled = kSaltBytes;
  }
  const size_t from = at == 0 ? 0 : at - salt_bytes;
  const size_t part = std::min(kBlockBytes - filled, job.row_bytes - from);
  if (part > 0) std::memcpy(block + filled, row + from, part);
  filled += part;
  std::memset(block + filled, 0, kBlockBytes - filled);
}

VITRINE_INLINE void hash_lanes(const Job& job) {
  const size_t length = job.row_bytes + (job.salts == nullptr ? 0 : kSaltBytes);
  Lanes h[8];
  for (int i = 0; i < 8; ++i) h[i] = Lanes{} + kInitial[i];
  h[0] ^= 0x01010000u | kDigestBytes;  // unkeyed, sequential
  h[6] ^= job.person[0];
  h[7] ^= job.person[1];
  alignas(64) uint8_t blocks[kLanes][kBlockBytes] = {};
  for (size_t at = 0;;) {
    for (size_t lane = 0; lane < job.count; ++lane) load_block(job, lane, at, blocks[lane]);
    Lanes m[16];
    for (int word = 0; word < 16; ++word) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        uint64_t value;
        std::memcpy(&value, blocks[lane] + 8 * word, 8);
        m[word][lane] = value;
      }
    }
    const bool is_last = length - at <= kBlockBytes;
    compress(h, m, is_last ? length : at + kBlockBytes, is_last);
    if (is_last) break;
    at += kBlockBytes;
  }
  for (size_t lane = 0; lane < job.count; ++lane) {
    for (int word = 0; word < 4; ++word) {
      const uint64_t value = h[word][lane];
      std::memcpy(job.digests + kDigestBytes * lane + 8 * static_cast<size_t>(word), &value, 8);
    }
  }
}

void hash_lanes_portable(const Job& job) { hash_lanes(job); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) void hash_lanes_avx2(const Job& job) { hash_lanes(job); }
__attribute__((target("avx512f"))) void hash_lanes_avx512(const Job& job) { hash_lanes(job); }
#endif

using HashLanes = void (*)(const Job&);
struct Variant {
  std::string_view name;
  HashLanes hash_some;
};

/// Those that this processor can run, the fastest first.
const std::vector<Variant>& variants() {
  static const std::vector<Variant> usable = [] {
    std::vector<Variant> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) found.push_back({"avx512", hash_lanes_avx512});
    if (__builtin_cpu_supports("avx2")) found.push_back({"avx2", hash_lanes_avx2});
#endif
    found.push_back({"portable", hash_lanes_portable});
    return found;
  }();
  return usable;
}

void hash_all(HashLanes hash_some, const Purpose& purpose, const uint8_t* salts,
              const uint8_t* rows, size_t row_bytes, size_t count, uint8_t* digests) {
  Job job{salts, rows, row_bytes, 0, {}, digests};
  std::memcpy(job.person, purpose.data(), sizeof job.person);
  for (size_t first = 0; first < count; first += kLanes) {
    job.count = std::min(kLanes, count - first);
    hash_some(job);
    if (salts != nullptr) job.salts += kLanes * kSaltBytes;
    job.rows += kLanes * row_bytes;
    job.digests += kLanes * kDigestBytes;
  }
}

}  // namespace

Digest hash(const Purpose& purpose, ByteSpan first, ByteSpan second) {
  Digest digest;
  crypto_generichash_blake2b_state state;
  crypto_generichash_blake2b_init_salt_personal(&state, nullptr, 0, kDigestBytes, nullptr,
                                                purpose.data());
  crypto_generichash_blake2b_update(&state, first.data(), first.size());
  crypto_generichash_blake2b_update(&state, second.data(), second.size());
  crypto_generichash_blake2b_final(&state, digest.data(), digest.size());
  return digest;
}

void hash_rows(const Purpose& purpose, const uint8_t* salts, const uint8_t* rows, size_t row_bytes,
               size_t count, uint8_t* digests) {
  hash_all(variants().front().hash_some, purpose, salts, rows, row_bytes, count, digests);
}

std::vector<std::string_view> hash_rows_variants() {
  std::vector<std::string_view> names;
  for (const Variant& variant : variants()) names.push_back(variant.name);
  return names;
}

void hash_rows_with(std::string_view name, const Purpose& purpose, const uint8_t* salts,
                    const uint8_t* rows, size_t row_bytes, size_t count, uint8_t* digests) {
  for (const Variant& variant : variants()) {
    if (variant.name != name) continue;
    hash_all(variant.hash_some, purpose, salts, rows, row_bytes, count, digests);
  }
}

}  // namespace vitrine::audit
