/* The pool and the reader exchange tensors, and nothing stands between them: no other library is in this process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pool.h"
#include "reader.h"

#include <stdio.h>
#include <time.h>

#define CHECK(what)                                                      \
  do {                                                                   \
    if (!(what)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      exit(1);                                                           \
    }                                                                    \
  } while (0)

static void nap(int ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&time, NULL);
}

static double value_of(sum *made) {
  double value;
  const char *failure = sum_get(made, &value);
  if (failure) fprintf(stderr, "%s\n", failure);
  CHECK(!failure);
  sum_drop(made);
  return value;
}

/* The sum of first, first + 1, ... */
static double ramp(double first, int length) { return length * (first + first + length - 1) / 2; }

static void tensors_that_are_ready_late_come_in_order(pool *source, reader *sink) {
  pool_tensor *base = pool_ramp(source, 1, 1000, 30);
  DLManagedTensorFenced *exported = pool_export(base);
  CHECK(dlpack_fence_query(&exported->ready) == DLPACK_FENCE_PENDING);
  pool_tensor *doubled = pool_scale(source, exported, 2);
  sum *sums[2] = {reader_sum(sink, pool_export(doubled)), reader_sum(sink, pool_export(base))};
  pool_drop(base);
  pool_drop(doubled);
  CHECK(value_of(sums[0]) == 2 * ramp(1, 1000));
  CHECK(value_of(sums[1]) == ramp(1, 1000));
}

static void a_write_waits_for_two_consumers_whose_deleters_were_called_long_ago(pool *source, reader *sink) {
  pool_tensor *tensor = pool_ramp(source, 0, 100, 0);
  reader_pause(sink, 1);
  sum *before[2] = {reader_sum(sink, pool_export(tensor)), reader_sum(sink, pool_export(tensor))};
  pool_refill(tensor, 1000, 0);
  DLManagedTensorFenced *newer = pool_export(tensor);
  nap(20);
  CHECK(dlpack_fence_query(&newer->ready) == DLPACK_FENCE_PENDING);
  sum *after = reader_sum(sink, newer);
  reader_pause(sink, 0);
  CHECK(value_of(before[0]) == ramp(0, 100) && value_of(before[1]) == ramp(0, 100));
  CHECK(value_of(after) == ramp(1000, 100));
  pool_drop(tensor);
}

static void memory_outlives_its_tensor_until_the_last_read(pool *source, reader *sink) {
  pool_tensor *tensor = pool_ramp(source, 5, 100, 0);
  reader_pause(sink, 1);
  sum *made = reader_sum(sink, pool_export(tensor));
  pool_drop(tensor);
  nap(20);
  CHECK(pool_live(source) == 1);
  reader_pause(sink, 0);
  CHECK(value_of(made) == ramp(5, 100));
}

static void a_failure_reaches_the_last_consumer_with_its_text(pool *source, reader *sink) {
  pool_tensor *failed = pool_fail(source, 10);
  pool_tensor *after = pool_scale(source, pool_export(failed), 3);
  sum *made = reader_sum(sink, pool_export(after));
  double value;
  const char *failure = sum_get(made, &value);
  CHECK(failure && strcmp(failure, "the pool is empty") == 0);
  sum_drop(made);
  pool_drop(failed);
  pool_drop(after);
}

static void a_fence_that_only_answers_is_polled(pool *source, reader *sink) {
  pool_tensor *base = pool_ramp(source, 1, 10, 5);
  DLManagedTensorFenced *exported = pool_export(base);
  exported->ready.subscribe = NULL;
  exported->ready.unsubscribe = NULL;
  pool_tensor *scaled = pool_scale(source, exported, 10);
  CHECK(value_of(reader_sum(sink, pool_export(scaled))) == 10 * ramp(1, 10));
  pool_drop(base);
  pool_drop(scaled);
}

#define RUN(test)         \
  do {                    \
    test(source, sink);   \
    puts(#test);          \
  } while (0)

int main(void) {
#ifdef __unix__
  CHECK(!dlsym(RTLD_DEFAULT, "estafette_engine_create"));
#endif
  pool *source = pool_create(2);
  reader *sink = reader_create();
  RUN(tensors_that_are_ready_late_come_in_order);
  RUN(a_write_waits_for_two_consumers_whose_deleters_were_called_long_ago);
  RUN(memory_outlives_its_tensor_until_the_last_read);
  RUN(a_failure_reaches_the_last_consumer_with_its_text);
  RUN(a_fence_that_only_answers_is_polled);
  reader_destroy(sink);
  for (int i = 0; i < 1000 && pool_live(source); i++) nap(5);
  CHECK(pool_live(source) == 0);
  pool_destroy(source);
  return 0;
}
