/* Hard case H40 of docs/guarantees.md, and what else concerns C alone. */
#include "check.h"

static void on_any_error_the_caller_keeps_what_it_passed(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = 0;
  counted *mine = counted_new();

  mine->managed.dl_tensor.ndim = -3;
  REFUSED(ESTAFETTE_INVALID, "ndim", estafette_import(engine, &mine->managed, 0, &tensor));
  mine->managed.dl_tensor.ndim = 1;
  mine->managed.version.major = 9;
  REFUSED(ESTAFETTE_INVALID, "version", estafette_import(engine, &mine->managed, 0, &tensor));
  mine->managed.version.major = 1;
  mine->managed.dl_tensor.device.device_type = kDLCUDA;
  REFUSED(ESTAFETTE_INVALID, "cuda", estafette_import(engine, &mine->managed, 0, &tensor));
  mine->managed.dl_tensor.device.device_type = kDLCPU;
  REFUSED(ESTAFETTE_INVALID, "out", estafette_import(engine, &mine->managed, 0, 0));
  REFUSED(ESTAFETTE_INVALID, "engine", estafette_import(0, &mine->managed, 0, &tensor));
  DLFence broken;
  memset(&broken, 0, sizeof broken);
  REFUSED(ESTAFETTE_INVALID, "fence: version", estafette_import(engine, &mine->managed, &broken, &tensor));
  CHECK(deleted_after_flush(mine) == 0 && tensor == 0);

  OK(estafette_import(engine, &mine->managed, 0, &tensor));
  CHECK(deleted_after_flush(mine) == 0);

  /* Nothing of a refused submission is used. */
  static counting context;
  estafette_tensor *with_null[2] = {tensor, 0};
  REFUSED(ESTAFETTE_INVALID, "reads[1]",
          estafette_submit(engine, "refused", counting_function, &context, counting_drop, with_null, 2, 0, 0));
  REFUSED(ESTAFETTE_INVALID, "function", estafette_submit(engine, "refused", 0, &context, counting_drop, 0, 0, 0, 0));
  REFUSED(ESTAFETTE_INVALID, "writes is NULL",
          estafette_submit(engine, "refused", counting_function, &context, counting_drop, 0, 0, 0, 3));
  CHECK(context.called == 0 && context.dropped == 0);

  /* A fence that breaks the rules leaves tensor and lease with the caller. */
  estafette_lease *lease;
  OK(estafette_order_on(tensor, ESTAFETTE_READ, mine->managed.dl_tensor.device, 0, &lease));
  REFUSED(ESTAFETTE_INVALID, "fence", estafette_lease_release(lease, &broken));
  OK(estafette_lease_release(lease, 0));
  REFUSED(ESTAFETTE_INVALID, "fence", estafette_tensor_release_after(tensor, &broken));
  OK(estafette_query(tensor));
  estafette_tensor_release(tensor);
  CHECK(deletions(mine) == 1);
  estafette_engine_destroy(engine);
  free(mine);
}

static void order_on_returns_a_lease_that_ends_with_lease_release(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *tensor = floats(engine, 4);
  DLDevice host = {kDLCPU, 0};
  estafette_lease *lease;
  OK(estafette_order_on(tensor, ESTAFETTE_READ, host, 0, &lease));

  static counting write;
  write.complete = 1;
  OK(estafette_submit(engine, "write", counting_function, &write, counting_drop, 0, 0, &tensor, 1));
  nap(20);
  CHECK(write.called == 0);
  REFUSED(ESTAFETTE_LEASE_HELD, "lease", estafette_wait(tensor, ESTAFETTE_FOREVER));

  /* Released, but its last work is not done yet. */
  estafette_promise *promise;
  DLFence work, end;
  OK(estafette_promise_create("the consumer's kernel", &promise, &work));
  OK(estafette_lease_fence(lease, &end));
  OK(estafette_lease_release(lease, &work));
  nap(20);
  CHECK(write.called == 0);
  CHECK(end.query(end.context) == ESTAFETTE_PENDING);
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  OK(estafette_wait(tensor, 10 * SECOND));
  CHECK(write.called == 1 && drops(&write) == 1);
  CHECK(end.wait(end.context, 10 * SECOND) == ESTAFETTE_OK);
  end.release(end.context);
  work.release(work.context);

  REFUSED(ESTAFETTE_INVALID, "access", estafette_order_on(tensor, 9, host, 0, &lease));
  REFUSED(ESTAFETTE_INVALID, "stream", estafette_order_on(tensor, ESTAFETTE_READ, host, &host, &lease));
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

static void an_end_that_would_wait_for_itself_is_refused(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *out = floats(engine, 4), *in = floats(engine, 4);
  static counting context;
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, counting_function, &context, counting_drop, &in, 1, &out, 1, &op));
  CHECK(begun(&context) == op);
  DLFence ends[4];
  OK(estafette_op_fence(op, &ends[0]));
  OK(estafette_tensor_fence(out, &ends[1]));
  OK(estafette_writable_fence(out, &ends[2]));
  OK(estafette_writable_fence(in, &ends[3]));
  for (int i = 0; i < 4; i++) {
    REFUSED(ESTAFETTE_INVALID, "would wait for itself", estafette_op_complete_after(op, &ends[i]));
    ends[i].release(ends[i].context);
  }
  CHECK(context.dropped == 0);
  /* Fences from before the operation do not wait for it. */
  DLFence before;
  OK(estafette_tensor_fence(in, &before));
  OK(estafette_op_complete_after(op, &before));
  before.release(before.context);
  OK(estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_release(op));

  DLDevice host = {kDLCPU, 0};
  estafette_lease *lease;
  DLFence end;
  OK(estafette_order_on(out, ESTAFETTE_WRITE, host, 0, &lease));
  OK(estafette_lease_fence(lease, &end));
  REFUSED(ESTAFETTE_INVALID, "would wait for itself", estafette_lease_release(lease, &end));
  end.release(end.context);
  OK(estafette_lease_release(lease, 0));
  OK(estafette_wait(out, 10 * SECOND));
  estafette_tensor_release(in);
  estafette_tensor_release(out);
  estafette_engine_destroy(engine);
}

static void complete_after_finishes_when_the_fence_does(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *tensor = floats(engine, 4);
  estafette_promise *promise;
  DLFence fence;
  OK(estafette_promise_create(0, &promise, &fence));
  static counting context, reader;
  reader.complete = 1;
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, counting_function, &context, counting_drop, 0, 0, &tensor, 1, &op));
  OK(estafette_submit(engine, "reader", counting_function, &reader, counting_drop, &tensor, 1, 0, 0));
  CHECK(begun(&context) == op);
  OK(estafette_op_complete_after(op, &fence));
  fence.release(fence.context);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_op_wait(op, SECOND / 50));
  CHECK(context.dropped == 0);
  EXPECT(ESTAFETTE_PENDING, estafette_op_query(op));
  EXPECT(ESTAFETTE_PENDING, estafette_query(tensor));
  CHECK(reader.called == 0);
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  OK(estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_query(op));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(reader.called == 1);
  OK(estafette_op_release(op));

  /* A failure of the fence is one of the operation, and travels with its text. */
  static counting again;
  OK(estafette_promise_create(0, &promise, &fence));
  OK(estafette_submit_with(engine, 0, counting_function, &again, counting_drop, 0, 0, &tensor, 1, &op));
  OK(estafette_op_complete_after(begun(&again), &fence));
  OK(estafette_promise_settle(promise, ESTAFETTE_FAILED, "the kernel has crashed"));
  REFUSED(ESTAFETTE_FAILED, "the kernel has crashed", estafette_op_wait(op, 10 * SECOND));
  REFUSED(ESTAFETTE_FAILED, "the kernel has crashed", estafette_wait(tensor, 10 * SECOND));
  fence.release(fence.context);
  OK(estafette_op_release(op));
  /* And with its kind. */
  static counting last;
  OK(estafette_promise_create(0, &promise, &fence));
  OK(estafette_submit(engine, 0, counting_function, &last, counting_drop, 0, 0, &tensor, 1));
  OK(estafette_op_complete_after(begun(&last), &fence));
  fence.release(fence.context);
  OK(estafette_promise_drop(promise));
  REFUSED(ESTAFETTE_CANCELLED, "will never be done", estafette_wait(tensor, 10 * SECOND));
  REFUSED(ESTAFETTE_CANCELLED, "will never be done", estafette_query(tensor));
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

/* A function that gives its work to a thread of its own, which uses the context until it settles the fence. */
typedef struct {
  estafette_promise *promise;
  DLFence fence;
  atomic_int *dropped, started;
  pthread_mutex_t may_work;
  int32_t outcome, work[64];
  pthread_t thread;
} job;

static void *job_work(void *context) {
  job *self = context;
  pthread_mutex_lock(&self->may_work);
  for (int i = 0; i < 64; i++) self->work[i] += i;
  pthread_mutex_unlock(&self->may_work);
  OK(estafette_promise_settle(self->promise, self->outcome, 0));
  return 0;
}

static void job_start(void *context, estafette_op *op) {
  job *self = context;
  OK(estafette_promise_create("a job", &self->promise, &self->fence));
  CHECK(pthread_create(&self->thread, 0, job_work, self) == 0);
  CHECK(pthread_detach(self->thread) == 0);
  OK(estafette_op_complete_after(op, &self->fence));
  atomic_store(&self->started, 1);
}

static void job_drop(void *context) {
  job *self = context;
  self->fence.release(self->fence.context);
  pthread_mutex_destroy(&self->may_work);
  atomic_fetch_add(self->dropped, 1);
  free(self);
}

static job *job_new(atomic_int *dropped, int32_t outcome) {
  job *made = calloc(1, sizeof *made);
  made->dropped = dropped;
  made->outcome = outcome;
  pthread_mutex_init(&made->may_work, 0);
  pthread_mutex_lock(&made->may_work);
  return made;
}

/* The work ends only now. */
static void job_release(job *self) {
  while (!atomic_load(&self->started)) nap(1);
  CHECK(atomic_load(self->dropped) == 0);
  pthread_mutex_unlock(&self->may_work);
}

static void a_context_outlives_the_fence_that_its_operation_ends_with(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  int32_t outcomes[2] = {ESTAFETTE_OK, ESTAFETTE_FAILED};
  for (int i = 0; i < 2; i++) {
    atomic_int dropped = 0;
    job *context = job_new(&dropped, outcomes[i]);
    OK(estafette_submit(engine, "job", job_start, context, job_drop, 0, 0, &tensor, 1));
    job_release(context);
    EXPECT(outcomes[i], estafette_wait(tensor, 10 * SECOND));
    while (!atomic_load(&dropped)) nap(1);
  }
  OK(estafette_clear_error(tensor));

  /* That of a node outlives the program and its replay. */
  atomic_int dropped = 0;
  job *context = job_new(&dropped, ESTAFETTE_OK);
  estafette_program *program;
  OK(estafette_program_begin(engine, "jobs", &program));
  OK(estafette_program_add(program, 0, job_start, context, job_drop, 0, 0, &tensor, 1));
  OK(estafette_program_finish(program, 0));
  OK(estafette_program_replay(program, 0, 0));
  OK(estafette_program_destroy(program));
  job_release(context);
  OK(estafette_wait(tensor, 10 * SECOND));
  while (!atomic_load(&dropped)) nap(1);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

static void a_second_completion_is_an_error(void) {
  estafette_engine *engine = engine_new(2);
  static counting context;
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, counting_function, &context, counting_drop, 0, 0, 0, 0, &op));
  OK(estafette_op_complete(begun(&context), ESTAFETTE_OK, 0));
  REFUSED(ESTAFETTE_INVALID, "reported already", estafette_op_complete(op, ESTAFETTE_OK, 0));
  REFUSED(ESTAFETTE_INVALID, "reported already", estafette_op_complete_after(op, 0));
  OK(estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_release(op));
  /* The place is used again under another generation: the old handle does not reach what is there now. */
  static counting next;
  estafette_op *other;
  OK(estafette_submit_with(engine, 0, counting_function, &next, counting_drop, 0, 0, 0, 0, &other));
  CHECK(begun(&next) == other && other != op);
  REFUSED(ESTAFETTE_INVALID, "not in use", estafette_op_complete(op, ESTAFETTE_OK, 0));
  REFUSED(ESTAFETTE_INVALID, "not in use", estafette_op_release(op));
  REFUSED(ESTAFETTE_INVALID, "neither", estafette_op_complete(other, ESTAFETTE_PENDING, 0));
  OK(estafette_op_complete(other, ESTAFETTE_OK, 0));
  OK(estafette_op_release(other));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(context.called == 1 && drops(&context) == 1 && next.called == 1 && drops(&next) == 1);
  estafette_engine_destroy(engine);
}

static void callbacks_come_with_a_drop_context(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  DLDevice host = {kDLCPU, 0};

  /* Called off before it began: the function is never called, its context is dropped. */
  estafette_lease *lease;
  OK(estafette_order_on(tensor, ESTAFETTE_READ, host, 0, &lease));
  static counting cancelled;
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, counting_function, &cancelled, counting_drop, 0, 0, &tensor, 1, &op));
  REFUSED(ESTAFETTE_INVALID, "not called yet", estafette_op_complete(op, ESTAFETTE_OK, 0));
  OK(estafette_op_cancel(op));
  REFUSED(ESTAFETTE_CONFLICT, "ended already", estafette_op_cancel(op));
  EXPECT(ESTAFETTE_CANCELLED, estafette_op_wait(op, 10 * SECOND));
  OK(estafette_lease_release(lease, 0));
  EXPECT(ESTAFETTE_CANCELLED, estafette_wait(tensor, 10 * SECOND));
  OK(estafette_op_release(op));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(cancelled.called == 0 && drops(&cancelled) == 1);

  /* Skipped, since what it reads is poisoned. */
  static counting skipped;
  OK(estafette_submit(engine, "skipped", counting_function, &skipped, counting_drop, &tensor, 1, 0, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(skipped.called == 0 && drops(&skipped) == 1);
  OK(estafette_clear_error(tensor));
  OK(estafette_query(tensor));

  /* And there may be none. */
  static counting plain;
  plain.complete = 1;
  OK(estafette_submit(engine, 0, counting_function, &plain, 0, &tensor, 1, 0, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(plain.called == 1 && plain.dropped == 0);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

static counting elsewhere;

static void *complete_elsewhere(void *unused) {
  (void)unused;
  nap(5);
  OK(estafette_op_complete(atomic_load(&elsewhere.op), ESTAFETTE_OK, 0));
  return 0;
}

static void an_operation_is_completed_by_any_thread(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  OK(estafette_submit(engine, "elsewhere", counting_function, &elsewhere, counting_drop, 0, 0, &tensor, 1));
  begun(&elsewhere);
  pthread_t thread;
  CHECK(pthread_create(&thread, 0, complete_elsewhere, 0) == 0);
  OK(estafette_wait(tensor, 10 * SECOND));
  pthread_join(thread, 0);
  CHECK(drops(&elsewhere) == 1);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

int main(void) {
  RUN(on_any_error_the_caller_keeps_what_it_passed);
  RUN(order_on_returns_a_lease_that_ends_with_lease_release);
  RUN(an_end_that_would_wait_for_itself_is_refused);
  RUN(complete_after_finishes_when_the_fence_does);
  RUN(a_context_outlives_the_fence_that_its_operation_ends_with);
  RUN(a_second_completion_is_an_error);
  RUN(callbacks_come_with_a_drop_context);
  RUN(an_operation_is_completed_by_any_thread);
  return 0;
}
