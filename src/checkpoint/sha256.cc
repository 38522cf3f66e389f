#include "sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace vitrine::checkpoint {
namespace {

#if defined(__x86_64__)

alignas(16) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The state as the instructions want it: words a, b, e, f and c, d, g, h, each the highest first.
__attribute__((target("sha,sse4.1,ssse3"))) void compress_sha(uint32_t* state, const uint8_t* block,
                                                              size_t count) {
  const auto load = [](const void* p) __attribute__((target("sha,sse4.1,ssse3"))) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  };
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(load(state + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, block += 64) {
    const __m128i first_abef = abef, first_cdgh = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) w[i] = _mm_shuffle_epi8(load(block + 16 * i), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i sum = _mm_add_epi32(w[i % 4], load(kRounds + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      if (i >= 12) continue;
      const __m128i part = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                         _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
      w[i % 4] = _mm_sha256msg2_epu32(part, w[(i + 3) % 4]);
    }
    abef = _mm_add_epi32(abef, first_abef);
    cdgh = _mm_add_epi32(cdgh, first_cdgh);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#endif

}  // namespace

bool Sha256::is_accelerated() {
#if defined(__x86_64__)
  static const bool kHasSha = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    return (ebx & bit_SHA) != 0 && __builtin_cpu_supports("sse4.1") != 0;
  }();
  return kHasSha;
#else
  return false;
#endif
}

Sha256::Sha256(bool accelerated) : accelerated_(accelerated) {
  crypto_hash_sha256_init(&portable_);
}

void Sha256::compress(const uint8_t* blocks, size_t count) {
#if defined(__x86_64__)
  compress_sha(state_, blocks, count);
#else
  static_cast<void>(blocks), static_cast<void>(count);
#endif
}

void Sha256::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (!accelerated_) {
    crypto_hash_sha256_update(&portable_, data, bytes.size());
    return;
  }
  size_t left = bytes.size();
  const auto held = static_cast<size_t>(length_ % kBlock);
  length_ += left;
  if (held > 0) {
    const size_t taken = std::min(left, kBlock - held);
    std::memcpy(rest_ + held, data, taken);
    if (held + taken < kBlock) return;
    compress(rest_, 1);
    data += taken;
    left -= taken;
  }
  compress(data, left / kBlock);
  if (left % kBlock != 0) std::memcpy(rest_, data + left / kBlock * kBlock, left % kBlock);
}

void Sha256::pad() {
  const uint64_t bits = length_ * 8;
  uint8_t padding[2 * kBlock] = {0x80};
  const auto held = static_cast<size_t>(length_ % kBlock);
  // One bit, zeros, and the length in the last eight bytes of a block.
  const size_t size = (held < kBlock - 8 ? kBlock : 2 * kBlock) - held;
  for (size_t i = 0; i < 8; ++i) padding[size - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  update(std::as_bytes(std::span(padding, size)));
}

std::string Sha256::finish() {
  uint8_t digest[crypto_hash_sha256_BYTES];
  if (accelerated_) {
    pad();
    for (size_t i = 0; i < sizeof(digest); ++i) {
      digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
  } else {
    crypto_hash_sha256_final(&portable_, digest);
  }
  char text[2 * sizeof(digest) + 1];
  sodium_bin2hex(text, sizeof(text), digest, sizeof(digest));
  return text;
}

}  // namespace vitrine::checkpoint
