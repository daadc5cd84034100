// Makes recorded calls again, and what between kernels is torch's outside of a recording.
#include <cstring>

#include "rows.h"
#include "record.h"

struct RecordedCall {
  void (*function)(const int64_t*);
  const int64_t* words;
};

extern "C" void arcforge_replay(const RecordedCall* calls, int64_t count) {
  for (int64_t n = 0; n < count; n++) calls[n].function(calls[n].words);
}

// Rows of `bytes` to the places `slots` of a store.
extern "C" void arcforge_store_rows(char* store, const int64_t* slots, const char* rows, int64_t count, int64_t bytes) {
  for (int64_t n = 0; n < count; n++) std::memcpy(store + slots[n] * bytes, rows + n * bytes, bytes);
}

extern "C" void arcforge_narrow_rows(const float* from, arcforge::BFloat16* to, int64_t count) {
  arcforge::narrow_row(from, count, to);
}

#define ARCFORGE_ADD(NAME, A)                                                                     \
  extern "C" void arcforge_add_##NAME(const A* x, const A* y, A* out, int64_t count) {            \
    for (int64_t n = 0; n < count; n++) out[n] = x[n] + y[n];                                     \
  }                                                                                               \
  ARCFORGE_RECORDED(arcforge_add_##NAME)

// Of bfloat16, by the narrowed sum of both widened.
extern "C" void arcforge_add_bfloat16(const arcforge::BFloat16* x, const arcforge::BFloat16* y, arcforge::BFloat16* out,
                                      int64_t count) {
  for (int64_t n = 0; n < count; n++) arcforge::narrow(float(x[n]) + float(y[n]), out + n);
}
ARCFORGE_RECORDED(arcforge_add_bfloat16)

ARCFORGE_ADD(float32, float)
ARCFORGE_ADD(float64, double)
ARCFORGE_RECORDED(arcforge_store_rows)
ARCFORGE_RECORDED(arcforge_narrow_rows)
