/* Two processes: a test starts its own program again, with the name of its other half and what that is given. */
#ifndef TWO_H
#define TWO_H

#include "check.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

#define LIMIT (60 * SECOND)
#define LENGTH 5000

/* The path of this program. */
static char *self;

static inline estafette_engine *engine_of(int workers, uint64_t shared) {
  estafette_engine_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.workers = workers;
  options.shared = shared;
  estafette_engine *engine;
  OK(estafette_engine_create(&options, &engine));
  return engine;
}

static inline estafette_tensor *numbers(estafette_engine *engine) {
  DLDataType type = {kDLInt, 64, 1};
  int64_t length = LENGTH;
  estafette_tensor *tensor;
  OK(estafette_zeros_shared(engine, &length, 1, type, &tensor));
  return tensor;
}

/* An operation that writes `value` to all elements, and ends with `status`, at once or when `later` says so. */
typedef struct {
  estafette_tensor *tensor;
  int64_t value;
  int status;
  _Atomic(estafette_op *) *later;
} filling;

static inline void fill_now(filling *self) {
  int64_t *values;
  OK(estafette_tensor_data(self->tensor, (void **)&values));
  for (int i = 0; i < LENGTH; i++) values[i] = self->value;
}

static inline void fill(void *context, estafette_op *op) {
  filling *self = context;
  if (self->later) {
    atomic_store(self->later, op);
    return;
  }
  fill_now(self);
  OK(estafette_op_complete(op, self->status, self->status ? "out of paper" : 0));
}

static inline filling *submit_fill(estafette_engine *engine, estafette_tensor *tensor, int64_t value, int status,
                            _Atomic(estafette_op *) *later) {
  filling *context = malloc(sizeof *context);
  *context = (filling){tensor, value, status, later};
  OK(estafette_submit(engine, "fill", fill, context, free, 0, 0, &tensor, 1));
  return context;
}

/* The value of all elements, which are those of one version. */
static inline int64_t value(estafette_tensor *tensor) {
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.timeout_ns = LIMIT;
  DLManagedTensorVersioned *view;
  OK(estafette_export(tensor, &options, &view));
  CHECK(view->dl_tensor.ndim == 1 && view->dl_tensor.shape[0] == LENGTH);
  const int64_t *values = view->dl_tensor.data;
  for (int i = 1; i < LENGTH; i++) CHECK(values[i] == values[0]);
  int64_t found = values[0];
  view->deleter(view);
  return found;
}

static inline pid_t start(const char *half, const char *given) {
  char *arguments[] = {self, (char *)half, (char *)given, 0};
  pid_t process;
  CHECK(posix_spawn(&process, self, 0, 0, arguments, environ) == 0);
  return process;
}

static inline void ends_well(pid_t process) {
  int status;
  CHECK(waitpid(process, &status, 0) == process);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void dies(pid_t process) {
  int status;
  CHECK(kill(process, SIGKILL) == 0 && waitpid(process, &status, 0) == process);
}

/* The other half of a test, which a second process runs. */
typedef struct {
  const char *name;
  void (*run)(const char *given);
} half;

/* True if this is the second process; then it has done its half. */
static inline int is_second(const half *halves, int count, char **arguments) {
  self = arguments[0];
  if (count != 3) return 0;
  while (strcmp(halves->name, arguments[1]) != 0) halves++;
  halves->run(arguments[2]);
  return 1;
}

#endif
