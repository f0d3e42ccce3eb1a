/* Programs: recorded once, replayed as one operation. */
#include "check.h"

typedef struct {
  estafette_tensor *from, *to;
  float factor;
  atomic_int calls, dropped;
} node;

static void dropped(void *context) { atomic_fetch_add(&((node *)context)->dropped, 1); }

/* to = from * factor */
static void scale(void *context, estafette_op *op) {
  node *self = context;
  void *from, *to;
  OK(estafette_tensor_data(self->from, &from));
  OK(estafette_tensor_data(self->to, &to));
  for (int i = 0; i < 4; i++) ((float *)to)[i] = ((float *)from)[i] * self->factor;
  atomic_fetch_add(&self->calls, 1);
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void *end_later(void *op) {
  usleep(1000);
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  return 0;
}

static void add_one_elsewhere(void *context, estafette_op *op) {
  node *self = context;
  void *to;
  OK(estafette_tensor_data(self->to, &to));
  for (int i = 0; i < 4; i++) ((float *)to)[i] += 1;
  atomic_fetch_add(&self->calls, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, 0, end_later, op) == 0);
  CHECK(pthread_detach(thread) == 0);
}

static void fail(void *context, estafette_op *op) {
  atomic_fetch_add(&((node *)context)->calls, 1);
  OK(estafette_op_complete(op, ESTAFETTE_FAILED, "fate of a node"));
}

static estafette_submit_options named(const char *name) {
  estafette_submit_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.name = name;
  return options;
}

static void nodes_run_in_order_at_every_replay(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *x = floats(engine, 4), *y = floats(engine, 4);
  void *data;
  OK(estafette_tensor_data(x, &data));
  for (int i = 0; i < 4; i++) ((float *)data)[i] = 1;
  node up = {x, y, 3, 0, 0}, more = {0, y, 0, 0, 0}, down = {y, x, 1, 0, 0};
  estafette_program *program;
  OK(estafette_program_begin(engine, "step", &program));
  estafette_submit_options options = named("up");
  OK(estafette_program_add(program, &options, scale, &up, dropped, &x, 1, &y, 1));
  OK(estafette_program_add(program, 0, add_one_elsewhere, &more, dropped, &y, 1, &y, 1));
  OK(estafette_program_add(program, 0, scale, &down, dropped, &y, 1, &x, 1));
  REFUSED(ESTAFETTE_INVALID, "still being recorded", estafette_program_replay(program, 0, 0));
  OK(estafette_program_finish(program, 0));
  float expected = 1;
  for (int round = 0; round < 20; round++) {
    OK(estafette_program_replay(program, round % 2, 0));
    expected = expected * 3 + 1;
  }
  estafette_op *op;
  OK(estafette_program_replay(program, 0, &op));
  expected = expected * 3 + 1;
  /* The last holders of the program are its replays. */
  estafette_program_destroy(program);
  OK(estafette_op_wait(op, 30 * SECOND));
  REFUSED(ESTAFETTE_INVALID, "reports its own end", estafette_op_complete(op, ESTAFETTE_OK, 0));
  OK(estafette_op_release(op));
  OK(estafette_wait(x, 30 * SECOND));
  CHECK(((float *)data)[0] == expected && ((float *)data)[3] == expected);
  CHECK(up.calls == 21 && more.calls == 21 && down.calls == 21);
  OK(estafette_wait_all(engine, 30 * SECOND));
  for (int look = 0; look < 5000 && down.dropped == 0; look++) usleep(1000);
  CHECK(up.dropped == 1 && more.dropped == 1 && down.dropped == 1);
  estafette_tensor_release(x);
  estafette_tensor_release(y);
  estafette_engine_destroy(engine);
}

static void a_node_that_fails_leaves_out_what_reads_from_it(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *x = floats(engine, 4), *y = floats(engine, 4), *z = floats(engine, 4);
  node bad = {0, x, 0, 0, 0}, reads = {x, y, 1, 0, 0}, beside = {z, z, 2, 0, 0};
  estafette_program *program;
  OK(estafette_program_begin(engine, 0, &program));
  OK(estafette_program_add(program, 0, fail, &bad, 0, 0, 0, &x, 1));
  OK(estafette_program_add(program, 0, scale, &reads, 0, &x, 1, &y, 1));
  OK(estafette_program_add(program, 0, scale, &beside, 0, 0, 0, &z, 1));
  OK(estafette_program_finish(program, 0));
  estafette_op *op;
  OK(estafette_program_replay(program, 0, &op));
  REFUSED(ESTAFETTE_FAILED, "fate of a node", estafette_op_wait(op, 30 * SECOND));
  OK(estafette_op_release(op));
  CHECK(bad.calls == 1 && reads.calls == 0 && beside.calls == 1);
  EXPECT(ESTAFETTE_FAILED, estafette_wait(z, 30 * SECOND));
  estafette_program_destroy(program);
  estafette_tensor_release(x);
  estafette_tensor_release(y);
  estafette_tensor_release(z);
  estafette_engine_destroy(engine);
}

static void told(void *context, estafette_status status, const char *message) {
  (void)context, (void)status, (void)message;
}

static void what_is_wrong_is_refused_and_the_caller_keeps_its_context(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *x = floats(engine, 4);
  node own = {x, x, 1, 0, 0};
  estafette_program *program;
  EXPECT(ESTAFETTE_INVALID, estafette_program_begin(0, 0, &program));
  EXPECT(ESTAFETTE_INVALID, estafette_program_begin(engine, 0, 0));
  EXPECT(ESTAFETTE_INVALID, estafette_program_begin(engine, "\xff", &program));
  OK(estafette_program_begin(engine, "step", &program));
  EXPECT(ESTAFETTE_INVALID, estafette_program_add(0, 0, scale, &own, dropped, 0, 0, &x, 1));
  EXPECT(ESTAFETTE_INVALID, estafette_program_add(program, 0, 0, &own, dropped, 0, 0, &x, 1));
  EXPECT(ESTAFETTE_INVALID, estafette_program_add(program, 0, scale, &own, dropped, 0, 1, 0, 0));
  estafette_submit_options options = named("node");
  options.priority = 1;
  REFUSED(ESTAFETTE_INVALID, "priority", estafette_program_add(program, &options, scale, &own, dropped, 0, 0, &x, 1));
  options.priority = 0;
  options.on_skip = told;
  REFUSED(ESTAFETTE_INVALID, "on_skip", estafette_program_add(program, &options, scale, &own, dropped, 0, 0, &x, 1));
  options.on_skip = 0;
  options.on.device_type = kDLCUDA;
  options.on.device_id = 77;
  EXPECT(ESTAFETTE_INVALID, estafette_program_add(program, &options, scale, &own, dropped, 0, 0, &x, 1));
  CHECK(own.dropped == 0);
  REFUSED(ESTAFETTE_INVALID, "graph is 2", estafette_program_finish(program, 2));
  options = named("node");
  OK(estafette_program_add(program, &options, scale, &own, dropped, 0, 0, &x, 1));
  REFUSED(ESTAFETTE_INVALID, "node 0 `node` works on the host", estafette_program_finish(program, 1));
  CHECK(own.dropped == 0 && own.calls == 0);
  REFUSED(ESTAFETTE_INVALID, "could not be finished", estafette_program_replay(program, 0, 0));
  EXPECT(ESTAFETTE_INVALID, estafette_program_add(program, 0, scale, &own, dropped, 0, 0, &x, 1));
  estafette_program_destroy(program);
  CHECK(own.dropped == 1 && own.calls == 0);
  OK(estafette_program_begin(engine, "empty", &program));
  OK(estafette_program_finish(program, 0));
  EXPECT(ESTAFETTE_INVALID, estafette_program_finish(program, 0));
  estafette_op *op;
  REFUSED(ESTAFETTE_INVALID, "nonblocking is 3", estafette_program_replay(program, 3, &op));
  OK(estafette_engine_shutdown(engine, 30 * SECOND));
  EXPECT(ESTAFETTE_SHUTDOWN, estafette_program_replay(program, 0, &op));
  estafette_program_destroy(program);
  estafette_program_destroy(0);
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void ends_with(void *fence, estafette_op *op) { OK(estafette_op_complete_after(op, fence)); }

/* The fences of all nodes, also of one that another node comes after on the host. */
static void a_replay_ends_with_the_fences_of_its_nodes(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *x = floats(engine, 4);
  for (int status = ESTAFETTE_OK; status >= ESTAFETTE_FAILED; status += ESTAFETTE_FAILED) {
    estafette_promise *promise;
    DLFence work, end;
    OK(estafette_promise_create(0, &promise, &work));
    estafette_program *program;
    OK(estafette_program_begin(engine, "ends later", &program));
    OK(estafette_program_add(program, 0, ends_with, &work, 0, 0, 0, &x, 1));
    OK(estafette_program_finish(program, 0));
    estafette_op *op;
    OK(estafette_program_replay(program, 0, &op));
    OK(estafette_op_fence(op, &end));
    EXPECT(ESTAFETTE_TIMEOUT, estafette_op_wait(op, SECOND / 50));
    EXPECT(ESTAFETTE_PENDING, estafette_op_query(op));
    EXPECT(DLPACK_FENCE_PENDING, end.query(end.context));
    OK(estafette_promise_settle(promise, status, "the kernel has crashed"));
    EXPECT(status, estafette_op_wait(op, 10 * SECOND));
    EXPECT(status, estafette_op_query(op));
    EXPECT(status, end.wait(end.context, 10 * SECOND));
    end.release(end.context);
    work.release(work.context);
    OK(estafette_op_release(op));
    OK(estafette_program_destroy(program));
  }
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

int main(void) {
  RUN(nodes_run_in_order_at_every_replay);
  RUN(a_replay_ends_with_the_fences_of_its_nodes);
  RUN(a_node_that_fails_leaves_out_what_reads_from_it);
  RUN(what_is_wrong_is_refused_and_the_caller_keeps_its_context);
}
