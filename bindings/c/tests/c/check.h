/* Common part of the test programs: checks that name what is wrong, and tensors that count their deleters. */
#ifndef CHECK_H
#define CHECK_H

#include <estafette.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                     \
  do {                                                                                  \
    if (!(what)) {                                                                      \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #what, \
              estafette_last_error());                                                  \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

/* The call returns this status. */
#define EXPECT(status, call)                                                               \
  do {                                                                                     \
    int got_ = (call);                                                                     \
    if (got_ != (status)) {                                                                \
      fprintf(stderr, "%s:%d: %s returned %d (%s), not %s: %s\n", __FILE__, __LINE__, #call, got_, \
              estafette_status_text(got_), #status, estafette_last_error());               \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

#define OK(call) EXPECT(ESTAFETTE_OK, call)

/* An error whose text has these words. */
#define REFUSED(status, words, call)                   \
  do {                                                 \
    EXPECT(status, call);                              \
    CHECK(strstr(estafette_last_error(), words) != 0); \
  } while (0)

#define RUN(test)          \
  do {                     \
    test();                \
    printf("%s\n", #test); \
  } while (0)

#define SECOND 1000000000ull

typedef struct {
  DLManagedTensorVersioned managed;
  int64_t shape[1];
  float values[4];
  atomic_int deleted;
} counted;

static void counted_delete(DLManagedTensorVersioned *self) { atomic_fetch_add(&((counted *)self->manager_ctx)->deleted, 1); }

/* A tensor of four floats that outlives its deleter, so that this can be counted. */
static inline counted *counted_new(void) {
  counted *made = calloc(1, sizeof *made);
  made->managed.version.major = 1;
  made->managed.version.minor = 3;
  made->managed.manager_ctx = made;
  made->managed.deleter = counted_delete;
  made->managed.dl_tensor.data = made->values;
  made->managed.dl_tensor.device.device_type = kDLCPU;
  made->managed.dl_tensor.ndim = 1;
  made->managed.dl_tensor.dtype.code = kDLFloat;
  made->managed.dl_tensor.dtype.bits = 32;
  made->managed.dl_tensor.dtype.lanes = 1;
  made->managed.dl_tensor.shape = made->shape;
  made->shape[0] = 4;
  return made;
}

static inline int deleted_after_flush(counted *tensor) {
  OK(estafette_flush_deleters(10 * SECOND));
  return atomic_load(&tensor->deleted);
}

/* Number of calls of the deleter. A worker releases the operands of an operation just after it has reported the end, so a
   flush alone may come too early: the first call is waited for. */
static inline int deletions(counted *tensor) {
  for (int look = 0; look < 10000 && deleted_after_flush(tensor) == 0; look++) usleep(1000);
  return deleted_after_flush(tensor);
}

static inline estafette_engine *engine_new(int workers) {
  estafette_engine_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.workers = workers;
  options.lease_timeout_ns = SECOND / 10;
  estafette_engine *engine;
  OK(estafette_engine_create(&options, &engine));
  return engine;
}

static inline estafette_tensor *floats(estafette_engine *engine, int64_t length) {
  DLDataType type = {kDLFloat, 32, 1};
  estafette_tensor *tensor;
  OK(estafette_zeros(engine, &length, 1, type, &tensor));
  return tensor;
}

static inline void nap(long ms) {
  struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
  nanosleep(&time, 0);
}

/* A context that counts: `function` completes at once, `drop` is the drop_context. */
typedef struct {
  atomic_int called;
  atomic_int dropped;
  _Atomic(estafette_op *) op;
  int complete;
} counting;

/* Contexts of tests are static: a worker may drop one after the test has seen the end of its operation. */
static inline void counting_function(void *context, estafette_op *op) {
  counting *self = context;
  int complete = self->complete;
  atomic_store(&self->op, op);
  atomic_fetch_add(&self->called, 1);
  if (complete) OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static inline void counting_drop(void *context) { atomic_fetch_add(&((counting *)context)->dropped, 1); }

/* Number of times that the context was dropped: a worker drops it just after it has reported the end, so the first drop is waited for. */
static inline int drops(counting *self) {
  for (int look = 0; look < 10000 && atomic_load(&self->dropped) == 0; look++) usleep(1000);
  return atomic_load(&self->dropped);
}

static inline estafette_op *begun(counting *self) {
  while (!atomic_load(&self->called)) nap(1);
  return atomic_load(&self->op);
}

#endif
