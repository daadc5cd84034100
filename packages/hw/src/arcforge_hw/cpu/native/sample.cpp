// Samples a token from each row of logits: the largest weight over exponential noise, which Philox makes of seed and place.
//
// The noise -log(u) is at least 1 - u, so that nearly all tokens are seen to lose by a product in fp32, their weights
// being bounded from above; the few others are computed in double precision as the reference does.
#include <algorithm>
#include <cmath>

#include "rows.h"

namespace arcforge {
namespace {

constexpr int64_t PIECE = 256;  // tokens at a time; a multiple of the four numbers per call of Philox
constexpr int64_t FEW = 16;     // of them that are compared with the best one together

// Philox 4x64 with ten rounds (Salmon et al. 2011) as numpy counts it: the first numbers are those of counter + 1.
inline void philox(uint64_t block, uint64_t place, uint64_t seed, uint64_t out[4]) {
  constexpr uint64_t M0 = 0xD2E7470EE14C6C93, M1 = 0xCA5A826395121157;
  constexpr uint64_t W0 = 0x9E3779B97F4A7C15, W1 = 0xBB67AE8584CAA73B;
  uint64_t c0 = block + 1, c1 = place, c2 = 0, c3 = 0, k0 = seed, k1 = 0;
  for (int round = 0; round < 10; round++) {
    const unsigned __int128 left = (unsigned __int128)M0 * c0, right = (unsigned __int128)M1 * c2;
    c0 = uint64_t(right >> 64) ^ c1 ^ k0;
    c2 = uint64_t(left >> 64) ^ c3 ^ k1;
    c1 = uint64_t(right), c3 = uint64_t(left);
    k0 += W0, k1 += W1;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

template <typename T, typename A>
int64_t sample_row(const T* row, int64_t width, double temperature, uint64_t seed, uint64_t place) {
  A top = -INFINITY;
#pragma omp simd reduction(max : top)
  for (int64_t n = 0; n < width; n++) top = A(row[n]) > top ? A(row[n]) : top;
  const float turned = float(1 / temperature);
  int64_t winner = 0;
  double best = 0;
  for (int64_t first = 0; first < width; first += PIECE) {
    const int64_t count = std::min(PIECE, width - first);
    uint64_t bits[PIECE];
    float bound[PIECE], rest[PIECE];  // of the weight, and of the noise
    for (int64_t n = 0; n < count; n += 4) philox((first + n) / 4, place, seed, bits + n);
    for (int64_t n = 0; n < count; n++) {
      rest[n] = float(int64_t((1ull << 53) - 1 - (bits[n] >> 11))) * 0x1p-53f;  // 1 - u
      bound[n] = 1.0001f * exp_of(float(A(row[first + n]) - top) * turned);
    }
    const auto loses = [&](int64_t n) { return bound[n] < float(best) * rest[n]; };
    for (int64_t some = 0; some < count; some += FEW) {
      const int64_t end = std::min(count, some + FEW);
      int open = 0;
      for (int64_t n = some; n < end; n++) open += !loses(n);
      if (!open) continue;
      for (int64_t n = some; n < end; n++) {
        if (loses(n)) continue;
        const double u = (double(bits[n] >> 11) + 1) * 0x1p-53;
        const double scaled = (double(A(row[first + n])) - double(top)) / temperature;
        const double weight = std::exp(scaled) / std::max(-std::log(u), 1e-300);
        if (weight > best) best = weight, winner = first + n;
      }
    }
  }
  return winner;
}

template <typename T, typename A>
void sample(const T* logits, const double* temperature, const int64_t* seed, const int64_t* place, int64_t* drawn,
          int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; r++)
    drawn[r] = sample_row<T, A>(logits + r * width, width, temperature[r], uint64_t(seed[r]), uint64_t(place[r]));
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_SAMPLE(NAME, T, A)                                                                                     \
  extern "C" void arcforge_sample_##NAME(const T* logits, const double* temperature, const int64_t* seed,               \
                                       const int64_t* place, int64_t* drawn, int64_t rows, int64_t width,             \
                                       int64_t threads) {                                                             \
    arcforge::sample<T, A>(logits, temperature, seed, place, drawn, rows, width, int(threads));                         \
  }

ARCFORGE_SAMPLE(float32, float, float)
ARCFORGE_SAMPLE(bfloat16, arcforge::BFloat16, float)
ARCFORGE_SAMPLE(float64, double, double)
