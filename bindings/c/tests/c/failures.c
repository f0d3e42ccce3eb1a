/* Failures that nothing has looked at: each is logged once, as an error. */
#include "check.h"

static atomic_int reports;
static char last_report[512];

static void note(void *context, int32_t level, const char *message) {
  (void)context;
  if (!strstr(message, "never retrieved")) return;
  CHECK(level == 1);
  snprintf(last_report, sizeof last_report, "%s", message);
  atomic_fetch_add(&reports, 1);
}

static void fail(void *context, estafette_op *op) {
  OK(estafette_op_complete(op, ESTAFETTE_FAILED, context));
}

static estafette_engine *logging_engine(void) {
  estafette_engine *engine;
  OK(estafette_engine_create(0, &engine));
  OK(estafette_set_log(1, note, 0, 0));
  atomic_store(&reports, 0);
  last_report[0] = 0;
  return engine;
}

static estafette_tensor *failed(estafette_engine *engine, const char *name) {
  DLDataType type = {kDLFloat, 32, 1};
  int64_t shape[1] = {4};
  estafette_tensor *tensor;
  OK(estafette_zeros(engine, shape, 1, type, &tensor));
  OK(estafette_submit(engine, name, fail, "the disk is full", 0, 0, 0, &tensor, 1));
  OK(estafette_wait_all(engine, 10 * SECOND));
  return tensor;
}

static uint64_t unretrieved(estafette_engine *engine) {
  estafette_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.size = sizeof stats;
  OK(estafette_engine_stats(engine, &stats));
  return stats.unretrieved;
}

static void a_failure_is_logged_when_its_last_handle_goes(void) {
  estafette_engine *engine = logging_engine();
  estafette_tensor *tensor = failed(engine, "save");
  CHECK(unretrieved(engine) == 1);
  CHECK(atomic_load(&reports) == 0);
  estafette_tensor_release(tensor);
  /* A worker releases a failure just after it has reported the end, and may be the last that holds it. */
  for (int look = 0; look < 10000 && !atomic_load(&reports); look++) nap(1);
  CHECK(atomic_load(&reports) == 1);
  CHECK(strstr(last_report, "`save`") && strstr(last_report, "the disk is full"));
  estafette_engine_destroy(engine);
  CHECK(atomic_load(&reports) == 1);
}

static void a_failure_that_was_looked_at_is_not_logged(void) {
  estafette_engine *engine = logging_engine();
  estafette_tensor *tensor = failed(engine, "save");
  REFUSED(ESTAFETTE_FAILED, "the disk is full", estafette_wait(tensor, 10 * SECOND));
  CHECK(unretrieved(engine) == 0);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
  CHECK(atomic_load(&reports) == 0);
}

static void a_failure_is_logged_when_its_engine_ends(void) {
  estafette_engine *engine = logging_engine();
  estafette_tensor *shut = failed(engine, "shut down");
  OK(estafette_engine_shutdown(engine, 10 * SECOND));
  CHECK(atomic_load(&reports) == 1 && strstr(last_report, "`shut down`"));
  estafette_engine_destroy(engine);
  estafette_tensor_release(shut);
  CHECK(atomic_load(&reports) == 1);

  engine = logging_engine();
  estafette_tensor *destroyed = failed(engine, "destroyed");
  estafette_engine_destroy(engine);
  CHECK(atomic_load(&reports) == 1 && strstr(last_report, "`destroyed`"));
  estafette_tensor_release(destroyed);
  CHECK(atomic_load(&reports) == 1);
}

static void release(void *context, int32_t level, const char *message) {
  static atomic_int calls;
  note(context, level, message);
  if (atomic_fetch_add(&calls, 1) == 0) estafette_tensor_release(context);
}

static void what_a_log_callback_does_is_not_logged(void) {
  /* The one worker releases the second failure before it comes to the first. */
  estafette_engine *engine = engine_new(1);
  atomic_store(&reports, 0);
  estafette_tensor *second = failed(engine, "second"), *first = failed(engine, "first");
  OK(estafette_set_log(1, release, second, 0));
  estafette_tensor_release(first);
  for (int look = 0; look < 10000 && !atomic_load(&reports); look++) nap(1);
  estafette_engine_destroy(engine);
  CHECK(atomic_load(&reports) == 1 && strstr(last_report, "`first`"));
  OK(estafette_set_log(0, 0, 0, 0));
}

static void older_callers_get_the_counters_that_they_know(void) {
  estafette_engine *engine = logging_engine();
  estafette_tensor *tensor = failed(engine, "save");
  estafette_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.size = 48;
  stats.unretrieved = 17;
  OK(estafette_engine_stats(engine, &stats));
  CHECK(stats.in_flight_limit == 4096 && stats.unretrieved == 17 && stats.size == 48);
  stats.size = 40;
  REFUSED(ESTAFETTE_INVALID, "size", estafette_engine_stats(engine, &stats));
  OK(estafette_set_log(0, 0, 0, 0));
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

int main(void) {
  RUN(a_failure_is_logged_when_its_last_handle_goes);
  RUN(a_failure_that_was_looked_at_is_not_logged);
  RUN(a_failure_is_logged_when_its_engine_ends);
  RUN(what_a_log_callback_does_is_not_logged);
  RUN(older_callers_get_the_counters_that_they_know);
  return 0;
}
