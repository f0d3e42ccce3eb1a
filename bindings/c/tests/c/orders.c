/* A program that shares memory between threads by the engine's order alone, with no lock and no atomic of its own: helgrind and drd
 * find nothing in it. With -DPLANTED it has one race, which they find. */
#include "check.h"

static int shared[16];

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;

/* Waits until a callback has set `value` to `expected` under the lock. What it did before is then visible here. */
static void wait_until_told(const int *value, int expected) {
  for (int done = 0; !done;) {
    pthread_mutex_lock(&told_lock);
    done = *value == expected;
    pthread_mutex_unlock(&told_lock);
    nap(1);
  }
}

/* Writes what the next one reads. */
static void step(void *context, estafette_op *op) {
  int *at = context;
  at[1] = at[0] + 1;
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

/* A worker calls it just after it has reported the end, so no wait of the engine covers it. */
static void note_dropped(void *context) {
  pthread_mutex_lock(&told_lock);
  ((int *)context)[2] = 7;
  pthread_mutex_unlock(&told_lock);
}

static void bodies_and_the_program_hand_memory_on(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *tensor = floats(engine, 4);
  shared[0] = 10;
  for (int i = 0; i < 8; i++) OK(estafette_submit(engine, "step", step, &shared[i], 0, 0, 0, &tensor, 1));
  OK(estafette_wait(tensor, 10 * SECOND));
  CHECK(shared[8] == 18);
  static int dropped[3];
  dropped[0] = 1;
  OK(estafette_submit(engine, "dropped", step, dropped, note_dropped, 0, 0, &tensor, 1));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(dropped[1] == 2);
  wait_until_told(&dropped[2], 7);
  estafette_op *op;
  OK(estafette_submit_with(engine, 0, step, &shared[8], 0, 0, 0, &tensor, 1, &op));
  OK(estafette_op_wait(op, 10 * SECOND));
  CHECK(shared[9] == 19);
  OK(estafette_op_release(op));

  estafette_program *program;
  OK(estafette_program_begin(engine, "steps", &program));
  for (int i = 0; i < 4; i++) OK(estafette_program_add(program, 0, step, &shared[i], 0, 0, 0, &tensor, 1));
  OK(estafette_program_finish(program, 0));
  shared[0] = 20;
  for (int i = 0; i < 3; i++) OK(estafette_program_replay(program, 0, 0));
  OK(estafette_wait(tensor, 10 * SECOND));
  CHECK(shared[4] == 24);
  OK(estafette_program_destroy(program));
  OK(estafette_tensor_release(tensor));
  OK(estafette_engine_destroy(engine));
}

/* The memory of tensors, by leases, exports and fences. */
static void fill(void *context, estafette_op *op) {
  void *data;
  OK(estafette_tensor_data(context, &data));
  for (int i = 0; i < 4; i++) ((float *)data)[i] += 1.0f;
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void *settle(void *promise) {
  shared[12] = 5;
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  return 0;
}

static void memory_changes_hands_by_leases_exports_and_fences(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *tensor = floats(engine, 4);
  for (int round = 0; round < 4; round++) {
    OK(estafette_submit(engine, "fill", fill, tensor, 0, 0, 0, &tensor, 1));
    DLManagedTensorVersioned *view;
    estafette_export_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.access = ESTAFETTE_WRITE;
    OK(estafette_export(tensor, &options, &view));
    ((float *)view->dl_tensor.data)[0] += 1.0f;
    view->deleter(view);
    OK(estafette_submit(engine, "fill", fill, tensor, 0, 0, 0, &tensor, 1));
    DLDevice host = {kDLCPU, 0};
    estafette_lease *lease;
    OK(estafette_order_on(tensor, ESTAFETTE_WRITE, host, 0, &lease));
    void *data;
    OK(estafette_tensor_data(tensor, &data));
    ((float *)data)[1] += 1.0f;
    OK(estafette_lease_release(lease, 0));
  }
  estafette_promise *promise;
  DLFence fence;
  OK(estafette_promise_create(0, &promise, &fence));
  pthread_t thread;
  CHECK(pthread_create(&thread, 0, settle, promise) == 0);
  CHECK(fence.wait(fence.context, 10 * SECOND) == ESTAFETTE_OK);
  CHECK(shared[12] == 5);
  CHECK(pthread_join(thread, 0) == 0);
  fence.release(fence.context);
  OK(estafette_tensor_release(tensor));
  OK(estafette_engine_destroy(engine));
}

static int told;

static void tell(void *context, estafette_status status, const char *message) {
  (void)message;
  CHECK(status == ESTAFETTE_OK && *(int *)context == 9);
  pthread_mutex_lock(&told_lock);
  told++;
  pthread_mutex_unlock(&told_lock);
}

static void release_managed(DLManagedTensorVersioned *managed) {
  *(int *)managed->manager_ctx = 6;
  free(managed->dl_tensor.shape);
  free(managed->dl_tensor.data);
  free(managed);
}

static void release_and_notify(DLManagedTensorVersioned *managed) {
  pthread_mutex_lock(&told_lock);
  release_managed(managed);
  pthread_mutex_unlock(&told_lock);
}

static estafette_tensor *foreign(estafette_engine *engine, void (*deleter)(DLManagedTensorVersioned *), int *released) {
  DLManagedTensorVersioned *managed = calloc(1, sizeof *managed);
  managed->version.major = 1;
  managed->dl_tensor.data = calloc(4, sizeof(float));
  managed->dl_tensor.shape = calloc(1, sizeof(int64_t));
  managed->dl_tensor.shape[0] = 4;
  managed->dl_tensor.ndim = 1;
  managed->dl_tensor.device.device_type = kDLCPU;
  DLDataType type = {kDLFloat, 32, 1};
  managed->dl_tensor.dtype = type;
  managed->deleter = deleter;
  managed->manager_ctx = released;
  estafette_tensor *tensor;
  OK(estafette_import(engine, managed, 0, &tensor));
  return tensor;
}

static void callbacks_and_deleters_see_what_came_before_them(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *tensor = foreign(engine, release_and_notify, &shared[13]);
  OK(estafette_submit(engine, "fill", fill, tensor, 0, 0, 0, &tensor, 1));
  static int context;
  context = 9;
  OK(estafette_on_ready(tensor, tell, &context, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  wait_until_told(&told, 1);
  OK(estafette_tensor_release(tensor));
  /* A worker releases the operands of an operation just after it has reported the end, so a flush may come too early. */
  wait_until_told(&shared[13], 6);
  /* No operation uses this one, so a flush waits for its deleter. */
  OK(estafette_tensor_release(foreign(engine, release_managed, &shared[14])));
  OK(estafette_flush_deleters(10 * SECOND));
  CHECK(shared[14] == 6);
  OK(estafette_engine_destroy(engine));
}

#ifdef PLANTED
static int planted;

static void race(void *context, estafette_op *op) {
  (void)context;
  planted++;
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

/* The body and this thread touch the same memory, with no wait in between. */
static void a_race_of_the_program_itself(void) {
  estafette_engine *engine = engine_new(1);
  OK(estafette_submit(engine, "race", race, 0, 0, 0, 0, 0, 0));
  /* Not before the body, which this thread would run itself where no worker has come to it. */
  for (int look = 0; look < 10000 && !*(volatile int *)&planted; look++) nap(1);
  planted++;
  OK(estafette_wait_all(engine, 10 * SECOND));
  OK(estafette_engine_destroy(engine));
}
#endif

int main(void) {
  RUN(bodies_and_the_program_hand_memory_on);
  RUN(memory_changes_hands_by_leases_exports_and_fences);
  RUN(callbacks_and_deleters_see_what_came_before_them);
#ifdef PLANTED
  RUN(a_race_of_the_program_itself);
#endif
  return 0;
}
