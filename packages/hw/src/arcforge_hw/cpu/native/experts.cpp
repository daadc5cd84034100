// Routed experts and their gradients: an expert's rows are gathered, multiplied and put back while they are in the cache.
// Grouped products are a call for each expert, and operators walk memory between them.
//
// A choice is one of a token's experts: number token * chosen + k. Rows of an expert are its choices, in their order.
#include <algorithm>
#include <numeric>

#include "packed.h"

namespace arcforge {
namespace {

constexpr int64_t ROWS = 128;     // of an expert that are multiplied at a time
constexpr int64_t ROWS_AHEAD = 3;  // before its copy a row is asked for: rows lie anywhere
template <typename T>
constexpr int64_t CONVERTED = std::is_same_v<Unit<T>, float> ? 0 : ROWS;  // rows of conversions, which fp32 does not need

struct Sizes {
  int64_t tokens, chosen, experts, hidden, width;
  int threads;
};

// order: choices by expert; ends: where an expert's choices end in it.
void sort_choices(const int64_t* expert, const Sizes& s, int64_t* order, int64_t* ends) {
  const int64_t choices = s.tokens * s.chosen;
  std::fill_n(ends, s.experts, 0);
  for (int64_t n = 0; n < choices; n++) ends[expert[n]]++;
  for (int64_t e = 0, begin = 0; e < s.experts; e++) {
    const int64_t count = ends[e];
    ends[e] = begin;
    begin += count;
  }
  for (int64_t n = 0; n < choices; n++) order[ends[expert[n]]++] = n;
}

// The experts, those with the most choices first, so that threads end together.
std::vector<int64_t> by_choices(const int64_t* ends, int64_t experts) {
  std::vector<int64_t> found(experts);
  std::iota(found.begin(), found.end(), 0);
  const auto count = [&](int64_t e) { return ends[e] - (e ? ends[e - 1] : 0); };
  std::stable_sort(found.begin(), found.end(), [&](int64_t a, int64_t b) { return count(a) > count(b); });
  return found;
}

float sigmoid(float x) {
  const float small = exp_of(x < 0.0f ? x : -x);
  return (x < 0.0f ? small : 1.0f) / (1.0f + small);
}

// The rows of choices' tokens, as units of neighbours.
template <typename T>
void gather(const T* x, const int64_t* choice, int64_t count, const Sizes& s, Matrix<Unit<T>>& to) {
  const auto row = [&](int64_t r) { return x + choice[r] / s.chosen * s.hidden; };
  for (int64_t r = 0; r < count; r++) {
    fetch(row(std::min(r + ROWS_AHEAD, count - 1)), s.hidden);
    take_row(row(r), s.hidden, to.row(r));
  }
}

// Whole vectors of rows, rounded to units of neighbouring values or of neighbouring rows; fp32 rows as they are.
Matrix<Pair>& round_neighbours(Matrix<float>& rows, int64_t count, int64_t width, Matrix<Pair>& to) {
  for (int64_t r = 0; r < count; r++) pair_neighbours(rows.row(r), width, to.row(r));
  return to;
}
Matrix<Pair>& round_rows(Matrix<float>& rows, int64_t count, int64_t width, Matrix<Pair>& to) {
  if (count % 2) std::fill_n(rows.row(count), width, 0.0f);  // the last one's other half
  for (int64_t r = 0; r < count; r += 2) pair_rows(rows.row(r), rows.row(r + 1), width, to.row(r / 2));
  return to;
}
Matrix<float>& round_neighbours(Matrix<float>& rows, int64_t, int64_t, Matrix<float>&) { return rows; }
Matrix<float>& round_rows(Matrix<float>& rows, int64_t, int64_t, Matrix<float>&) { return rows; }

void put_back(Matrix<float>& rows, const int64_t* choice, int64_t count, int64_t width, float* to) {
  for (int64_t r = 0; r < count; r++) {
    fetch(to + choice[std::min(r + ROWS_AHEAD, count - 1)] * width, width);
    std::copy_n(rows.row(r), width, to + choice[r] * width);
  }
}

// One token's choices, added up in their order.
template <typename T>
void combine(const float* of_choice, int64_t token, const Sizes& s, float* sum, T* to) {
  std::fill_n(sum, s.hidden, 0.0f);
  for (int64_t k = 0; k < s.chosen; k++) {
    const float* row = of_choice + (token * s.chosen + k) * s.hidden;
    for (int64_t d = 0; d < s.hidden; d++) sum[d] += row[d];
  }
  narrow_row(sum, s.hidden, to + token * s.hidden);
}

template <typename T>
void forward(const T* x, const T* gate_up, const T* down, const int64_t* expert, const float* gate, T* out,
             int64_t* order, int64_t* ends, float* of_choice, T* inner, const Sizes& s) {
  const int64_t hidden = s.hidden, width = s.width, both = 2 * width;
  sort_choices(expert, s, order, ends);
  const std::vector<int64_t> sorted = by_choices(ends, s.experts);
#pragma omp parallel num_threads(s.threads)
  {
    Matrix<Unit<T>> up(units<T>(hidden), both), back(units<T>(width), hidden);
    Matrix<Unit<T>> rows(ROWS, units<T>(hidden)), gated(CONVERTED<T>, units<T>(width));
    Matrix<float> activations(ROWS, both), result(ROWS, hidden);
    Memory<T> own(both);
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < s.experts; n++) {
      const int64_t e = sorted[n], begin = e ? ends[e - 1] : 0;
      if (begin == ends[e]) continue;
      turn(gate_up + e * both * hidden, hidden, both, hidden, up);
      turn(down + e * hidden * width, width, hidden, width, back);
      for (int64_t first = begin; first < ends[e]; first += ROWS) {
        const int64_t count = std::min(ROWS, ends[e] - first), *choice = order + first;
        gather(x, choice, count, s, rows);
        pair_product(rows.row(0), rows.stride, 1, count, up.row(0), up.stride, both, units<T>(hidden),
                     activations.row(0), activations.stride, false);
        for (int64_t r = 0; r < count; r++) {
          float* row = activations.row(r);
          const float weight = gate[choice[r]];
          T* kept = inner ? inner + choice[r] * both : own.data();
          narrow_row(row, both, kept);  // gradients are those of the rounded values
#pragma omp simd
          for (int64_t j = 0; j < width; j++) {
            const float g = float(kept[j]), u = float(kept[width + j]);
            row[j] = weight * g * sigmoid(g) * u;
          }
        }
        auto& weighted = round_neighbours(activations, count, width, gated);
        pair_product(weighted.row(0), weighted.stride, 1, count, back.row(0), back.stride, hidden, units<T>(width),
                     result.row(0), result.stride, false);
        put_back(result, choice, count, hidden, of_choice);
      }
    }
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s.tokens; t++) combine(of_choice, t, s, result.row(0), out);
  }
}

// Without room for the weights' gradients these are not computed.
template <typename T>
void backward(const T* grad, const T* x, const T* gate_up, const T* down, const float* gate,
              const int64_t* order, const int64_t* ends, const T* inner, T* dx, float* of_choice, float* dgate,
              T* dgate_up, T* ddown, const Sizes& s) {
  const int64_t hidden = s.hidden, width = s.width, both = 2 * width;
  const std::vector<int64_t> sorted = by_choices(ends, s.experts);
#pragma omp parallel num_threads(s.threads)
  {
    Matrix<Unit<T>> up(units<T>(both), hidden), back(units<T>(hidden), width);
    Matrix<Unit<T>> rows(ROWS, units<T>(hidden)), cotangent(ROWS, units<T>(hidden)), zipped(halves(CONVERTED<T>), hidden);
    Matrix<Unit<T>> rounded(CONVERTED<T>, units<T>(both)), rounded_n(halves(CONVERTED<T>), both);
    Matrix<float> dgated(ROWS, width), gated(ROWS, width), dboth(ROWS, both), drows(ROWS, hidden);
    Matrix<float> dup(both, hidden), dback(hidden, width);
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < s.experts; n++) {
      const int64_t e = sorted[n], begin = e ? ends[e - 1] : 0;
      if (begin == ends[e]) {
        if (!dgate_up) continue;
        std::fill_n(dgate_up + e * both * hidden, both * hidden, T{});
        std::fill_n(ddown + e * hidden * width, hidden * width, T{});
        continue;
      }
      zip(gate_up + e * both * hidden, hidden, both, hidden, up);
      zip(down + e * hidden * width, width, hidden, width, back);
      dup.clear(both);
      dback.clear(hidden);
      for (int64_t first = begin; first < ends[e]; first += ROWS) {
        const int64_t count = std::min(ROWS, ends[e] - first), *choice = order + first;
        gather(grad, choice, count, s, cotangent);
        pair_product(cotangent.row(0), cotangent.stride, 1, count, back.row(0), back.stride, width, units<T>(hidden),
                     dgated.row(0), dgated.stride, false);
        for (int64_t r = 0; r < count; r++) {
          const T* of_row = inner + choice[r] * both;
          const float* d = dgated.row(r);
          float *g_to = dboth.row(r), *u_to = g_to + width, *to = gated.row(r), sum = 0;
          const float weight = gate[choice[r]];
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < width; j++) {
            const float g = float(of_row[j]), u = float(of_row[width + j]), share = sigmoid(g), silu = g * share;
            sum += d[j] * silu * u;
            to[j] = weight * silu * u;
            g_to[j] = weight * d[j] * u * (share + silu * (1.0f - share));
            u_to[j] = weight * d[j] * silu;
          }
          dgate[choice[r]] = sum;
        }
        auto& dboth_2 = round_neighbours(dboth, count, both, rounded);
        pair_product(dboth_2.row(0), dboth_2.stride, 1, count, up.row(0), up.stride, hidden, units<T>(both),
                     drows.row(0), drows.stride, false);
        put_back(drows, choice, count, hidden, of_choice);
        if (!dgate_up) continue;
        gather(x, choice, count, s, rows);
        auto& dboth_n = round_rows(dboth, count, both, rounded_n);
        auto& rows_n = zip_taken<T>(rows, count, hidden, zipped);
        pair_product(dboth_n.row(0), 1, dboth_n.stride, both, rows_n.row(0), rows_n.stride, hidden, units<T>(count),
                     dup.row(0), dup.stride, true);
        auto& gated_n = round_rows(gated, count, width, rounded_n);
        auto& cotangent_n = zip_taken<T>(cotangent, count, hidden, zipped);
        pair_product(cotangent_n.row(0), 1, cotangent_n.stride, hidden, gated_n.row(0), gated_n.stride, width,
                     units<T>(count), dback.row(0), dback.stride, true);
      }
      if (!dgate_up) continue;
      for (int64_t j = 0; j < both; j++) narrow_row(dup.row(j), hidden, dgate_up + (e * both + j) * hidden);
      for (int64_t j = 0; j < hidden; j++) narrow_row(dback.row(j), width, ddown + (e * hidden + j) * width);
    }
#pragma omp for schedule(static)
    for (int64_t t = 0; t < s.tokens; t++) combine(of_choice, t, s, drows.row(0), dx);
  }
}

}  // namespace
}  // namespace arcforge

#define ARCFORGE_ROUTED_EXPERTS(NAME, T)                                                                               \
  extern "C" void arcforge_routed_experts_##NAME(                                                                      \
      const T* x, const T* gate_up, const T* down, const int64_t* expert, const float* gate, T* out, int64_t* order,   \
      int64_t* ends, float* of_choice, T* inner, int64_t tokens, int64_t chosen, int64_t experts, int64_t hidden,      \
      int64_t width, int64_t threads) {                                                                                \
    arcforge::forward<T>(x, gate_up, down, expert, gate, out, order, ends, of_choice, inner,                           \
                         {tokens, chosen, experts, hidden, width, int(threads)});                                      \
  }                                                                                                                    \
  extern "C" void arcforge_routed_experts_backward_##NAME(                                                             \
      const T* grad, const T* x, const T* gate_up, const T* down, const float* gate, const int64_t* order,             \
      const int64_t* ends, const T* inner, T* dx, float* of_choice, float* dgate, T* dgate_up, T* ddown,               \
      int64_t tokens, int64_t chosen, int64_t experts, int64_t hidden, int64_t width, int64_t threads) {               \
    arcforge::backward<T>(grad, x, gate_up, down, gate, order, ends, inner, dx, of_choice, dgate, dgate_up, ddown,     \
                          {tokens, chosen, experts, hidden, width, int(threads)});                                     \
  }

ARCFORGE_ROUTED_EXPERTS(float32, float)
ARCFORGE_ROUTED_EXPERTS(bfloat16, arcforge::BFloat16)
