/* A consumer in C: what a tensor costs through the C exchange table of DLPack 1.3. Built and called by bench.py, with the Python lock. */

#include <stdint.h>
#include <time.h>

/* The parts of dlpack.h that are looked at. */
struct managed {
  uint32_t major, minor;
  void *manager_ctx;
  void (*deleter)(struct managed *);
};

struct table {
  uint32_t major, minor;
  void *prev_api;
  void *allocator;
  int (*from_object)(void *object, struct managed **out);
  void *to_object;
  int (*describe)(void *object, void *out);
  void *current_stream;
};

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Nanoseconds per tensor that is taken and returned; negative when one is refused. */
double take(const struct table *table, void *object, int64_t n) {
  double began = now_ns();
  for (int64_t i = 0; i < n; i++) {
    struct managed *taken;
    if (table->from_object(object, &taken) != 0) return -1;
    taken->deleter(taken);
  }
  return (now_ns() - began) / (double)n;
}

/* Nanoseconds per tensor that is described. */
double describe(const struct table *table, void *object, int64_t n) {
  uint64_t tensor[6];
  double began = now_ns();
  for (int64_t i = 0; i < n; i++) {
    if (table->describe(object, tensor) != 0) return -1;
  }
  return (now_ns() - began) / (double)n;
}
