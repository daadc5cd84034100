// Products of heads in fp32 with keys of 16 or 8 bits that are not widened to fp32: a head is the sum of two rows of the
// keys' type, and a key is multiplied by both while it is near; with AVX2 alone a head beside bytes is one row of integers of
// 16 bits. Values keep 16 bits beside bfloat16; beside bytes their errors are at most 1 / 16256 of the head's largest value.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "rows16.h"

namespace arcforge {

// Whether keys of a type are multiplied as they are.
template <typename T>
inline constexpr bool MULTIPLIED = false;
#ifdef ARCFORGE_PAIRS
template <>
inline constexpr bool MULTIPLIED<BFloat16> = true;
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define ARCFORGE_TURNED  // bytes are multiplied by two parts of a head (turned.h)
template <>
inline constexpr bool MULTIPLIED<int8_t> = true;
#elif defined(__AVX2__)
#define ARCFORGE_WHOLE  // bytes are widened to 16 bits and multiplied by the integers of a head
template <>
inline constexpr bool MULTIPLIED<int8_t> = true;
#endif

// Whether rows of this width are: whole vectors, which bytes need be only if they are widened, and no more bytes than sums
// of 32 bits have room for.
template <typename T>
inline bool multiplied(int64_t width) {
  if (std::is_same_v<T, BFloat16>) return width % PAIRED == 0;
#ifdef ARCFORGE_WHOLE
  if (width % 16) return false;
#endif
  return width <= 1024;
}

constexpr int PART_BITS = 7;  // of the lower part of an integer, which has a sign
constexpr float LARGEST = 127 << PART_BITS;

// Heads [rows, width] in two parts [rows, stride] each, zeros after the width: scale * (high + low), of integers
// scale * (high * 128 + low).
template <typename T>
struct Parts {
  int64_t stride;
  Memory<T> high, low;
  Memory<float> scale;
  Memory<int16_t> whole;   // with ARCFORGE_WHOLE, instead of parts of integers: high * 128 + low
  Memory<int32_t> offset;  // of a row of integers: what 128 that is added to each value of a key adds to the sum

  Parts(int64_t rows, int64_t width)
      : stride((width + 63) / 64 * 64), high(rows * stride), low(rows * stride), scale(rows, 1.0f) {
#ifdef ARCFORGE_WHOLE
    if (std::is_same_v<T, int8_t>) whole.resize(rows * stride);
#else
    if (std::is_same_v<T, int8_t>) offset.resize(rows);
#endif
  }

  void lay(const float* head, int64_t width, int64_t r) {
    T *to_high = &high[r * stride], *to_low = &low[r * stride];
    if constexpr (std::is_same_v<T, BFloat16>) {
      for (int64_t d = 0; d < width; d++) {
        narrow(head[d], to_high + d);
        const float rest = head[d] - float(to_high[d]);
        narrow(std::isfinite(rest) ? rest : 0.0f, to_low + d);
      }
    } else {
      float largest = 0.0f, poison = 0.0f;  // a head with a value that is not finite has no finite scale
      for (int64_t d = 0; d < width; d++) {
        largest = std::max(largest, std::fabs(head[d]));
        poison += head[d] * 0.0f;
      }
      int exponent;  // a power of two keeps small integers, and with them ties, exact
      std::frexp(std::max(largest / LARGEST, std::numeric_limits<float>::min()), &exponent);
      scale[r] = std::ldexp(1.0f, exponent) + poison;
      for (int64_t d = 0; d < width; d++) {
        const float value = std::nearbyint(head[d] / scale[r]);
        const int32_t integer = std::fabs(value) <= LARGEST ? int32_t(value) : 0;
#ifdef ARCFORGE_WHOLE
        whole[r * stride + d] = int16_t(integer);
#else
        const int32_t upper = (integer + (1 << (PART_BITS - 1))) >> PART_BITS;
        to_high[d] = T(upper);
        to_low[d] = T(integer - (upper << PART_BITS));
        offset[r] += 128 * integer;
#endif
      }
    }
  }
};

#ifdef ARCFORGE_PAIRS
// out[i][j] = head[row + i] . key[j] for M heads and N keys, as many of which are asked for from `ahead` on.
template <int M, int N>
[[gnu::noinline]] void parts_tile(const Parts<BFloat16>& a, int64_t row, const BFloat16* keys, int64_t key_stride,
                                  int64_t width, float* out, int64_t stride, const BFloat16* ahead) {
  const BFloat16 *high = &a.high[row * a.stride], *low = &a.low[row * a.stride];
  const int64_t head_stride = a.stride;
  if (!ahead) ahead = keys;
  Vector<float> sum[M][N] = {};
  for (int64_t d = 0; d < width; d += PAIRED) {
    Paired right[N];
    for (int j = 0; j < N; j++) {
      __builtin_prefetch(ahead + j * key_stride + d, 0, 2);
      right[j] = load_pairs(keys + j * key_stride + d);
    }
    for (int i = 0; i < M; i++) {
      const Paired left = load_pairs(low + i * head_stride + d);
      for (int j = 0; j < N; j++) sum[i][j] = dot_pairs(left, right[j], sum[i][j]);
    }
    for (int i = 0; i < M; i++) {
      const Paired left = load_pairs(high + i * head_stride + d);
      for (int j = 0; j < N; j++) sum[i][j] = dot_pairs(left, right[j], sum[i][j]);
    }
  }
  put_sums<float, M, N>(sum, out, stride);
}
#endif

#ifdef ARCFORGE_WHOLE
// The same for integers; sums are not scaled, and `ahead` may be null.
template <int M, int N>
[[gnu::noinline]] void parts_tile(const Parts<int8_t>& a, int64_t row, const int8_t* keys, int64_t key_stride,
                                  int64_t width, float* out, int64_t stride, const int8_t* ahead) {
  const int16_t* head = &a.whole[row * a.stride];
  const int64_t head_stride = a.stride;
  __m256i sum[M][N];
  each<0, M>([&](auto i) { each<0, N>([&](auto j) { sum[i][j] = _mm256_setzero_si256(); }); });
  if (ahead)
    for (int64_t n = 0; n < N * key_stride; n += 64) __builtin_prefetch(ahead + n, 0, 2);
  for (int64_t d = 0; d < width; d += 16) {
    __m256i right[N];
    each<0, N>([&](auto j) {
      right[j] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(keys + j * key_stride + d)));
    });
    each<0, M>([&](auto i) {
      const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(head + i * head_stride + d));
      each<0, N>([&](auto j) { sum[i][j] = _mm256_add_epi32(sum[i][j], _mm256_madd_epi16(left, right[j])); });
    });
  }
  each<0, M>([&](auto i) {
    const auto at = [&](int j) { return sum[i][N == 4 ? j : 0]; };
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(at(0), at(1)), _mm256_hadd_epi32(at(2), at(3)));
    const __m128 sums = _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    if constexpr (N == 4)
      _mm_storeu_ps(out + i * stride, sums);
    else
      _mm_store_ss(out + i * stride, sums);
  });
}
#endif

#if defined(ARCFORGE_PAIRS) || defined(ARCFORGE_WHOLE)
// out[i][j] = head[row + i] . key[j] for `rows` heads and `count` keys, whose rows lie `key_stride` values
// apart; `ahead` is where those lie that are needed next.
template <typename T>
void dot_parts(const Parts<T>& a, int64_t row, int64_t rows, const T* keys, int64_t key_stride, int64_t count,
               int64_t width, float* out, int64_t stride, const T* ahead) {
  int64_t j = 0;
  const auto columns = [&](auto n) {
    constexpr int N = decltype(n)::value;
    for (; j + N <= count; j += N) {
      int64_t i = 0;
      const auto tiles = [&](auto m) {
        for (constexpr int M = decltype(m)::value; i + M <= rows; i += M)
          parts_tile<M, N>(a, row + i, keys + j * key_stride, key_stride, width, out + i * stride + j, stride,
                           i || !ahead ? nullptr : ahead + j * key_stride);
      };
      if constexpr (std::is_same_v<T, BFloat16>) tiles(std::integral_constant<int, 4>{});  // else registers are few
      tiles(std::integral_constant<int, 2>{});
      tiles(std::integral_constant<int, 1>{});
    }
  };
  columns(std::integral_constant<int, 4>{});
  columns(std::integral_constant<int, 1>{});
}
#endif

}  // namespace arcforge
