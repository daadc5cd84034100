// Index scores of few queries for keys of 8 bits, 32 keys at a time. Their bytes are turned, so that a vector has four
// neighbouring values of each of 16 keys: one instruction multiplies them by a head's, and no sum crosses lanes.
#pragma once

#include "parts.h"

namespace arcforge {

#ifdef ARCFORGE_TURNED

constexpr int TURNED = 32;            // keys
constexpr int64_t TURNED_AHEAD = 512; // keys between those that are turned and those that are asked for

// The words of 16 vectors turned: vector n gets word n of each.
inline void turn_words(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int n = 0; n < 16; n += 2) {
    y[n] = _mm512_unpacklo_epi32(x[n], x[n + 1]);
    y[n + 1] = _mm512_unpackhi_epi32(x[n], x[n + 1]);
  }
#pragma GCC unroll 4
  for (int n = 0; n < 16; n += 4) {
    x[n] = _mm512_unpacklo_epi64(y[n], y[n + 2]);
    x[n + 1] = _mm512_unpackhi_epi64(y[n], y[n + 2]);
    x[n + 2] = _mm512_unpacklo_epi64(y[n + 1], y[n + 3]);
    x[n + 3] = _mm512_unpackhi_epi64(y[n + 1], y[n + 3]);
  }
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    y[n] = _mm512_shuffle_i32x4(x[n], x[n + 4], 0x88);
    y[n + 4] = _mm512_shuffle_i32x4(x[n], x[n + 4], 0xdd);
    y[n + 8] = _mm512_shuffle_i32x4(x[n + 8], x[n + 12], 0x88);
    y[n + 12] = _mm512_shuffle_i32x4(x[n + 8], x[n + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    x[n] = _mm512_shuffle_i32x4(y[n], y[n + 8], 0x88);
    x[n + 4] = _mm512_shuffle_i32x4(y[n + 4], y[n + 12], 0x88);
    x[n + 8] = _mm512_shuffle_i32x4(y[n], y[n + 8], 0xdd);
    x[n + 12] = _mm512_shuffle_i32x4(y[n + 4], y[n + 12], 0xdd);
  }
}

// The bytes of 16 keys, with 128 added: to [width / 4, 16, 4], `stride` bytes from one of the first to the next.
inline void turn_keys(const int8_t* const* key, int64_t width, uint8_t* to, int64_t stride) {
  for (int64_t d = 0; d < width; d += 64) {
    const __mmask64 in_row = width - d >= 64 ? ~0ull : (1ull << (width - d)) - 1;
    __m512i word[16];
#pragma GCC unroll 16
    for (int n = 0; n < 16; n++) word[n] = _mm512_maskz_loadu_epi8(in_row, key[n] + d);
    turn_words(word);
#pragma GCC unroll 16
    for (int n = 0; n < 16; n++)
      _mm512_storeu_si512(to + (d / 4 + n) * stride, _mm512_xor_si512(word[n], _mm512_set1_epi8(char(0x80))));
  }
}

// Adds weight * ReLU(head . key) of HEADS heads to the sums of 32 keys, without the keys' scales.
template <int HEADS, bool RELU>
[[gnu::noinline]] void add_turned(const Parts<int8_t>& a, int64_t row, const uint8_t* turned, int64_t width,
                                  const float* weight, Vector<float> (&total)[2]) {
  const int8_t *high = &a.high[row * a.stride], *low = &a.low[row * a.stride];
  const int64_t stride = a.stride;
  __m512i sum[2 * HEADS][2];
  for (int i = 0; i < 2 * HEADS; i++)
    for (int j = 0; j < 2; j++) sum[i][j] = _mm512_setzero_si512();
  const auto four = [](const int8_t* from) {
    int32_t x;
    std::memcpy(&x, from, 4);
    return _mm512_set1_epi32(x);
  };
  for (int64_t d = 0; d < width; d += 4) {
    __m512i key[2];
    for (int j = 0; j < 2; j++) key[j] = _mm512_loadu_si512(turned + d / 4 * 128 + 64 * j);
#pragma GCC unroll 4
    for (int i = 0; i < HEADS; i++) {
      const __m512i upper = four(high + i * stride + d), lower = four(low + i * stride + d);
      for (int j = 0; j < 2; j++) sum[2 * i][j] = _mm512_dpbusd_epi32(sum[2 * i][j], key[j], upper);
      for (int j = 0; j < 2; j++) sum[2 * i + 1][j] = _mm512_dpbusd_epi32(sum[2 * i + 1][j], key[j], lower);
    }
  }
#pragma GCC unroll 4  // else GCC 12 stores the sums after each product
  for (int i = 0; i < HEADS; i++)
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(sum[2 * i][j], PART_BITS), sum[2 * i + 1][j]);
      const __m512i shifted = _mm512_sub_epi32(both, _mm512_set1_epi32(a.offset[row + i]));
      const Vector<float> value = (Vector<float>)_mm512_cvtepi32_ps(shifted);
      total[j] = fused<float>(weight[i] - Vector<float>{}, RELU ? positive(value) : value, total[j]);
    }
}

// One thread's memory for scores of turned keys.
struct Turned {
  Memory<uint8_t> bytes;
  const int8_t* key[TURNED];
  explicit Turned(int64_t width) : bytes((width + 63) / 64 * 16 * 128) {}

  // Turns the keys from `first` on; if there are fewer than 32, the last one is repeated.
  void lay(const Keys<int8_t>& k, int64_t first, int64_t count, int64_t width, const int8_t* ahead) {
    for (int64_t n = 0; n < (width + 4) * TURNED; n += 64) __builtin_prefetch(ahead + n, 0, 2);
    for (int64_t n = 0, run; n < count; n += run) {
      run = k.run(first + n, count - n);
      const int8_t* from = k.at(first + n);
      for (int64_t m = 0; m < run; m++) key[n + m] = from + m * k.width;
    }
    std::fill(key + count, key + TURNED, key[count - 1]);
    turn_keys(key, width, bytes.data(), 128);
    turn_keys(key + 16, width, bytes.data() + 64, 128);
  }

  // scores[n] = the sum over heads of weight * ReLU(head . key n), without the key's scale.
  template <bool RELU>
  void score(const Parts<int8_t>& a, int64_t row, int64_t heads, int64_t width, const float* weight, float* scores) const {
    Vector<float> total[2] = {};
    int64_t i = 0;
    for (; i + 4 <= heads; i += 4) add_turned<4, RELU>(a, row + i, bytes.data(), width, weight + i, total);
    for (; i + 2 <= heads; i += 2) add_turned<2, RELU>(a, row + i, bytes.data(), width, weight + i, total);
    for (; i < heads; i++) add_turned<1, RELU>(a, row + i, bytes.data(), width, weight + i, total);
    for (int j = 0; j < 2; j++) store<float>(scores + 16 * j, total[j]);
  }
};

#endif

}  // namespace arcforge
