/*
 * A program that uses the C interface while calls of the system fail, and keeps account: of each operation that was accepted, each context
 * and each deleter. Prints what the judge in tests/programs/src/bin/failing_system reads: "struck N", "error ...", "lost ...", "ended ...", "whole".
 */
#define _GNU_SOURCE
#include <estafette.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
/* Longer than anything here takes; what takes longer is lost. */
#define LONG (20 * SECOND)
/* Elements of the tensor that is large enough for its memory to be refused instead of the process to end. */
#define LARGE (1 << 20)
#define JOBS_MAX 64

static atomic_int losses;

static void lost(const char *name, const char *what) {
  printf("lost %s: %s\n", name, what);
  atomic_fetch_add(&losses, 1);
}

/* True if a call has done what it should; an error is noted. */
static int ok(const char *name, estafette_status status) {
  if (status < 0) printf("error %s: %s: %s\n", name, estafette_status_text(status), estafette_last_error());
  if (status == ESTAFETTE_TIMEOUT) lost(name, "it never ended");
  return status == ESTAFETTE_OK;
}

/* Once more where the first try was refused: what fails once does not fail again. */
#define TWICE(name, call)                      \
  ({                                           \
    int done = ok(name, call) || ok(name, call); \
    done;                                      \
  })

/* The context of an operation. */
typedef struct {
  const char *name;
  int accepted, broken, fails_on_purpose;
  atomic_int ran, dropped;
  estafette_op *op;
  estafette_tensor *tensor;
} job;

static job jobs[JOBS_MAX];
static int job_count, settled;

static job *job_new(const char *name) {
  if (job_count == JOBS_MAX) abort();
  jobs[job_count].name = name;
  return &jobs[job_count++];
}

static void job_drop(void *context) { atomic_fetch_add(&((job *)context)->dropped, 1); }

static void accept_if(job *self, estafette_status status) {
  self->accepted = ok(self->name, status);
  self->broken = status == ESTAFETTE_INTERNAL;
}

static void run_one(void *context, estafette_op *op) {
  atomic_fetch_add(&((job *)context)->ran, 1);
  TWICE("complete", estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void fails_on_purpose(void *context, estafette_op *op) {
  atomic_fetch_add(&((job *)context)->ran, 1);
  TWICE("complete", estafette_op_complete(op, ESTAFETTE_FAILED, "on purpose"));
}

static void *end_later(void *op) {
  usleep(1000);
  TWICE("complete elsewhere", estafette_op_complete(op, ESTAFETTE_OK, 0));
  return 0;
}

static void ends_elsewhere(void *context, estafette_op *op) {
  atomic_fetch_add(&((job *)context)->ran, 1);
  pthread_t thread;
  /* Only the library's own threads are refused. */
  if (pthread_create(&thread, 0, end_later, op) != 0) abort();
  pthread_detach(thread);
}

static void ends_with_a_fence(void *context, estafette_op *op) {
  atomic_fetch_add(&((job *)context)->ran, 1);
  estafette_promise *promise;
  DLFence fence;
  if (!TWICE("a promise", estafette_promise_create("the fence", &promise, &fence))) {
    TWICE("complete", estafette_op_complete(op, ESTAFETTE_FAILED, estafette_last_error()));
    return;
  }
  if (!TWICE("complete after", estafette_op_complete_after(op, &fence)))
    TWICE("complete", estafette_op_complete(op, ESTAFETTE_FAILED, estafette_last_error()));
  fence.release(fence.context);
  TWICE("settle", estafette_promise_settle(promise, ESTAFETTE_OK, 0));
}

static void exports_its_operand(void *context, estafette_op *op) {
  job *self = context;
  atomic_fetch_add(&self->ran, 1);
  DLManagedTensorVersioned *view;
  if (ok("export inside", estafette_op_export(op, self->tensor, &view))) {
    ((float *)view->dl_tensor.data)[0] += 1;
    view->deleter(view);
  }
  TWICE("complete", estafette_op_complete(op, ESTAFETTE_OK, 0));
}

/* A wait with a limit, which fails where the thread that stands in for it is refused; a wait without one needs no thread. */
static int wait_for_op(const char *name, estafette_op *op) {
  return ok(name, estafette_op_wait(op, LONG)) || ok(name, estafette_op_wait(op, ESTAFETTE_FOREVER));
}

static int wait_for(const char *name, estafette_tensor *tensor) {
  return ok(name, estafette_wait(tensor, LONG)) || ok(name, estafette_wait(tensor, ESTAFETTE_FOREVER));
}

static void submit(estafette_engine *engine, const char *name, estafette_function function, estafette_tensor *tensor) {
  job *self = job_new(name);
  estafette_submit_options options = {.size = sizeof options, .name = name};
  self->tensor = tensor;
  accept_if(self, estafette_submit_with(engine, &options, function, self, job_drop, 0, 0, &tensor, tensor != 0, &self->op));
}

/* Waits for all operations so far, and compares. */
static void settle(void) {
  for (; settled < job_count; settled++) {
    job *self = &jobs[settled];
    if (self->accepted && self->op) {
      int well = self->fails_on_purpose
                     ? estafette_op_wait(self->op, ESTAFETTE_FOREVER) != ESTAFETTE_FAILED
                     : wait_for_op(self->name, self->op);
      if (self->fails_on_purpose && well) lost(self->name, "it did not fail");
      if (well && self->ran != 1) lost(self->name, "it ended well and did not run once");
      TWICE("release", estafette_op_release(self->op));
    }
    if (self->ran > 1) lost(self->name, "it ran twice");
  }
}

/* A worker drops a context just after it has reported the end. */
static void contexts_are_gone(void) {
  for (int at = 0; at < job_count; at++) {
    job *self = &jobs[at];
    for (int look = 0; self->accepted && look < 20000 && !atomic_load(&self->dropped); look++) usleep(1000);
    if (!self->broken && atomic_load(&self->dropped) != self->accepted) lost(self->name, "its context");
  }
}

/* Memory of four floats whose deleter counts. */
typedef struct {
  DLManagedTensorVersioned managed;
  int64_t shape[1];
  float values[4];
  int taken;
  atomic_int deleted;
} memory;

static memory memories[6];
static int memory_count;

static void memory_delete(DLManagedTensorVersioned *self) { atomic_fetch_add(&((memory *)self->manager_ctx)->deleted, 1); }

static memory *memory_new(void) {
  memory *made = &memories[memory_count++];
  made->shape[0] = 4;
  made->managed = (DLManagedTensorVersioned){
      .version = {1, 3},
      .manager_ctx = made,
      .deleter = memory_delete,
      .dl_tensor = {.data = made->values, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}, .shape = made->shape},
  };
  return made;
}

static void produce_memory(void *context, estafette_op *op) {
  (void)context;
  memory *made = memory_new();
  if (ok("complete with", estafette_op_complete_with(op, &made->managed))) made->taken = 1;
  else TWICE("complete", estafette_op_complete(op, ESTAFETTE_FAILED, estafette_last_error()));
}

static void called_back(void *context, estafette_status status, const char *message) {
  job *self = context;
  atomic_fetch_add(&self->ran, 1);
  if (status < 0) printf("error %s: %s\n", self->name, message);
}

static void await_by_callback(estafette_tensor *tensor) {
  job *self = job_new("a callback");
  accept_if(self, estafette_on_ready(tensor, called_back, self, job_drop));
}

static void with_a_tensor(estafette_engine *engine, estafette_tensor *tensor) {
  submit(engine, "plain", run_one, tensor);
  submit(engine, "ends elsewhere", ends_elsewhere, tensor);
  submit(engine, "ends with a fence", ends_with_a_fence, tensor);
  submit(engine, "exports inside", exports_its_operand, tensor);
  await_by_callback(tensor);
  if (wait_for("wait", tensor)) {
    DLManagedTensorVersioned *view;
    estafette_export_options copying = {.size = sizeof copying, .copy = 1};
    if (ok("export", estafette_export(tensor, 0, &view))) view->deleter(view);
    if (ok("export a copy", estafette_export(tensor, &copying, &view))) view->deleter(view);
  }
  estafette_lease *lease;
  DLDevice host = {kDLCPU, 0};
  DLFence fence;
  if (ok("lease", estafette_order_on(tensor, ESTAFETTE_WRITE, host, 0, &lease))) {
    submit(engine, "behind a lease", run_one, tensor);
    if (ok("fence of a lease", estafette_lease_fence(lease, &fence))) fence.release(fence.context);
    TWICE("release a lease", estafette_lease_release(lease, 0));
  }
  if (ok("fence", estafette_tensor_fence(tensor, &fence))) {
    /* The fence runs nothing for those that wait for it. */
    if (wait_for("behind the lease", tensor) && fence.wait(fence.context, LONG) != ESTAFETTE_OK) lost("fence", "it is not done");
    fence.release(fence.context);
  }
  if (ok("fence of writers", estafette_writable_fence(tensor, &fence))) fence.release(fence.context);
  settle();
}

static void imports(estafette_engine *engine) {
  memory *made = memory_new();
  estafette_promise *promise;
  DLFence fence;
  if (!ok("a promise", estafette_promise_create("ready", &promise, &fence))) return;
  estafette_tensor *tensor;
  made->taken = ok("import", estafette_import(engine, &made->managed, &fence, &tensor));
  TWICE("settle", estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  if (made->taken) {
    submit(engine, "writes an import", run_one, tensor);
    settle();
    TWICE("release after", estafette_tensor_release_after(tensor, &fence));
  }
  fence.release(fence.context);

  estafette_tensor *produced;
  job *self = job_new("produce");
  accept_if(self, estafette_produce(engine, 0, produce_memory, self, job_drop, 0, 0, &produced));
  if (self->accepted) {
    wait_for("wait for a product", produced);
    TWICE("release", estafette_tensor_release(produced));
  }
}

static void failures(estafette_engine *engine, estafette_tensor *tensor) {
  submit(engine, "fails", fails_on_purpose, tensor);
  job *fails = &jobs[job_count - 1];
  fails->fails_on_purpose = 1;
  if (fails->accepted && estafette_wait(tensor, LONG) == ESTAFETTE_OK) lost("a failure", "the wait ended well");
  settle();
  TWICE("clear the error", estafette_clear_error(tensor));
}

static void replays(estafette_engine *engine, estafette_tensor *tensor) {
  estafette_program *program;
  if (!ok("begin a program", estafette_program_begin(engine, "program", &program))) return;
  job *self = job_new("node");
  accept_if(self, estafette_program_add(program, 0, run_one, self, job_drop, 0, 0, &tensor, 1));
  if (ok("finish a program", estafette_program_finish(program, 0)) && self->accepted) {
    for (int round = 0; round < 3; round++) {
      estafette_op *op;
      int before = atomic_load(&self->ran);
      if (!ok("replay", estafette_program_replay(program, 0, &op))) continue;
      if (wait_for_op("wait for a replay", op) && atomic_load(&self->ran) != before + 1)
        lost("replay", "its node did not run once");
      TWICE("release", estafette_op_release(op));
    }
  }
  TWICE("destroy a program", estafette_program_destroy(program));
  atomic_store(&self->ran, 0);
}

static const char *twice(const DLTensor *const *inputs, size_t n_inputs, DLManagedTensorVersioned **outputs, size_t n_outputs,
                         const estafette_attribute *attributes, size_t n_attributes, void *stream, void *context) {
  (void)n_inputs, (void)n_outputs, (void)attributes, (void)n_attributes, (void)stream;
  atomic_fetch_add(&((job *)context)->ran, 1);
  ((float *)outputs[0]->dl_tensor.data)[0] = 2 * ((float *)inputs[0]->data)[0];
  return 0;
}

static void see(void *context, const estafette_operator_info *info) {
  if (strcmp(info->name, "test.twice") == 0) *(int *)context = 1;
}

static void operators(estafette_engine *engine, estafette_tensor *from, estafette_tensor *to) {
  job *self = job_new("operator");
  estafette_operator_options options = {
      .size = sizeof options, .kind = ESTAFETTE_OPERATOR_DESTINATION, .n_inputs = 1, .n_outputs = 1};
  accept_if(self, estafette_register_operator("test.twice", twice, &options, self, job_drop));
  if (!self->accepted) return;
  int seen = 0;
  if (ok("list operators", estafette_list_operators(see, &seen)) && !seen) lost("operator", "it is not listed");
  if (ok("call an operator", estafette_call_operator(engine, "test.twice", &from, 1, &to, 1, 0, 0)) &&
      wait_for("wait for an operator", to) && atomic_load(&self->ran) != 1)
    lost("operator", "it did not run once");
  TWICE("unregister", estafette_unregister_operator("test.twice"));
}

static void forked(const char *name, estafette_status status) {
  if (status != ESTAFETTE_FORKED) {
    printf("lost %s: %s in a forked child: %s\n", name, estafette_status_text(status), estafette_last_error());
    atomic_fetch_add(&losses, 1);
  }
}

static void in_child(estafette_engine *engine, estafette_tensor *tensor) {
  job *self = job_new("child");
  int64_t one = 1;
  DLDataType floats = {kDLFloat, 32, 1};
  estafette_engine *other;
  estafette_tensor *fresh;
  estafette_program *program;
  DLManagedTensorVersioned *view;
  char *text;
  atomic_store(&losses, 0);
  forked("submit", estafette_submit(engine, "child", run_one, self, job_drop, 0, 0, &tensor, 1));
  forked("create", estafette_engine_create(0, &other));
  forked("zeros", estafette_zeros(engine, &one, 1, floats, &fresh));
  forked("import", estafette_import(engine, &memory_new()->managed, 0, &fresh));
  forked("wait", estafette_wait(tensor, LONG));
  forked("export", estafette_export(tensor, 0, &view));
  forked("program", estafette_program_begin(engine, 0, &program));
  forked("diagnose", estafette_diagnose(engine, &text));
  forked("wait for all", estafette_wait_all(engine, LONG));
  forked("shutdown", estafette_engine_shutdown(engine, LONG));
  if (self->ran || self->dropped) lost("child", "its context was used");
  fflush(stdout);
}

static void forks(estafette_engine *engine, estafette_tensor *tensor) {
  submit(engine, "at the fork", ends_elsewhere, tensor);
  fflush(stdout);
  pid_t child = fork();
  if (child < 0) abort();
  if (child == 0) {
    in_child(engine, tensor);
    _exit(atomic_load(&losses) ? 3 : 0);
  }
  int status = 0, looks = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (++looks == 20000) {
      kill(child, SIGKILL);
      lost("fork", "the child hangs");
      return;
    }
    usleep(1000);
  }
  if (WIFSIGNALED(status)) printf("ended a forked child by signal %d\n", WTERMSIG(status));
  else if (WEXITSTATUS(status)) lost("fork", "the child was not well");
  settle();
}

/* No lock of the library is held: this call takes that of the deleters. */
static void quiet(void *context, int32_t level, const char *message) {
  (void)context, (void)level, (void)message;
  estafette_flush_deleters(0);
}

static void end(estafette_engine *engine) {
  settle();
  ok("shut down", estafette_engine_shutdown(engine, LONG));
  estafette_stats stats = {.size = sizeof stats};
  if (ok("count", estafette_engine_stats(engine, &stats)) && stats.in_flight) lost("engine", "it does not drain");
  TWICE("destroy", estafette_engine_destroy(engine));
}

/* workers: 0 for one per core, -1 for none. */
static void with_engine(int workers) {
  estafette_engine_options options = {.size = sizeof options, .workers = workers};
  estafette_engine *engine;
  if (!TWICE("create an engine", estafette_engine_create(&options, &engine))) return;
  int64_t few = 4, many = LARGE;
  DLDataType floats = {kDLFloat, 32, 1};
  estafette_tensor *tensors[2] = {0}, *large;
  for (int at = 0; at < 2; at++) ok("zeros", estafette_zeros(engine, &few, 1, floats, &tensors[at]));
  if (ok("large zeros", estafette_zeros(engine, &many, 1, floats, &large))) estafette_tensor_release(large);
  if (tensors[0] && tensors[1]) {
    with_a_tensor(engine, tensors[0]);
    imports(engine);
    failures(engine, tensors[0]);
    replays(engine, tensors[0]);
    operators(engine, tensors[0], tensors[1]);
    if (workers == 0) forks(engine, tensors[0]);
    char *text;
    if (ok("diagnose", estafette_diagnose(engine, &text))) estafette_string_free(text);
  }
  for (int at = 0; at < 2; at++) TWICE("release", estafette_tensor_release(tensors[at]));
  end(engine);
}

static void *symbol(const char *name) { return dlsym(RTLD_DEFAULT, name); }

int main(void) {
  void (*arm)(int) = (void (*)(int))symbol("failing_system_arm");
  long (*struck)(void) = (long (*)(void))symbol("failing_system_struck");
  if (arm) arm(1);
  int context;
  int32_t device;
  job *log = job_new("log");
  accept_if(log, estafette_set_log(5, quiet, log, job_drop));
  if (ok("register a context", estafette_register_context(kDLVulkan, &context, &device)))
    TWICE("unregister a context", estafette_unregister_context(kDLVulkan, device));
  with_engine(0);
  with_engine(-1);
  TWICE("end the log", estafette_set_log(0, 0, 0, 0));
  if (arm) arm(0);
  /* As long as the thread of the deleters is refused, they are due. */
  TWICE("flush deleters", estafette_flush_deleters(LONG));
  contexts_are_gone();
  for (int at = 0; at < memory_count; at++)
    if (atomic_load(&memories[at].deleted) != memories[at].taken) lost("memory", "its deleter");
  printf("struck %ld\nwhole\n", struck ? struck() : 0);
  return atomic_load(&losses) ? 3 : 0;
}
