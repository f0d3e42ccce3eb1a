/* Waits: a timeout is kept whatever there is to run, and a thread may forbid that operations run on it. */
#include "check.h"

/* An operation that runs until the test lets it end. */
typedef struct {
  atomic_int go;
  atomic_int begun;
  pthread_t ran_on;
} held;

static void hold(void *context, estafette_op *op) {
  held *self = context;
  self->ran_on = pthread_self();
  atomic_store(&self->begun, 1);
  while (!atomic_load(&self->go)) nap(1);
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static estafette_op *submit(estafette_engine *engine, held *context, estafette_tensor *writes) {
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, hold, context, 0, 0, 0, &writes, 1, &op));
  return op;
}

static void a_timeout_is_kept_by_a_thread_that_could_run_what_it_waits_for(void) {
  /* The body ends only after the waits have: a wait that ran it would never return. */
  for (int workers = -1; workers <= 1; workers += 2) {
    estafette_engine *engine = engine_new(workers);
    estafette_tensor *x = floats(engine, 4);
    held work = {0};
    estafette_op *op = submit(engine, &work, x);
    EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 100));
    EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, 0));
    EXPECT(ESTAFETTE_TIMEOUT, estafette_op_wait(op, SECOND / 100));
    EXPECT(ESTAFETTE_TIMEOUT, estafette_wait_all(engine, SECOND / 100));
    atomic_store(&work.go, 1);
    OK(estafette_wait(x, 20 * SECOND));
    OK(estafette_op_wait(op, 20 * SECOND));
    estafette_op_release(op);
    estafette_tensor_release(x);
    estafette_engine_destroy(engine);
  }
}

static void a_thread_forbids_that_operations_run_on_it(void) {
  estafette_engine *engine = engine_new(-1);
  estafette_tensor *x = floats(engine, 4);
  held here = {1, 0, 0}, elsewhere = {1, 0, 0};
  estafette_op *op = submit(engine, &here, x);
  OK(estafette_op_wait(op, ESTAFETTE_FOREVER));
  CHECK(pthread_equal(here.ran_on, pthread_self()));
  estafette_op_release(op);
  CHECK(estafette_set_helping(0) == 1);
  op = submit(engine, &elsewhere, x);
  OK(estafette_op_wait(op, ESTAFETTE_FOREVER));
  CHECK(!pthread_equal(elsewhere.ran_on, pthread_self()));
  CHECK(estafette_set_helping(1) == 0);
  estafette_op_release(op);
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void end_and_release(void *context, estafette_op *op) {
  (void)context;
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  OK(estafette_op_release(op));
}

static void a_wait_holds_the_handle_that_is_released_meanwhile(void) {
  estafette_engine *engine = engine_new(-1);
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, end_and_release, 0, 0, 0, 0, 0, 0, &op));
  OK(estafette_op_wait(op, ESTAFETTE_FOREVER));
  estafette_engine_destroy(engine);
}

#define MANY 4000

/* Operations that end one after the other; the one at `at` is asked for all the time. */
typedef struct {
  estafette_op *ops[MANY];
  atomic_int at;
} asked;

static void *ask(void *context) {
  asked *self = context;
  for (int at = 0; at < MANY; at = atomic_load(&self->at))
    EXPECT(ESTAFETTE_PENDING, estafette_op_query(self->ops[at]));
  return 0;
}

static void an_operation_pends_as_long_as_the_fence_that_it_ends_with(void) {
  estafette_engine *engine = engine_new(1);
  static asked state;
  static counting work;
  for (int round = 1; round <= 20; round++) {
    estafette_promise *promise;
    DLFence fence;
    OK(estafette_promise_create(0, &promise, &fence));
    for (int i = 0; i < MANY; i++) OK(estafette_submit_with(engine, 0, counting_function, &work, 0, 0, 0, 0, 0, &state.ops[i]));
    while (atomic_load(&work.called) < round * MANY) nap(1);
    atomic_store(&state.at, 0);
    pthread_t asker;
    pthread_create(&asker, 0, ask, &state);
    for (int i = 0; i < MANY; i++) {
      atomic_store(&state.at, i);
      OK(estafette_op_complete_after(state.ops[i], &fence));
    }
    atomic_store(&state.at, MANY);
    pthread_join(asker, 0);
    OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
    for (int i = 0; i < MANY; i++) {
      OK(estafette_op_wait(state.ops[i], 10 * SECOND));
      OK(estafette_op_release(state.ops[i]));
    }
    fence.release(fence.context);
  }
  estafette_engine_destroy(engine);
}

/* Ends by a promise that another operation settles. */
typedef struct {
  estafette_promise *promise;
  DLFence fence;
  estafette_op *ends_later;
  estafette_engine *engine;
} relay;

static relay relay_new(estafette_engine *engine) {
  relay made = {0};
  made.engine = engine;
  OK(estafette_promise_create("relay", &made.promise, &made.fence));
  return made;
}

static void end_later(void *context, estafette_op *op) { OK(estafette_op_complete_after(op, &((relay *)context)->fence)); }

static void settle(void *context, estafette_op *op) {
  OK(estafette_promise_settle(((relay *)context)->promise, ESTAFETTE_OK, 0));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void *settle_later(void *context) {
  relay *self = context;
  nap(100);
  OK(estafette_submit(self->engine, "settle", settle, self, 0, 0, 0, 0, 0));
  return 0;
}

static void wait_in_the_function(void *context, estafette_op *op) {
  OK(estafette_op_wait(((relay *)context)->ends_later, ESTAFETTE_FOREVER));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void a_wait_for_the_fence_of_an_operation_runs_what_settles_it(void) {
  /* Without workers: on this thread, and on one that the engine starts, for operations that another thread submits. */
  estafette_engine *engine = engine_new(-1);
  relay first = relay_new(engine), second = relay_new(engine);
  OK(estafette_submit_with(engine, 0, end_later, &first, 0, 0, 0, 0, 0, &first.ends_later));
  OK(estafette_submit(engine, "settle", settle, &first, 0, 0, 0, 0, 0));
  OK(estafette_op_wait(first.ends_later, ESTAFETTE_FOREVER));
  OK(estafette_submit_with(engine, 0, end_later, &second, 0, 0, 0, 0, 0, &second.ends_later));
  pthread_t later;
  pthread_create(&later, 0, settle_later, &second);
  OK(estafette_op_wait(second.ends_later, 10 * SECOND));
  pthread_join(later, 0);
  estafette_engine_destroy(engine);

  /* The only worker waits: another thread takes its place. */
  engine = engine_new(1);
  relay third = relay_new(engine);
  static counting gate;
  estafette_tensor *x = floats(engine, 1);
  OK(estafette_submit(engine, "gate", counting_function, &gate, 0, 0, 0, &x, 1));
  OK(estafette_submit_with(engine, 0, end_later, &third, 0, 0, 0, 0, 0, &third.ends_later));
  OK(estafette_submit(engine, "waits", wait_in_the_function, &third, 0, 0, 0, 0, 0));
  OK(estafette_submit(engine, "settle", settle, &third, 0, &x, 1, 0, 0));
  nap(200);
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
  estafette_op_release(first.ends_later);
  estafette_op_release(second.ends_later);
  estafette_op_release(third.ends_later);
  first.fence.release(first.fence.context);
  second.fence.release(second.fence.context);
  third.fence.release(third.fence.context);
}

static void a_wait_for_a_tensor_runs_what_settles_its_fence(void) {
  estafette_engine *engine = engine_new(-1);
  for (int by_fence = 0; by_fence < 4; by_fence++) {
    relay made = relay_new(engine);
    counted *memory = counted_new();
    estafette_tensor *x;
    DLFence end = {0};
    OK(estafette_import(engine, &memory->managed, &made.fence, &x));
    OK(estafette_submit_with(engine, 0, end_later, &made, 0, 0, 0, 0, 0, &made.ends_later));
    OK(estafette_submit(engine, "settle", settle, &made, 0, 0, 0, 0, 0));
    if (by_fence == 1) OK(estafette_tensor_fence(x, &end));
    if (by_fence == 2) OK(estafette_writable_fence(x, &end));
    if (by_fence == 3) OK(estafette_op_fence(made.ends_later, &end));
    if (by_fence) {
      CHECK(end.wait(end.context, UINT64_MAX) == ESTAFETTE_OK);
      end.release(end.context);
    } else {
      OK(estafette_wait(x, ESTAFETTE_FOREVER));
    }
    OK(estafette_wait_all(engine, ESTAFETTE_FOREVER));
    estafette_tensor_release(x);
    estafette_op_release(made.ends_later);
    made.fence.release(made.fence.context);
    CHECK(deletions(memory) == 1);
    free(memory);
  }
  estafette_engine_destroy(engine);
}

static void use_the_own_handle(void *context, estafette_op *op) {
  (void)context;
  EXPECT(ESTAFETTE_PENDING, estafette_op_query(op));
  EXPECT(ESTAFETTE_CONFLICT, estafette_op_cancel(op));
  EXPECT(ESTAFETTE_WOULD_DEADLOCK, estafette_op_wait(op, ESTAFETTE_FOREVER));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  OK(estafette_op_release(op));
}

static void a_function_may_use_its_own_handle_wherever_it_runs(void) {
  for (int workers = -1; workers <= 1; workers += 2) {
    estafette_engine *engine = engine_new(workers);
    /* Without workers many operations that are ready make the submitter run them. */
    for (int i = 0; i < 100; i++) {
      estafette_op *op;
      OK(estafette_submit_with(engine, 0, use_the_own_handle, 0, 0, 0, 0, 0, 0, &op));
    }
    OK(estafette_wait_all(engine, ESTAFETTE_FOREVER));
    estafette_engine_destroy(engine);
  }
}

static void shut_down(void *context, estafette_op *op) {
  EXPECT(ESTAFETTE_WOULD_DEADLOCK, estafette_engine_shutdown(context, ESTAFETTE_FOREVER));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void a_shutdown_is_refused_inside_an_operation_and_knows_one_without_operands(void) {
  estafette_engine *engine = engine_new(1);
  static counting gate;
  OK(estafette_submit(engine, "refused", shut_down, engine, 0, 0, 0, 0, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  OK(estafette_submit(engine, "no operands", counting_function, &gate, 0, 0, 0, 0, 0));
  estafette_op *op = begun(&gate);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_engine_shutdown(engine, SECOND / 100));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  OK(estafette_engine_shutdown(engine, 10 * SECOND));
  estafette_engine_destroy(engine);
}

static void a_wait_for_any_says_which_has_ended(void) {
  estafette_engine *engine = engine_new(2);
  static counting first, second, bad;
  estafette_tensor *tensors[2] = {floats(engine, 1), floats(engine, 1)};
  estafette_op *ops[2];
  size_t place = 7;
  OK(estafette_submit(engine, "of a tensor", counting_function, &first, 0, 0, 0, &tensors[0], 1));
  OK(estafette_submit(engine, "of another", counting_function, &second, 0, 0, 0, &tensors[1], 1));
  relay made = relay_new(engine);
  OK(estafette_submit_with(engine, 0, end_later, &made, 0, 0, 0, 0, 0, &ops[0]));
  OK(estafette_submit_with(engine, 0, counting_function, &bad, 0, &tensors[1], 1, 0, 0, &ops[1]));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait_any(ops, 2, tensors, 2, 0, &place));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait_any(ops, 2, tensors, 2, SECOND / 50, &place));
  CHECK(place == 7);
  OK(estafette_op_complete(begun(&second), ESTAFETTE_FAILED, "no luck"));
  /* A failure is an end. It skips the operation that reads the tensor, which is counted first. */
  OK(estafette_wait_any(0, 0, tensors, 2, ESTAFETTE_FOREVER, &place));
  CHECK(place == 1 && estafette_query(tensors[1]) == ESTAFETTE_FAILED);
  EXPECT(ESTAFETTE_FAILED, estafette_op_wait(ops[1], 10 * SECOND));
  OK(estafette_wait_any(ops, 2, tensors, 1, 10 * SECOND, &place));
  CHECK(place == 1);
  /* The first operation ends with its fence. */
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait_any(ops, 1, tensors, 1, SECOND / 50, &place));
  OK(estafette_promise_settle(made.promise, ESTAFETTE_OK, 0));
  OK(estafette_wait_any(ops, 1, tensors, 1, ESTAFETTE_FOREVER, &place));
  CHECK(place == 0);
  REFUSED(ESTAFETTE_INVALID, "both empty", estafette_wait_any(0, 0, 0, 0, 0, &place));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_wait_any(ops, 1, 0, 0, 0, 0));
  OK(estafette_op_complete(begun(&first), ESTAFETTE_OK, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  for (int i = 0; i < 2; i++) {
    estafette_op_release(ops[i]);
    estafette_tensor_release(tensors[i]);
  }
  made.fence.release(made.fence.context);
  REFUSED(ESTAFETTE_INVALID, "tensors[0]: this handle is not in use", estafette_wait_any(0, 0, tensors, 2, 0, &place));
  estafette_engine_destroy(engine);

  /* Without workers it runs what settles the fence. */
  engine = engine_new(-1);
  made = relay_new(engine);
  OK(estafette_submit_with(engine, 0, end_later, &made, 0, 0, 0, 0, 0, &made.ends_later));
  OK(estafette_submit(engine, "settle", settle, &made, 0, 0, 0, 0, 0));
  OK(estafette_wait_any(&made.ends_later, 1, 0, 0, ESTAFETTE_FOREVER, &place));
  estafette_op_release(made.ends_later);
  made.fence.release(made.fence.context);
  estafette_engine_destroy(engine);
}

static void a_program_with_one_thread_runs_what_is_ready(void) {
  static counting first = {.complete = 1}, later = {.complete = 1}, gate;
  estafette_engine *engine = engine_new(-1);
  estafette_tensor *x = floats(engine, 1);
  int32_t ran = 7;
  OK(estafette_run_ready(engine, &ran));
  CHECK(ran == 0);
  OK(estafette_submit(engine, 0, counting_function, &first, 0, 0, 0, &x, 1));
  OK(estafette_submit(engine, 0, counting_function, &gate, 0, 0, 0, &x, 1));
  OK(estafette_submit(engine, 0, counting_function, &later, 0, &x, 1, 0, 0));
  OK(estafette_run_ready(engine, &ran));
  CHECK(ran == 1 && first.called == 1 && gate.called == 1 && later.called == 0);
  OK(estafette_op_complete(gate.op, ESTAFETTE_OK, 0));
  estafette_set_helping(0);
  OK(estafette_run_ready(engine, &ran));
  CHECK(ran == 0 && later.called == 0);
  estafette_set_helping(1);
  OK(estafette_run_ready(engine, 0));
  CHECK(later.called == 1);
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

int main(void) {
  alarm(60);
  RUN(a_timeout_is_kept_by_a_thread_that_could_run_what_it_waits_for);
  RUN(a_thread_forbids_that_operations_run_on_it);
  RUN(a_wait_holds_the_handle_that_is_released_meanwhile);
  RUN(an_operation_pends_as_long_as_the_fence_that_it_ends_with);
  RUN(a_wait_for_the_fence_of_an_operation_runs_what_settles_it);
  RUN(a_wait_for_a_tensor_runs_what_settles_its_fence);
  RUN(a_function_may_use_its_own_handle_wherever_it_runs);
  RUN(a_shutdown_is_refused_inside_an_operation_and_knows_one_without_operands);
  RUN(a_wait_for_any_says_which_has_ended);
  RUN(a_program_with_one_thread_runs_what_is_ready);
  return 0;
}
