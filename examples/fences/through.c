/* The pool and the reader exchange through Estafette: its operations are ordered after the pool's tasks and before the reader's sums,
 * and no thread waits for a tensor. */
#include "pool.h"
#include "reader.h"

#include <estafette.h>
#include <stdio.h>

#define CHECK(what)                                                                                                 \
  do {                                                                                                              \
    if (!(what)) {                                                                                                  \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, estafette_last_error()); \
      exit(1);                                                                                                      \
    }                                                                                                               \
  } while (0)
#define OK(call) CHECK((call) == ESTAFETTE_OK)
#define MINUTE 60000000000ull

typedef struct { estafette_tensor *from, *to; int64_t length; } halving;

/* The function of an operation: writes half of what it reads. */
static void halve(void *context, estafette_op *op) {
  halving *self = context;
  float *from, *to;
  OK(estafette_tensor_data(self->from, (void **)&from));
  OK(estafette_tensor_data(self->to, (void **)&to));
  for (int64_t i = 0; i < self->length; i++) to[i] = from[i] / 2;
  OK(estafette_op_complete(op, ESTAFETTE_OK, NULL));
}

static estafette_tensor *halved(estafette_engine *engine, estafette_tensor *from, halving *work) {
  DLDataType f32 = {kDLFloat, 32, 1};
  work->from = from;
  OK(estafette_zeros(engine, &work->length, 1, f32, &work->to));
  OK(estafette_submit(engine, "halve", halve, work, NULL, &work->from, 1, &work->to, 1));
  return work->to;
}

static double ramp(double first, int length) { return length * (first + first + length - 1) / 2; }

static void an_engine_stands_between_two_libraries(estafette_engine *engine, pool *source, reader *sink) {
  enum { LENGTH = 1000 };
  static halving work = {NULL, NULL, LENGTH};
  pool_tensor *base = pool_ramp(source, 4, LENGTH, 20);
  estafette_tensor *taken;
  OK(estafette_import_fenced(engine, pool_export(base), &taken));
  CHECK(estafette_query(taken) == ESTAFETTE_PENDING);
  estafette_tensor *half = halved(engine, taken, &work);
  DLManagedTensorFenced *given;
  OK(estafette_export_fenced(half, ESTAFETTE_READ, &given));
  CHECK(dlpack_fence_query(&given->ready) == DLPACK_FENCE_PENDING);
  reader_pause(sink, 1);
  sum *made = reader_sum(sink, given); /* The struct goes back here, long before the memory is read. */
  OK(estafette_wait(half, MINUTE));
  /* A write of the engine waits for the reader's fence. */
  static halving again = {NULL, NULL, LENGTH};
  again.from = taken;
  again.to = half;
  OK(estafette_submit(engine, "overwrite", halve, &again, NULL, &again.from, 1, &again.to, 1));
  CHECK(estafette_wait(half, 20000000) == ESTAFETTE_TIMEOUT);
  /* And the pool's own write waits for the engine. */
  pool_refill(base, 0, 0);
  reader_pause(sink, 0);
  double value;
  CHECK(sum_get(made, &value) == NULL && value == ramp(4, LENGTH) / 2);
  sum_drop(made);
  OK(estafette_wait(half, MINUTE));
  OK(estafette_tensor_release(half));
  OK(estafette_tensor_release(taken));
  CHECK(sum_get(made = reader_sum(sink, pool_export(base)), &value) == NULL && value == ramp(0, LENGTH));
  sum_drop(made);
  pool_drop(base);
}

static void a_failure_passes_through_and_is_reported(estafette_engine *engine, pool *source, reader *sink) {
  static halving work = {NULL, NULL, 10};
  pool_tensor *failed = pool_fail(source, 10);
  estafette_tensor *taken;
  OK(estafette_import_fenced(engine, pool_export(failed), &taken));
  pool_drop(failed);
  estafette_tensor *half = halved(engine, taken, &work);
  DLManagedTensorFenced *given;
  OK(estafette_export_fenced(half, ESTAFETTE_READ, &given));
  double value;
  sum *made = reader_sum(sink, given);
  const char *failure = sum_get(made, &value);
  CHECK(failure && strstr(failure, "the pool is empty"));
  sum_drop(made);
  CHECK(estafette_wait(half, MINUTE) == ESTAFETTE_FAILED && strstr(estafette_last_error(), "the pool is empty"));
  OK(estafette_tensor_release(half));
  OK(estafette_tensor_release(taken));
}

static float seven[1] = {7};
static int64_t one[1] = {1};
static void keep(DLManagedTensorVersioned *self) { free(self); }

static void produce_seven(void *context, estafette_op *op) {
  (void)context;
  DLManagedTensorVersioned *made = calloc(1, sizeof *made);
  made->version.major = 1;
  made->deleter = keep;
  made->dl_tensor.data = seven;
  made->dl_tensor.device.device_type = kDLCPU;
  made->dl_tensor.ndim = 1;
  made->dl_tensor.dtype.code = kDLFloat;
  made->dl_tensor.dtype.bits = 32;
  made->dl_tensor.dtype.lanes = 1;
  made->dl_tensor.shape = made->dl_tensor.strides = one;
  OK(estafette_op_complete_with(op, made));
}

static void a_tensor_whose_shape_comes_late_is_described_late(estafette_engine *engine, pool *source, reader *sink) {
  pool_tensor *gate = pool_ramp(source, 0, 1, 20);
  estafette_tensor *waits, *made;
  OK(estafette_import_fenced(engine, pool_export(gate), &waits));
  OK(estafette_produce(engine, NULL, produce_seven, NULL, NULL, &waits, 1, &made));
  DLManagedTensorFenced *given, *back;
  OK(estafette_export_fenced(made, ESTAFETTE_READ, &given));
  CHECK(given->fence_flags == DLPACK_FENCE_DESCRIBED_LATE);
  estafette_tensor *again;
  OK(estafette_import_fenced(engine, given, &again)); /* and is imported before it is described */
  OK(estafette_export_fenced(again, ESTAFETTE_READ, &back));
  double value;
  sum *late = reader_sum(sink, back);
  CHECK(sum_get(late, &value) == NULL && value == 7);
  sum_drop(late);
  OK(estafette_tensor_release(again));
  OK(estafette_tensor_release(made));
  OK(estafette_tensor_release(waits));
  pool_drop(gate);
}

#define RUN(test)               \
  do {                          \
    test(engine, source, sink); \
    puts(#test);                \
  } while (0)

int main(void) {
  estafette_engine *engine;
  OK(estafette_engine_create(NULL, &engine));
  pool *source = pool_create(2);
  reader *sink = reader_create();
  RUN(an_engine_stands_between_two_libraries);
  RUN(a_failure_passes_through_and_is_reported);
  RUN(a_tensor_whose_shape_comes_late_is_described_late);
  reader_destroy(sink);
  OK(estafette_engine_destroy(engine));
  pool_destroy(source); /* returns once all memory of the pool was released */
  OK(estafette_flush_deleters(MINUTE));
  return 0;
}
