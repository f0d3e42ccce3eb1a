/* Mistakes that a program can make, each with the answer that it gets: a status and a text, never a crash and never a hang. */
#include "check.h"

/* The text names the argument. */
#define OVER(name, call) REFUSED(ESTAFETTE_INVALID, name ": this handle is not in use", call)

static void a_tensor_that_was_released_is_refused_everywhere(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *over = floats(engine, 4), *held = floats(engine, 4);
  OK(estafette_tensor_retain(over));
  OK(estafette_tensor_release(over));
  OK(estafette_query(over));
  OK(estafette_tensor_release(over));
  OVER("tensor", estafette_tensor_release(over));
  OVER("tensor", estafette_tensor_release_after(over, 0));
  OVER("tensor", estafette_tensor_retain(over));
  OVER("tensor", estafette_query(over));
  OVER("tensor", estafette_wait(over, SECOND));
  OVER("tensor", estafette_clear_error(over));
  OVER("tensor", estafette_on_ready(over, (estafette_ready_callback)(void (*)(void))abort, 0, 0));
  DLManagedTensorVersioned *view;
  OVER("tensor", estafette_export(over, 0, &view));
  DLManagedTensor *legacy;
  OVER("tensor", estafette_export_legacy(over, 0, &legacy));
  DLDevice host = {kDLCPU, 0}, device;
  estafette_lease *lease;
  OVER("tensor", estafette_order_on(over, ESTAFETTE_READ, host, 0, &lease));
  DLFence fence;
  OVER("tensor", estafette_tensor_fence(over, &fence));
  OVER("tensor", estafette_writable_fence(over, &fence));
  DLTensor lent;
  OVER("tensor", estafette_tensor_lend(over, &lent));
  int32_t number;
  OVER("tensor", estafette_tensor_shape(over, 0, 0, &number));
  DLDataType type;
  OVER("tensor", estafette_tensor_dtype(over, &type));
  OVER("tensor", estafette_tensor_device(over, &device));
  void *data;
  OVER("tensor", estafette_tensor_data(over, &data));
  OVER("tensor", estafette_tensor_read_only(over, &number));

  static counting context;
  estafette_tensor *both[2] = {held, over}, *out;
  OVER("reads[1]", estafette_submit(engine, 0, counting_function, &context, counting_drop, both, 2, 0, 0));
  OVER("writes[1]", estafette_submit(engine, 0, counting_function, &context, counting_drop, 0, 0, both, 2));
  OVER("reads[1]", estafette_produce(engine, 0, counting_function, &context, counting_drop, both, 2, &out));
  CHECK(context.called == 0 && context.dropped == 0);
  OK(estafette_query(held));
  OK(estafette_tensor_release(held));
  OK(estafette_engine_destroy(engine));
}

static void a_place_that_is_used_again_is_not_reached_by_the_old_handle(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *first = floats(engine, 4);
  OK(estafette_tensor_release(first));
  estafette_tensor *second = floats(engine, 4);
  CHECK((uint32_t)(uintptr_t)first == (uint32_t)(uintptr_t)second && first != second);
  OVER("tensor", estafette_tensor_release(first));
  OK(estafette_query(second));
  OK(estafette_tensor_release(second));
  OK(estafette_engine_destroy(engine));
}

static void leases_promises_and_programs_end_once(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  DLDevice host = {kDLCPU, 0};
  estafette_lease *lease;
  OK(estafette_order_on(tensor, ESTAFETTE_READ, host, 0, &lease));
  REFUSED(ESTAFETTE_INVALID, "tensor: this is the handle of a lease", estafette_query((estafette_tensor *)lease));
  OK(estafette_lease_release(lease, 0));
  REFUSED(ESTAFETTE_INVALID, "lease: this handle is not in use; it was released, or is of another copy of the library",
          estafette_lease_release(lease, 0));
  DLFence fence, end;
  OVER("lease", estafette_lease_fence(lease, &end));

  estafette_promise *promise;
  OK(estafette_promise_create("twice", &promise, &fence));
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  OVER("promise", estafette_promise_settle(promise, ESTAFETTE_FAILED, "too late"));
  OVER("promise", estafette_promise_drop(promise));
  CHECK(fence.query(fence.context) == ESTAFETTE_OK);
  fence.release(fence.context);
  OK(estafette_promise_create("dropped", &promise, &fence));
  OK(estafette_promise_drop(promise));
  OVER("promise", estafette_promise_drop(promise));
  CHECK(fence.query(fence.context) == ESTAFETTE_CANCELLED);
  fence.release(fence.context);
  OK(estafette_promise_drop(0));

  estafette_program *program;
  OK(estafette_program_begin(engine, 0, &program));
  OK(estafette_program_finish(program, 0));
  OK(estafette_program_destroy(program));
  OVER("program", estafette_program_destroy(program));
  OVER("program", estafette_program_replay(program, 0, 0));
  OVER("program", estafette_program_finish(program, 0));
  static counting context;
  OVER("program", estafette_program_add(program, 0, counting_function, &context, counting_drop, 0, 0, &tensor, 1));
  CHECK(context.dropped == 0);
  OK(estafette_program_destroy(0));
  OK(estafette_tensor_release(tensor));
  OK(estafette_engine_destroy(engine));
}

static void a_release_too_many_takes_nothing_that_the_operation_uses(void) {
  estafette_engine *engine = engine_new(1);
  static counting context, alone;
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, counting_function, &context, counting_drop, 0, 0, 0, 0, &op));
  CHECK(begun(&context) == op);
  /* Each holder releases once. */
  OK(estafette_op_retain(op));
  OK(estafette_op_release(op));
  OK(estafette_op_release(op));
  REFUSED(ESTAFETTE_INVALID, "op: no caller holds this handle", estafette_op_release(op));
  CHECK(context.dropped == 0);
  OK(estafette_op_retain(op));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  CHECK(drops(&context) == 1);
  /* The one that is left has it beyond the end. */
  OK(estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_query(op));
  OK(estafette_op_release(op));
  OVER("op", estafette_op_release(op));
  OVER("op", estafette_op_retain(op));
  OVER("op", estafette_op_query(op));
  /* A handle that a function alone was given. */
  OK(estafette_submit(engine, 0, counting_function, &alone, counting_drop, 0, 0, 0, 0));
  op = begun(&alone);
  REFUSED(ESTAFETTE_INVALID, "op: no caller holds this handle", estafette_op_release(op));
  CHECK(alone.dropped == 0);
  OK(estafette_op_complete_after(op, 0));
  OVER("op", estafette_op_release(op));
  CHECK(drops(&alone) == 1);
  OK(estafette_engine_destroy(engine));
}

static void an_engine_that_was_destroyed_is_refused_everywhere(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4), *out;
  OK(estafette_engine_destroy(engine));
  OVER("engine", estafette_engine_destroy(engine));
  OVER("engine", estafette_engine_shutdown(engine, SECOND));
  OVER("engine", estafette_wait_all(engine, SECOND));
  char *text;
  OVER("engine", estafette_diagnose(engine, &text));
  estafette_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0};
  OVER("engine", estafette_engine_stats(engine, &stats));
  int64_t length = 4;
  DLDataType type = {kDLFloat, 32, 1};
  OVER("engine", estafette_zeros(engine, &length, 1, type, &out));
  counted *memory = counted_new();
  OVER("engine", estafette_import(engine, &memory->managed, 0, &out));
  DLManagedTensor legacy = {memory->managed.dl_tensor, 0, 0};
  OVER("engine", estafette_import_legacy(engine, &legacy, 0, 0, &out));
  CHECK(deleted_after_flush(memory) == 0);
  free(memory);
  static counting context;
  OVER("engine", estafette_submit(engine, 0, counting_function, &context, counting_drop, &tensor, 1, 0, 0));
  OVER("engine", estafette_produce(engine, 0, counting_function, &context, counting_drop, &tensor, 1, &out));
  CHECK(context.called == 0 && context.dropped == 0);
  estafette_program *program;
  OVER("engine", estafette_program_begin(engine, 0, &program));
  estafette_tensor *none[1] = {0};
  OVER("engine", estafette_call_operator(engine, "any", &tensor, 1, none, 1, 0, 0));
  /* Handles that were made with it stay valid. */
  OK(estafette_query(tensor));
  OK(estafette_tensor_release(tensor));
}

static void what_was_never_a_handle_is_refused(void) {
  int local = 0;
  uintptr_t strange[] = {1, 64, (uintptr_t)-1, (uintptr_t)1 << 32, (uintptr_t)&local, 0xdeadbeef};
  for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
    void *any = (void *)strange[i];
    OVER("tensor", estafette_tensor_release(any));
    OVER("lease", estafette_lease_release(any, 0));
    OVER("promise", estafette_promise_drop(any));
    OVER("program", estafette_program_destroy(any));
    OVER("engine", estafette_engine_destroy(any));
    OVER("op", estafette_op_release(any));
  }
}

static void *wait_for_all(void *engine) {
  OK(estafette_wait_all(engine, ESTAFETTE_FOREVER));
  return 0;
}

static void an_engine_that_is_destroyed_during_a_call_goes_when_it_returns(void) {
  estafette_engine *engine = engine_new(-1);
  static counting context;
  /* There is no worker and this thread may not help, so the other one is in its call when the function begins. */
  int helped = estafette_set_helping(0);
  OK(estafette_submit(engine, 0, counting_function, &context, counting_drop, 0, 0, 0, 0));
  CHECK(context.called == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, 0, wait_for_all, engine) == 0);
  estafette_op *op = begun(&context);
  OK(estafette_engine_destroy(engine));
  estafette_set_helping(helped);
  OVER("engine", estafette_wait_all(engine, SECOND));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  pthread_join(thread, 0);
  while (!atomic_load(&context.dropped)) nap(1);
}

static void options_and_types_that_cannot_be_are_named(void) {
  estafette_engine_options options = {sizeof options, 1000000, 0, 0, 0, 0, 0};
  estafette_engine *engine;
  REFUSED(ESTAFETTE_INVALID, "workers", estafette_engine_create(&options, &engine));
  options.workers = 1;
  options.stack_size = 100;
  REFUSED(ESTAFETTE_INVALID, "a stack of 100 bytes", estafette_engine_create(&options, &engine));
  options.stack_size = 1 << 20;
  OK(estafette_engine_create(&options, &engine));
  OK(estafette_engine_destroy(engine));
  options.workers = 0;
  options.size = 1u << 30; /* As one that was never set. */
  REFUSED(ESTAFETTE_INVALID, "size is 1073741824, more than 4096", estafette_engine_create(&options, &engine));
  engine = engine_new(1);
  estafette_submit_options submit = {.size = sizeof submit, .reserved = 7};
  static counting context;
  REFUSED(ESTAFETTE_INVALID, "estafette_submit_options: reserved is 7",
          estafette_submit_with(engine, &submit, counting_function, &context, counting_drop, 0, 0, 0, 0, 0));
  CHECK(context.called == 0 && context.dropped == 0);
  int64_t length = 4;
  estafette_tensor *tensor;
  DLDataType unknown = {99, 32, 1}, odd = {kDLFloat, 7, 1}, empty = {kDLInt, 0, 1}, none = {kDLInt, 32, 0}, vector = {kDLFloat, 32, 4};
  REFUSED(ESTAFETTE_INVALID, "dtype: code 99", estafette_zeros(engine, &length, 1, unknown, &tensor));
  REFUSED(ESTAFETTE_INVALID, "dtype: code 2 has no type of 7 bits", estafette_zeros(engine, &length, 1, odd, &tensor));
  REFUSED(ESTAFETTE_INVALID, "dtype: code 0 has no type of 0 bits", estafette_zeros(engine, &length, 1, empty, &tensor));
  REFUSED(ESTAFETTE_INVALID, "dtype: lanes is 0", estafette_zeros(engine, &length, 1, none, &tensor));
  OK(estafette_zeros(engine, &length, 1, vector, &tensor));
  OK(estafette_tensor_release(tensor));

  /* Memory from outside is taken as it is. */
  counted *memory = counted_new();
  memory->managed.dl_tensor.data = (char *)memory->values + 1;
  memory->shape[0] = 3;
  OK(estafette_import(engine, &memory->managed, 0, &tensor));
  void *data;
  OK(estafette_tensor_data(tensor, &data));
  CHECK(data == (char *)memory->values + 1);
  OK(estafette_tensor_release(tensor));
  CHECK(deletions(memory) == 1);
  free(memory);
  OK(estafette_engine_destroy(engine));
}

typedef struct {
  estafette_engine *engine;
  estafette_tensor *tensor;
  estafette_op *other;
  DLFence fence, last;
  counting held;
  atomic_int done, ended;
} waiting;

/* Everything that would block, in a callback. `tensor` waits for `other`, whose end this very thread is to tell later. */
static void wait_for_everything(waiting *self) {
  static counting more;
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_wait(self->tensor, ESTAFETTE_FOREVER));
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_wait(self->tensor, SECOND));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(self->tensor, 0));
  EXPECT(ESTAFETTE_PENDING, estafette_query(self->tensor));
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_op_wait(self->other, ESTAFETTE_FOREVER));
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_wait_all(self->engine, ESTAFETTE_FOREVER));
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_engine_shutdown(self->engine, ESTAFETTE_FOREVER));
  DLManagedTensorVersioned *view;
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_export(self->tensor, 0, &view));
  DLDevice host = {kDLCPU, 0};
  estafette_lease *lease;
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_order_on(self->tensor, ESTAFETTE_WRITE, host, 0, &lease));
  CHECK(self->fence.wait(self->fence.context, UINT64_MAX) == ESTAFETTE_WOULD_DEADLOCK);
  CHECK(self->fence.wait(self->fence.context, 0) == ESTAFETTE_TIMEOUT);
  /* The in-flight limit is reached by `other` alone. */
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback",
          estafette_submit(self->engine, 0, counting_function, &more, counting_drop, 0, 0, 0, 0));
  CHECK(more.called == 0 && more.dropped == 0);
  atomic_fetch_add(&self->done, 1);
}

static void waits_when_ready(void *context, estafette_status status, const char *message) {
  CHECK(status == ESTAFETTE_OK && message == 0);
  wait_for_everything(context);
}

static void waits_when_settled(void *context, int32_t status, const char *message) {
  CHECK(status == ESTAFETTE_OK && message == 0);
  wait_for_everything(context);
}

static void waits_when_dropped(void *context) { wait_for_everything(context); }

/* Its own submissions have room, as inside of any operation. */
static void waits_when_skipped(void *context) {
  waiting *self = context;
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_wait(self->tensor, ESTAFETTE_FOREVER));
  REFUSED(ESTAFETTE_WOULD_DEADLOCK, "callback", estafette_wait_all(self->engine, ESTAFETTE_FOREVER));
  atomic_fetch_add(&self->done, 1);
}

static void ends_with_the_fence(void *context, estafette_op *op) {
  waiting *self = context;
  OK(estafette_op_complete_after(op, &self->last));
  atomic_store(&self->ended, 1);
}

static void fails(void *context, estafette_op *op) {
  (void)context;
  OK(estafette_op_complete(op, ESTAFETTE_FAILED, "no ink"));
}

static void a_callback_that_waits_is_refused_at_once(void) {
  estafette_engine *idle = engine_new(1);
  static waiting self;
  estafette_engine_options options = {sizeof options, 1, 1, 0, 0, 0, 0};
  OK(estafette_engine_create(&options, &self.engine));
  self.tensor = floats(idle, 4);
  OK(estafette_submit_with(self.engine, 0, counting_function, &self.held, counting_drop, 0, 0, &self.tensor, 1, &self.other));
  begun(&self.held);
  OK(estafette_tensor_fence(self.tensor, &self.fence));

  /* On the thread that settles the fence, on that of an operation, on the reactor's, and at once. */
  estafette_promise *promise;
  DLFence fence;
  uint64_t token;
  OK(estafette_promise_create(0, &promise, &fence));
  OK(fence.subscribe(fence.context, waits_when_settled, &self, &token));
  estafette_tensor *ready = floats(idle, 4);
  estafette_tensor *known = floats(idle, 4);
  static counting writer;
  OK(estafette_submit(idle, 0, counting_function, &writer, counting_drop, 0, 0, &ready, 1));
  OK(estafette_on_ready(ready, waits_when_ready, &self, 0));
  OK(estafette_on_ready(known, waits_when_ready, &self, 0));
  CHECK(self.done == 1);
  OK(estafette_op_complete(begun(&writer), ESTAFETTE_OK, 0));
  OK(estafette_wait(ready, 10 * SECOND));
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  OK(estafette_tensor_release(known));
  while (atomic_load(&self.done) < 3) nap(1);
  /* The context of an operation that ends with a fence. */
  OK(estafette_promise_create(0, &promise, &self.last));
  OK(estafette_submit(idle, 0, ends_with_the_fence, &self, waits_when_dropped, 0, 0, &ready, 1));
  while (!atomic_load(&self.ended)) nap(1);
  OK(estafette_on_ready(ready, waits_when_ready, &self, 0));
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  while (atomic_load(&self.done) < 5) nap(1);
  /* The context of an operation that is skipped. */
  OK(estafette_submit(idle, 0, fails, 0, 0, 0, 0, &ready, 1));
  OK(estafette_submit(idle, 0, ends_with_the_fence, &self, waits_when_skipped, &ready, 1, 0, 0));
  while (atomic_load(&self.done) < 6) nap(1);

  OK(estafette_op_complete(self.held.op, ESTAFETTE_OK, 0));
  OK(estafette_wait(self.tensor, 10 * SECOND));
  fence.release(fence.context);
  self.last.release(self.last.context);
  self.fence.release(self.fence.context);
  OK(estafette_op_release(self.other));
  OK(estafette_tensor_release(ready));
  OK(estafette_tensor_release(self.tensor));
  OK(estafette_engine_destroy(self.engine));
  OK(estafette_engine_destroy(idle));
}

int main(void) {
  alarm(60);
  RUN(a_tensor_that_was_released_is_refused_everywhere);
  RUN(a_place_that_is_used_again_is_not_reached_by_the_old_handle);
  RUN(leases_promises_and_programs_end_once);
  RUN(a_release_too_many_takes_nothing_that_the_operation_uses);
  RUN(an_engine_that_was_destroyed_is_refused_everywhere);
  RUN(what_was_never_a_handle_is_refused);
  RUN(an_engine_that_is_destroyed_during_a_call_goes_when_it_returns);
  RUN(options_and_types_that_cannot_be_are_named);
  RUN(a_callback_that_waits_is_refused_at_once);
  return 0;
}
