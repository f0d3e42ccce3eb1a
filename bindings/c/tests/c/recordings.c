/* Recordings: several at once, snapshots, the end alone, and what is refused. The argument is a folder for the files. */
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
  estafette_recording *outer, *inner;
  OK(estafette_record_begin(in_folder("outer"), NULL, &outer));
  step("one");
  OK(estafette_record_begin(in_folder("inner"), NULL, &inner));
  step("both");
  OK(estafette_record_end(outer));
  OK(estafette_record_end(inner));
  step("after");
}

static void a_snapshot_while_it_is_recorded(void) {
  estafette_recording *recording;
  OK(estafette_record_begin(in_folder("recording"), NULL, &recording));
  step("first");
  OK(estafette_record_snapshot(recording, in_folder("snapshot")));
  step("second");
  REFUSED(ESTAFETTE_INVALID, "no regular file", estafette_record_snapshot(recording, folder));
  OK(estafette_record_end(recording));
}

static void the_end_alone_by_a_signal(void) {
  estafette_recording *recording;
  estafette_recording_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.last_ns = SECOND / 20;
  options.signal = SIGUSR1;
  remove(in_folder("rolling.snapshot-1.pftrace"));
  OK(estafette_record_begin(in_folder("rolling.pftrace"), &options, &recording));
  step("early");
  /* Whatever is older than what is kept is gone, however late the signal is served. */
  for (int look = 0; look < 100; look++) nap(1);
  raise(SIGUSR1);
  while (!is_there("rolling.snapshot-1.pftrace")) step("late");
  OK(estafette_record_end(recording));
  raise(SIGUSR1); /* It is handled until the process ends. */
}

static void nothing_at_all(int number) { (void)number; }

static void what_is_refused(void) {
  estafette_recording *recording = NULL;
  estafette_recording_options options;
  memset(&options, 0, sizeof options);
  remove(in_folder("run"));
  REFUSED(ESTAFETTE_INVALID, "path is NULL", estafette_record_begin(NULL, NULL, &recording));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_record_begin(in_folder("run"), NULL, NULL));
  REFUSED(ESTAFETTE_INVALID, "no regular file", estafette_record_begin(folder, NULL, &recording));
  REFUSED(ESTAFETTE_INVALID, "absent", estafette_record_begin(in_folder("absent/run"), NULL, &recording));
  REFUSED(ESTAFETTE_INVALID, "size is 0", estafette_record_begin(in_folder("run"), &options, &recording));
  options.size = sizeof options;
  options.signal = SIGSEGV;
  REFUSED(ESTAFETTE_INVALID, "no signal that may be waited for",
          estafette_record_begin(in_folder("run"), &options, &recording));
  signal(SIGUSR2, nothing_at_all);
  options.signal = SIGUSR2;
  REFUSED(ESTAFETTE_INVALID, "has a handler of signal", estafette_record_begin(in_folder("run"), &options, &recording));
  options.signal = 0;
  options.memory_max = 1;
  REFUSED(ESTAFETTE_INVALID, "at least", estafette_record_begin(in_folder("run"), &options, &recording));
  CHECK(recording == NULL && !is_there("run"));
  REFUSED(ESTAFETTE_INVALID, "recording is NULL", estafette_record_end(NULL));
  OK(estafette_record_begin(in_folder("run"), NULL, &recording));
  OK(estafette_record_end(recording));
  REFUSED(ESTAFETTE_INVALID, "it was ended", estafette_record_end(recording));
  REFUSED(ESTAFETTE_INVALID, "it was ended", estafette_record_snapshot(recording, in_folder("run")));
  REFUSED(ESTAFETTE_INVALID, "the handle of an engine", estafette_record_end((estafette_recording *)engine));
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
