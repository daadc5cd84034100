// Vectors of a processor, values of 16 bits, and rows of keys, which may lie in pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

// Pairs of bfloat16 numbers are multiplied by one instruction, unless it was measured to take longer than both in fp32.
#if defined(__AVX512BF16__) && !defined(WIDE_PAIRS)
#define ARCFORGE_PAIRS
#endif

namespace arcforge {

#ifdef __AVX512F__
constexpr int64_t VECTOR_BYTES = 64;
#else
constexpr int64_t VECTOR_BYTES = 32;  // the compiler makes two of it where vectors have 16
#endif
constexpr int IN_A_LINE = 64 / VECTOR_BYTES;  // vectors that the cache reads together

template <typename A>
using Vector __attribute__((vector_size(VECTOR_BYTES))) = A;

template <typename A>
constexpr int64_t LANES = VECTOR_BYTES / sizeof(A);

constexpr std::align_val_t LINE{64};

template <typename A>
struct FromLine {
  using value_type = A;
  FromLine() = default;
  template <typename B>
  FromLine(const FromLine<B>&) {}
  A* allocate(size_t n) { return static_cast<A*>(::operator new(n * sizeof(A), LINE)); }
  void deallocate(A* at, size_t) { ::operator delete(at, LINE); }
  bool operator==(const FromLine&) const { return true; }
  bool operator!=(const FromLine&) const { return false; }
};

// Working memory that begins with a line of the cache: a core reads two lines for a vector that lies in both, and products
// of rows that do not begin so take up to 1.6 times as long.
template <typename A>
using Memory = std::vector<A, FromLine<A>>;

template <typename A>
struct Unset : FromLine<A> {
  Unset() = default;
  template <typename B>
  Unset(const Unset<B>&) {}
  template <typename B>
  void construct(B* at) {
    ::new (static_cast<void*>(at)) B;
  }
};

// The same without zeros in it, for values that are written before they are read.
template <typename A>
using Room = std::vector<A, Unset<A>>;

template <typename A>
inline Vector<A> load(const A* from) {
  Vector<A> x;
  std::memcpy(&x, from, VECTOR_BYTES);
  return x;
}

template <typename A>
inline void store(A* to, Vector<A> x) {
  std::memcpy(to, &x, VECTOR_BYTES);
}

template <typename A>
inline void fetch(const A* from, int64_t values) {
  for (int64_t n = 0; n < values; n += 64 / sizeof(A)) __builtin_prefetch(from + n);
}

// a * b + c, rounded once in every tile: left to itself the compiler fuses in some and not in others.
template <typename A>
inline Vector<A> fused(Vector<A> a, Vector<A> b, Vector<A> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  if constexpr (sizeof(A) == 4) return (Vector<A>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  if constexpr (sizeof(A) == 8) return (Vector<A>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
  return a * b + c;
}

// The vector, which stays in its register: the compiler would read it again for each product, and a core multiplies as many
// vectors at a time as it reads.
template <typename A>
inline Vector<A> keep(Vector<A> x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__AVX__)
  asm("" : "+x"(x));
#endif
  return x;
}

// max(x, 0), and zero for NaN.
inline Vector<float> positive(Vector<float> x) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_max_ps((__m512)x, _mm512_setzero_ps());
#elif defined(__FMA__)
  return (Vector<float>)_mm256_max_ps((__m256)x, _mm256_setzero_ps());
#else
  return x > 0.0f ? x : Vector<float>{};
#endif
}

// f(FROM) to f(TO - 1), with constants. Sums whose places are constants stay in registers; those that a loop goes through GCC
// 12 keeps in memory, if not with a store after each product.
template <int FROM, int TO, typename F>
[[gnu::always_inline]] inline void each(F f) {
  if constexpr (FROM < TO) {
    f(std::integral_constant<int, FROM>{});
    each<FROM + 1, TO>(f);
  }
}

template <typename A>
constexpr int64_t padded(int64_t n) {
  return (n + LANES<A> - 1) / LANES<A> * LANES<A>;
}

// Values from one row of a matrix of work to the next: rows a multiple of 1 KiB apart would share few places of the first
// cache.
template <typename A>
constexpr int64_t apart(int64_t width) {
  return padded<A>(width) + (padded<A>(width) * int64_t(sizeof(A)) % 1024 == 0 ? LANES<A> : 0);
}

// A 16-bit float with fp32's exponent, as torch.bfloat16 stores it.
struct BFloat16 {
  uint16_t bits;
  explicit operator float() const {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
};

inline void narrow(float x, float* to) { *to = x; }
inline void narrow(double x, double* to) { *to = x; }
inline void narrow(float x, BFloat16* to) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = std::isnan(x) ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The nearest value of bfloat16, as `narrow` finds it; loops of it become vectors, of 16-bit values they do not.
inline float near16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u : 0x7fc00000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline Vector<float> load_wide(const float* from) { return load(from); }
inline Vector<double> load_wide(const double* from) { return load(from); }
inline Vector<float> load_wide(const BFloat16* from) {
  uint16_t __attribute__((vector_size(VECTOR_BYTES / 2))) bits;
  uint32_t __attribute__((vector_size(VECTOR_BYTES))) wide;
  std::memcpy(&bits, from, VECTOR_BYTES / 2);
  wide = __builtin_convertvector(bits, decltype(wide)) << 16;
  return (Vector<float>)wide;
}

template <typename T, typename A>
inline void widen_row(const T* from, int64_t width, A scale, A* to) {
  for (int64_t n = 0; n < width; n++) to[n] = scale * static_cast<A>(from[n]);
  for (int64_t n = width; n < padded<A>(width); n++) to[n] = A(0);
}

template <typename T, typename A>
inline void narrow_row(const A* from, int64_t width, T* to) {
  for (int64_t n = 0; n < width; n++) narrow(from[n], to + n);
}

// Rows of a segment's keys: one after another, or in pages of `size` rows, whose numbers are listed.
template <typename T>
struct Keys {
  const T* rows;
  int64_t first, width;  // row of the first key where there are no pages, values of a row
  const int64_t* pages;  // nullptr where there are none
  int64_t size;
  int64_t row(int64_t key) const { return pages ? pages[key / size] * size + key % size : first + key; }
  const T* at(int64_t key) const { return rows + row(key) * width; }
  // How many of the `most` keys from this one on lie one after another.
  int64_t run(int64_t key, int64_t most) const { return pages ? std::min(most, size - key % size) : most; }
};

// The page tables of all segments [N, each], of none when `pages` is nullptr.
struct Pages {
  const int64_t* pages;
  int64_t each, size;
  template <typename T>
  Keys<T> keys_of(int64_t segment, const T* rows, int64_t first, int64_t width) const {
    return {rows, first, width, pages ? pages + segment * each : nullptr, size};
  }
};

// e to the x for x <= 0, within 2 units in the last place.
inline float exp_of(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float turns = std::nearbyint(x * 1.44269504f);
  const float r = (x - turns * 0.693359375f) + turns * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (int32_t(turns) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}
inline double exp_of(double x) { return std::exp(x); }

template <typename A, int BYTES>
using VectorOf __attribute__((vector_size(BYTES))) = A;

// The lower and the upper half of a vector, added. By instructions where there are some: halves that are read from
// memory would keep the whole vector there, with a store after each product.
template <typename A, int BYTES>
inline VectorOf<A, BYTES / 2> fold(VectorOf<A, BYTES> x) {
  using Half = VectorOf<A, BYTES / 2>;
#ifdef __AVX512F__
  if constexpr (BYTES == 64) {
    const __m512d all = (__m512d)x;
    return (Half)_mm512_castpd512_pd256(all) + (Half)_mm512_extractf64x4_pd(all, 1);
  }
#endif
#ifdef __AVX__
  if constexpr (BYTES == 32) {
    const __m256d all = (__m256d)x;
    return (Half)_mm256_castpd256_pd128(all) + (Half)_mm256_extractf128_pd(all, 1);
  }
#endif
  Half low, high;
  std::memcpy(&low, &x, BYTES / 2);
  std::memcpy(&high, reinterpret_cast<const char*>(&x) + BYTES / 2, BYTES / 2);
  return low + high;
}

inline float sum_of(VectorOf<float, 16> x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline double sum_of(VectorOf<double, 16> x) { return x[0] + x[1]; }

template <typename A>
inline A sum_lanes(Vector<A> x) {
#ifdef __AVX512F__
  return sum_of(fold<A, 32>(fold<A, 64>(x)));
#else
  return sum_of(fold<A, 32>(x));
#endif
}

}  // namespace arcforge
