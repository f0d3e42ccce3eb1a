/* The library in processes that load, unload, copy and fork it. The argument is the path of the shared library, and a second one
 * that of a copy of it. This program is not linked to it. */
#include <dirent.h>
#include <dlfcn.h>
#include <estafette.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                        \
  do {                                                                     \
    if (!(what)) {                                                         \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);   \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

typedef struct {
  void *library;
  estafette_status (*create)(const estafette_engine_options *, estafette_engine **);
  void (*destroy)(estafette_engine *);
  estafette_status (*shutdown)(estafette_engine *, uint64_t);
  estafette_status (*zeros)(estafette_engine *, const int64_t *, int32_t, DLDataType, estafette_tensor **);
  estafette_status (*import)(estafette_engine *, DLManagedTensorVersioned *, const DLFence *, estafette_tensor **);
  estafette_status (*export_)(const estafette_tensor *, const estafette_export_options *, DLManagedTensorVersioned **);
  estafette_status (*submit)(estafette_engine *, const char *, estafette_function, void *, estafette_drop,
                             estafette_tensor *const *, size_t, estafette_tensor *const *, size_t);
  estafette_status (*complete)(estafette_op *, int32_t, const char *);
  estafette_status (*query)(const estafette_tensor *);
  estafette_status (*wait)(const estafette_tensor *, uint64_t);
  estafette_status (*fence)(const estafette_tensor *, DLFence *);
  void (*release)(estafette_tensor *);
  const char *(*last_error)(void);
} copy;

static copy *current;

static void *symbol(copy *of, const char *name) {
  void *found = dlsym(of->library, name);
  CHECK(found != 0);
  return found;
}

static copy load(const char *path) {
  copy made;
  made.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!made.library) fprintf(stderr, "%s\n", dlerror());
  CHECK(made.library != 0);
  *(void **)&made.create = symbol(&made, "estafette_engine_create");
  *(void **)&made.destroy = symbol(&made, "estafette_engine_destroy");
  *(void **)&made.shutdown = symbol(&made, "estafette_engine_shutdown");
  *(void **)&made.zeros = symbol(&made, "estafette_zeros");
  *(void **)&made.import = symbol(&made, "estafette_import");
  *(void **)&made.export_ = symbol(&made, "estafette_export");
  *(void **)&made.submit = symbol(&made, "estafette_submit");
  *(void **)&made.complete = symbol(&made, "estafette_op_complete");
  *(void **)&made.query = symbol(&made, "estafette_query");
  *(void **)&made.wait = symbol(&made, "estafette_wait");
  *(void **)&made.fence = symbol(&made, "estafette_tensor_fence");
  *(void **)&made.release = symbol(&made, "estafette_tensor_release");
  *(void **)&made.last_error = symbol(&made, "estafette_last_error");
  return made;
}

static int threads(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/task");
  CHECK(folder != 0);
  while (readdir(folder)) count++;
  closedir(folder);
  return count - 2;
}

static void fill(void *context, estafette_op *op) {
  *(float *)context = 5.0f;
  current->complete(op, ESTAFETTE_OK, 0);
}

static void fail(void *context, estafette_op *op) {
  *(float *)context = 5.0f;
  current->complete(op, ESTAFETTE_FAILED, "on purpose");
}

static const DLDataType F32 = {kDLFloat, 32, 1};

static void use(copy *of) {
  estafette_engine_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.workers = 2;
  estafette_engine *engine;
  estafette_tensor *tensor;
  int64_t length = 4;
  CHECK(of->create(&options, &engine) == ESTAFETTE_OK);
  CHECK(of->zeros(engine, &length, 1, F32, &tensor) == ESTAFETTE_OK);
  DLManagedTensorVersioned *alias;
  estafette_export_options how;
  memset(&how, 0, sizeof how);
  how.size = sizeof how;
  how.access = ESTAFETTE_ALIAS;
  CHECK(of->export_(tensor, &how, &alias) == ESTAFETTE_OK);
  current = of;
  CHECK(of->submit(engine, "fill", fill, alias->dl_tensor.data, 0, 0, 0, &tensor, 1) == ESTAFETTE_OK);
  CHECK(of->wait(tensor, 10000000000ull) == ESTAFETTE_OK);
  CHECK(*(float *)alias->dl_tensor.data == 5.0f);
  alias->deleter(alias);
  of->release(tensor);
  CHECK(of->shutdown(engine, 10000000000ull) == ESTAFETTE_OK);
  of->destroy(engine);
}

static void loading_starts_no_thread_and_unloading_is_harmless(const char *path) {
  CHECK(threads() == 1);
  copy first = load(path);
  CHECK(threads() == 1);
  for (int round = 0; round < 5; round++) {
    copy again = load(path);
    use(&again);
    CHECK(dlclose(again.library) == 0);
  }
  CHECK(dlclose(first.library) == 0);
}

/* Memory of one copy in the other, made ready by the first one's promise: to each the other is a stranger. */
static void two_copies_in_one_process_exchange_tensors(const char *path, const char *other) {
  copy one = load(path), two = load(other);
  CHECK(one.library != two.library && one.create != two.create);
  estafette_engine *first, *second;
  CHECK(one.create(0, &first) == ESTAFETTE_OK && two.create(0, &second) == ESTAFETTE_OK);
  estafette_tensor *made, *taken;
  int64_t length = 4;
  CHECK(one.zeros(first, &length, 1, F32, &made) == ESTAFETTE_OK);
  DLManagedTensorVersioned *managed;
  estafette_export_options how;
  memset(&how, 0, sizeof how);
  how.size = sizeof how;
  how.access = ESTAFETTE_ALIAS;
  CHECK(one.export_(made, &how, &managed) == ESTAFETTE_OK);
  float *data = managed->dl_tensor.data;
  current = &one;
  CHECK(one.submit(first, "fill", fill, data, 0, 0, 0, &made, 1) == ESTAFETTE_OK);
  DLFence ready;
  CHECK(one.fence(made, &ready) == ESTAFETTE_OK);
  CHECK(two.import(second, managed, &ready, &taken) == ESTAFETTE_OK);
  ready.release(ready.context);
  CHECK(two.wait(taken, 10000000000ull) == ESTAFETTE_OK && data[0] == 5.0f);
  /* Each has errors of its own. */
  CHECK(one.query(0) == ESTAFETTE_INVALID && one.last_error()[0] != 0 && two.last_error()[0] == 0);
  /* No handle of the one is a handle of the other. */
  CHECK(one.shutdown(second, 0) == ESTAFETTE_INVALID && strstr(one.last_error(), "of another copy of the library"));
  CHECK(two.query(made) == ESTAFETTE_INVALID && one.query(taken) == ESTAFETTE_INVALID);
  two.release(taken);
  one.release(made);
  CHECK(one.shutdown(first, 10000000000ull) == ESTAFETTE_OK && two.shutdown(second, 10000000000ull) == ESTAFETTE_OK);
  one.destroy(first);
  two.destroy(second);
}

/* As in a program that is linked to one copy and loads another, such as that of the Python package. */
static void a_copy_calls_its_own_functions_beside_one_in_the_global_scope(const char *path, const char *other) {
  CHECK(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != 0);
  copy two = load(other);
  const estafette_api *(*get_api)(void);
  *(void **)&get_api = symbol(&two, "estafette_get_api");
  const estafette_api *api = get_api();
  CHECK(api->engine_create == two.create && api->zeros == two.zeros && api->last_error == two.last_error);
  estafette_engine *engine;
  estafette_tensor *made;
  float value = 0;
  CHECK(two.create(0, &engine) == ESTAFETTE_OK);
  current = &two;
  CHECK(api->produce(engine, 0, fail, &value, 0, 0, 0, &made) == ESTAFETTE_OK);
  CHECK(two.wait(made, 10000000000ull) == ESTAFETTE_FAILED && value == 5.0f);
  two.release(made);
  CHECK(two.shutdown(engine, 10000000000ull) == ESTAFETTE_OK);
  two.destroy(engine);
}

static int status_of_child(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Forked before the library was used, a child is like any other process. */
static void a_child_forked_before_first_use_may_use_it(const char *path) {
  copy loaded = load(path);
  pid_t child = fork();
  if (child == 0) {
    use(&loaded);
    _exit(7);
  }
  CHECK(status_of_child(child) == 7);
}

/* Forked afterwards, it is refused, whatever it calls, and the parent is unaffected. */
static void a_child_forked_after_first_use_is_refused(const char *path) {
  copy loaded = load(path);
  estafette_engine *engine, *none;
  CHECK(loaded.create(0, &engine) == ESTAFETTE_OK);
  estafette_tensor *tensor, *more;
  int64_t length = 4;
  CHECK(loaded.zeros(engine, &length, 1, F32, &tensor) == ESTAFETTE_OK);
  pid_t child = fork();
  if (child == 0) {
    int refused = loaded.create(0, &none) == ESTAFETTE_FORKED && loaded.zeros(engine, &length, 1, F32, &more) == ESTAFETTE_FORKED &&
                  loaded.query(tensor) == ESTAFETTE_FORKED && loaded.wait(tensor, 0) == ESTAFETTE_FORKED &&
                  strstr(loaded.last_error(), "start it by exec") != 0;
    loaded.release(tensor);
    loaded.destroy(engine);
    _exit(refused ? 7 : 1);
  }
  CHECK(status_of_child(child) == 7);
  CHECK(loaded.query(tensor) == ESTAFETTE_OK);
  loaded.release(tensor);
  CHECK(loaded.shutdown(engine, 10000000000ull) == ESTAFETTE_OK);
  loaded.destroy(engine);
  use(&loaded);
}

int main(int count, char **arguments) {
  if (count == 4) {
    a_copy_calls_its_own_functions_beside_one_in_the_global_scope(arguments[1], arguments[2]);
    return 7;
  }
  CHECK(count == 3);
  a_child_forked_before_first_use_may_use_it(arguments[1]);
  loading_starts_no_thread_and_unloading_is_harmless(arguments[1]);
  a_child_forked_after_first_use_is_refused(arguments[1]);
  /* In a child: what is in the global scope stays there. */
  pid_t child = fork();
  if (child == 0) {
    execl(arguments[0], arguments[0], arguments[1], arguments[2], "global", (char *)0);
    _exit(1);
  }
  CHECK(status_of_child(child) == 7);
  two_copies_in_one_process_exchange_tensors(arguments[1], arguments[2]);
  puts("done");
  return 0;
}
