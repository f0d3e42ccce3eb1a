/* Traces: several at once, snapshots, the end alone, and what is refused. The argument is a folder for the files. */
#include "check.h"

#include <signal.h>
#include <sys/stat.h>

static estafette_engine *engine;
static const char *folder;

static const char *in_folder(const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int is_there(const char *name) {
  struct stat about;
  return stat(in_folder(name), &about) == 0;
}

static void nothing(void *context, estafette_op *op) {
  (void)context;
  OK(estafette_op_complete(op, ESTAFETTE_OK, NULL));
}

static void step(const char *name) {
  OK(estafette_submit(engine, name, nothing, NULL, NULL, NULL, 0, NULL, 0));
  OK(estafette_wait_all(engine, ESTAFETTE_FOREVER));
}

static void several_at_once(void) {
  estafette_trace *outer, *inner;
  OK(estafette_trace_begin(in_folder("outer"), NULL, &outer));
  step("one");
  OK(estafette_trace_begin(in_folder("inner"), NULL, &inner));
  step("both");
  OK(estafette_trace_end(outer));
  OK(estafette_trace_end(inner));
  step("after");
}

static void a_snapshot_while_it_is_recorded(void) {
  estafette_trace *trace;
  OK(estafette_trace_begin(in_folder("trace"), NULL, &trace));
  step("first");
  OK(estafette_trace_snapshot(trace, in_folder("snapshot")));
  step("second");
  REFUSED(ESTAFETTE_INVALID, "no regular file", estafette_trace_snapshot(trace, folder));
  OK(estafette_trace_end(trace));
}

static void the_end_alone_by_a_signal(void) {
  estafette_trace *trace;
  estafette_trace_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.last_ns = SECOND / 20;
  options.signal = SIGUSR1;
  remove(in_folder("rolling.snapshot-1.pftrace"));
  OK(estafette_trace_begin(in_folder("rolling.pftrace"), &options, &trace));
  step("early");
  /* Whatever is older than what is kept is gone, however late the signal is served. */
  for (int look = 0; look < 100; look++) nap(1);
  raise(SIGUSR1);
  /* A busy machine may take seconds for that, and all of them are in the trace of the whole run. */
  while (!is_there("rolling.snapshot-1.pftrace")) {
    step("late");
    nap(1);
  }
  OK(estafette_trace_end(trace));
  raise(SIGUSR1); /* It is handled until the process ends. */
}

static void nothing_at_all(int number) { (void)number; }

static void what_is_refused(void) {
  estafette_trace *trace = NULL;
  estafette_trace_options options;
  memset(&options, 0, sizeof options);
  remove(in_folder("run"));
  REFUSED(ESTAFETTE_INVALID, "path is NULL", estafette_trace_begin(NULL, NULL, &trace));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_trace_begin(in_folder("run"), NULL, NULL));
  REFUSED(ESTAFETTE_INVALID, "no regular file", estafette_trace_begin(folder, NULL, &trace));
  REFUSED(ESTAFETTE_INVALID, "absent", estafette_trace_begin(in_folder("absent/run"), NULL, &trace));
  REFUSED(ESTAFETTE_INVALID, "size is 0", estafette_trace_begin(in_folder("run"), &options, &trace));
  options.size = sizeof options;
  options.signal = SIGSEGV;
  REFUSED(ESTAFETTE_INVALID, "no signal that may be waited for",
          estafette_trace_begin(in_folder("run"), &options, &trace));
  signal(SIGUSR2, nothing_at_all);
  options.signal = SIGUSR2;
  REFUSED(ESTAFETTE_INVALID, "has a handler of signal", estafette_trace_begin(in_folder("run"), &options, &trace));
  options.signal = 0;
  options.memory_max = 1;
  REFUSED(ESTAFETTE_INVALID, "at least", estafette_trace_begin(in_folder("run"), &options, &trace));
  CHECK(trace == NULL && !is_there("run"));
  REFUSED(ESTAFETTE_INVALID, "trace is NULL", estafette_trace_end(NULL));
  OK(estafette_trace_begin(in_folder("run"), NULL, &trace));
  OK(estafette_trace_end(trace));
  REFUSED(ESTAFETTE_INVALID, "it was ended", estafette_trace_end(trace));
  REFUSED(ESTAFETTE_INVALID, "it was ended", estafette_trace_snapshot(trace, in_folder("run")));
  REFUSED(ESTAFETTE_INVALID, "the handle of an engine", estafette_trace_end((estafette_trace *)engine));
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  folder = arguments[1];
  OK(estafette_engine_create(NULL, &engine));
  RUN(several_at_once);
  RUN(a_snapshot_while_it_is_recorded);
  RUN(the_end_alone_by_a_signal);
  RUN(what_is_refused);
  estafette_engine_destroy(engine);
  return 0;
}
