/* A scheduler in C: its fences order our operations, and ours order its work. */
#include "check.h"

/* Settled by hand; calls its subscribers under its own lock, which is not recursive. */
typedef struct {
  pthread_mutex_t lock;
  atomic_int status;
  atomic_int holders;
  DLFenceCallback callback[8];
  void *argument[8];
  int subscribers;
} scheduler_fence;

static int32_t fence_query(void *context) {
  scheduler_fence *self = context;
  pthread_mutex_lock(&self->lock);
  int32_t status = atomic_load(&self->status);
  pthread_mutex_unlock(&self->lock);
  return status;
}

static int32_t fence_subscribe(void *context, DLFenceCallback callback, void *argument, uint64_t *token) {
  scheduler_fence *self = context;
  int32_t status = ESTAFETTE_PENDING;
  pthread_mutex_lock(&self->lock);
  if (atomic_load(&self->status) == ESTAFETTE_PENDING && self->subscribers < 8) {
    self->callback[self->subscribers] = callback;
    self->argument[self->subscribers] = argument;
    *token = (uint64_t)self->subscribers++;
    status = ESTAFETTE_OK;
  }
  pthread_mutex_unlock(&self->lock);
  return status;
}

static const char *fence_error(void *context) {
  (void)context;
  return "the scheduler is on strike";
}

static void fence_retain(void *context) { atomic_fetch_add(&((scheduler_fence *)context)->holders, 1); }

/* Takes the lock: a release under it would never return. */
static void fence_release(void *context) {
  scheduler_fence *self = context;
  pthread_mutex_lock(&self->lock);
  atomic_fetch_sub(&self->holders, 1);
  pthread_mutex_unlock(&self->lock);
}

static void fence_settle(scheduler_fence *self, int32_t status) {
  pthread_mutex_lock(&self->lock);
  atomic_store(&self->status, status);
  for (int i = 0; i < self->subscribers; i++) {
    self->callback[i](self->argument[i], status, status < 0 ? "the scheduler is on strike" : 0);
    self->callback[i](self->argument[i], status, 0); /* Twice, as it should not. */
  }
  pthread_mutex_unlock(&self->lock);
}

static scheduler_fence *fence_new(DLFence *raw, int tells) {
  scheduler_fence *self = calloc(1, sizeof *self);
  pthread_mutex_init(&self->lock, 0);
  atomic_store(&self->status, ESTAFETTE_PENDING);
  atomic_store(&self->holders, 1);
  memset(raw, 0, sizeof *raw);
  raw->version = DLPACK_FENCE_VERSION;
  raw->size = sizeof *raw;
  raw->context = self;
  raw->device.device_type = kDLCPU;
  raw->query = fence_query;
  raw->subscribe = tells ? fence_subscribe : 0;
  raw->error = fence_error;
  raw->retain = fence_retain;
  raw->release = fence_release;
  return self;
}

static void fence_free(scheduler_fence *self) {
  fence_release(self);
  for (int i = 0; i < 10000 && atomic_load(&self->holders) > 0; i++) {
    OK(estafette_flush_deleters(10 * SECOND));
    nap(1);
  }
  CHECK(atomic_load(&self->holders) == 0);
  pthread_mutex_destroy(&self->lock);
  free(self);
}

static void a_tensor_with_a_foreign_promise_is_awaited_and_chained_on(void) {
  for (int tells = 0; tells < 2; tells++) {
    estafette_engine *engine = engine_new(2);
    DLFence raw;
    scheduler_fence *fence = fence_new(&raw, tells);
    counted *memory = counted_new();
    estafette_tensor *tensor;
    OK(estafette_import(engine, &memory->managed, &raw, &tensor));
    CHECK(atomic_load(&fence->holders) == 2);
    memset(&raw, 0xaa, sizeof raw); /* The struct was copied. */

    counting reader = {0};
    reader.complete = 1;
    OK(estafette_submit(engine, "reader", counting_function, &reader, 0, &tensor, 1, 0, 0));
    EXPECT(ESTAFETTE_PENDING, estafette_query(tensor));
    EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(tensor, SECOND / 100));
    CHECK(reader.called == 0);
    /* A copy of memory that is not written yet would be of nothing. */
    for (int access = ESTAFETTE_READ; access <= ESTAFETTE_ALIAS; access++) {
      estafette_export_options copies = {.size = sizeof copies};
      copies.access = access;
      copies.copy = 1;
      copies.nonblocking = 1;
      DLManagedTensorVersioned *copy;
      EXPECT(ESTAFETTE_PENDING, estafette_export(tensor, &copies, &copy));
      copies.nonblocking = 0;
      copies.timeout_ns = SECOND / 100;
      EXPECT(ESTAFETTE_TIMEOUT, estafette_export(tensor, &copies, &copy));
    }
    fence_settle(fence, ESTAFETTE_OK);
    OK(estafette_wait_all(engine, 10 * SECOND));
    OK(estafette_wait(tensor, 10 * SECOND));
    CHECK(reader.called == 1);
    estafette_tensor_release(tensor);
    CHECK(deletions(memory) == 1);
    estafette_engine_destroy(engine);
    fence_free(fence);
    free(memory);
  }
}

static void failure_travels_with_its_message(void) {
  estafette_engine *engine = engine_new(1);
  DLFence raw;
  scheduler_fence *fence = fence_new(&raw, 1);
  counted *memory = counted_new();
  estafette_tensor *tensor;
  OK(estafette_import(engine, &memory->managed, &raw, &tensor));
  static counting reader;
  OK(estafette_submit(engine, "reader", counting_function, &reader, counting_drop, &tensor, 1, 0, 0));
  fence_settle(fence, ESTAFETTE_FAILED);
  REFUSED(ESTAFETTE_FAILED, "on strike", estafette_wait(tensor, 10 * SECOND));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(reader.called == 0 && drops(&reader) == 1);
  estafette_tensor_release(tensor);
  CHECK(deletions(memory) == 1);
  estafette_engine_destroy(engine);
  fence_free(fence);
  free(memory);
}

static void the_deleter_waits_for_the_consumers_work(void) {
  estafette_engine *engine = engine_new(1);
  DLFence raw;
  scheduler_fence *fence = fence_new(&raw, 1);
  counted *memory = counted_new();
  estafette_tensor *tensor;
  OK(estafette_import(engine, &memory->managed, 0, &tensor));
  OK(estafette_tensor_release_after(tensor, &raw));
  estafette_engine_destroy(engine);
  nap(20);
  CHECK(atomic_load(&memory->deleted) == 0);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_flush_deleters(SECOND / 100));
  fence_settle(fence, ESTAFETTE_OK);
  CHECK(deletions(memory) == 1);
  fence_free(fence);
  free(memory);
}

static void note_end(void *argument, int32_t status, const char *message) {
  (void)message;
  atomic_store((atomic_int *)argument, status == ESTAFETTE_OK ? 1 : -1);
}

static void our_promise_orders_a_foreign_schedulers_work(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  static counting writer;
  OK(estafette_submit(engine, "writer", counting_function, &writer, 0, 0, 0, &tensor, 1));
  begun(&writer);
  DLFence ready, writable;
  OK(estafette_tensor_fence(tensor, &ready));
  OK(estafette_writable_fence(tensor, &writable));
  CHECK(ready.version == DLPACK_FENCE_VERSION && ready.size == sizeof ready);
  CHECK(ready.query(ready.context) == ESTAFETTE_PENDING);
  CHECK(ready.wait(ready.context, SECOND / 100) == ESTAFETTE_TIMEOUT);
  atomic_int ended = 0, never = 0;
  uint64_t token;
  OK(ready.subscribe(ready.context, note_end, &ended, &token));
  OK(ready.subscribe(ready.context, note_end, &never, &token));
  OK(ready.unsubscribe(ready.context, token));
  OK(estafette_op_complete(atomic_load(&writer.op), ESTAFETTE_OK, 0));
  CHECK(ready.wait(ready.context, 10 * SECOND) == ESTAFETTE_OK);
  CHECK(writable.wait(writable.context, 10 * SECOND) == ESTAFETTE_OK);
  for (int i = 0; i < 10000 && !atomic_load(&ended); i++) nap(1);
  CHECK(ended == 1 && never == 0);
  CHECK(ready.error(ready.context) == 0);
  ready.retain(ready.context);
  ready.release(ready.context);
  ready.release(ready.context);
  writable.release(writable.context);

  /* Handed back, it is our own again. */
  DLFence again;
  OK(estafette_tensor_fence(tensor, &again));
  counted *memory = counted_new();
  estafette_tensor *other;
  OK(estafette_import(engine, &memory->managed, &again, &other));
  again.release(again.context);
  OK(estafette_wait(other, 10 * SECOND));
  estafette_tensor_release(other);
  CHECK(deletions(memory) == 1);
  free(memory);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

static void the_end_of_an_operation_is_a_fence_too(void) {
  estafette_engine *engine = engine_new(1);
  static counting context;
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, counting_function, &context, 0, 0, 0, 0, 0, &op));
  DLFence end;
  OK(estafette_op_fence(op, &end));
  CHECK(end.query(end.context) == ESTAFETTE_PENDING);
  estafette_promise *promise;
  DLFence work;
  OK(estafette_promise_create("work", &promise, &work));
  OK(estafette_op_complete_after(begun(&context), &work));
  work.release(work.context);
  OK(estafette_op_release(op));
  CHECK(end.wait(end.context, SECOND / 50) == ESTAFETTE_TIMEOUT);
  estafette_promise_drop(promise);
  CHECK(end.wait(end.context, 10 * SECOND) == ESTAFETTE_CANCELLED);
  CHECK(strstr(end.error(end.context), "work") != 0);
  end.release(end.context);
  OK(estafette_wait_all(engine, 10 * SECOND));
  estafette_engine_destroy(engine);
}

static void produce_late(void *context, estafette_op *op) { OK(estafette_op_complete_with(op, &((counted *)context)->managed)); }

static void a_tensor_that_is_described_late_is_imported_at_the_in_flight_limit(void) {
  estafette_engine *producer = engine_new(1), *consumer;
  estafette_engine_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.workers = 1;
  options.in_flight_limit = 1;
  OK(estafette_engine_create(&options, &consumer));
  static counting gate, fills;
  counted *memory = counted_new();
  estafette_tensor *x = floats(producer, 1), *late, *imported;
  OK(estafette_submit(producer, "gate", counting_function, &gate, 0, 0, 0, &x, 1));
  OK(estafette_produce(producer, 0, produce_late, memory, 0, &x, 1, &late));
  OK(estafette_submit(consumer, "fills the limit", counting_function, &fills, 0, 0, 0, 0, 0));
  DLManagedTensorFenced *fenced;
  OK(estafette_export_fenced(late, ESTAFETTE_READ, &fenced));
  CHECK(fenced->fence_flags & DLPACK_FENCE_DESCRIBED_LATE);
  OK(estafette_import_fenced(consumer, fenced, &imported));
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  OK(estafette_wait(imported, 10 * SECOND));
  OK(estafette_op_complete(begun(&fills), ESTAFETTE_OK, 0));
  estafette_tensor_release(imported);
  estafette_tensor_release(late);
  estafette_tensor_release(x);
  CHECK(deletions(memory) == 1);
  free(memory);
  estafette_engine_destroy(producer);
  estafette_engine_destroy(consumer);
}

int main(void) {
  alarm(100);
  RUN(a_tensor_with_a_foreign_promise_is_awaited_and_chained_on);
  RUN(failure_travels_with_its_message);
  RUN(the_deleter_waits_for_the_consumers_work);
  RUN(our_promise_orders_a_foreign_schedulers_work);
  RUN(the_end_of_an_operation_is_a_fence_too);
  RUN(a_tensor_that_is_described_late_is_imported_at_the_in_flight_limit);
  return 0;
}
