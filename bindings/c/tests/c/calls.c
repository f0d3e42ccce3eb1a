/* Expectations of users around the contract: versions, options that grow, texts, descriptions, exports, logs, results. */
#include "check.h"

static void the_library_says_which_it_is(void) {
  uint32_t major = 77, minor = 77;
  estafette_version(&major, &minor);
  CHECK(major == ESTAFETTE_VERSION_MAJOR && minor == ESTAFETTE_VERSION_MINOR);
  estafette_version(0, 0);
  CHECK(strchr(estafette_version_text(), '.') != 0);
  CHECK(strcmp(estafette_status_text(ESTAFETTE_TIMEOUT), "the time was up first") == 0);
  CHECK(strcmp(estafette_status_text(12345), "unknown status") == 0);
  CHECK(strcmp(estafette_last_error(), "") == 0);
  estafette_string_free(0);
}

static void options_grow_without_breaking_older_programs(void) {
  struct {
    estafette_engine_options known;
    uint64_t newer;
  } options;
  memset(&options, 0, sizeof options);
  estafette_engine *engine;
  REFUSED(ESTAFETTE_INVALID, "size is 0", estafette_engine_create(&options.known, &engine));
  options.known.size = sizeof options;
  options.known.workers = 1;
  OK(estafette_engine_create(&options.known, &engine));
  estafette_engine_destroy(engine);
  options.newer = 1;
  REFUSED(ESTAFETTE_INVALID, "does not know", estafette_engine_create(&options.known, &engine));
  options.newer = 0;
  options.known.workers = -2;
  REFUSED(ESTAFETTE_INVALID, "workers is -2", estafette_engine_create(&options.known, &engine));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_engine_create(0, 0));
  estafette_engine_destroy(0);
}

static void a_tensor_describes_itself(void) {
  estafette_engine *engine = engine_new(1);
  int64_t shape[2] = {2, 3}, found[4] = {0};
  DLDataType type = {kDLInt, 64, 1}, its_type;
  estafette_tensor *tensor;
  OK(estafette_zeros(engine, shape, 2, type, &tensor));
  int32_t ndim, read_only;
  OK(estafette_tensor_shape(tensor, found, 4, &ndim));
  CHECK(ndim == 2 && found[0] == 2 && found[1] == 3);
  found[1] = 9;
  OK(estafette_tensor_shape(tensor, found, 1, &ndim));
  CHECK(ndim == 2 && found[1] == 9);
  OK(estafette_tensor_dtype(tensor, &its_type));
  CHECK(its_type.code == kDLInt && its_type.bits == 64 && its_type.lanes == 1);
  DLDevice device;
  OK(estafette_tensor_device(tensor, &device));
  CHECK(device.device_type == kDLCPU && device.device_id == 0);
  DLTensor lent;
  OK(estafette_tensor_lend(tensor, &lent));
  CHECK(lent.ndim == 2 && lent.shape[0] == 2 && lent.strides[0] == 3 && lent.strides[1] == 1);
  void *data;
  OK(estafette_tensor_data(tensor, &data));
  CHECK(data == (char *)lent.data + lent.byte_offset && ((int64_t *)data)[5] == 0);
  OK(estafette_tensor_read_only(tensor, &read_only));
  CHECK(read_only == 0);
  shape[0] = -1;
  estafette_tensor *none;
  EXPECT(ESTAFETTE_INVALID, estafette_zeros(engine, shape, 2, type, &none));
  REFUSED(ESTAFETTE_INVALID, "shape is NULL", estafette_zeros(engine, 0, 2, type, &none));
  OK(estafette_tensor_retain(tensor));
  estafette_tensor_release(tensor);
  OK(estafette_query(tensor));
  estafette_tensor_release(tensor);
  estafette_tensor_release(0);
  OK(estafette_tensor_retain(0));
  estafette_engine_destroy(engine);
}

static void exports_are_leases_and_say_so(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  DLManagedTensorVersioned *reader, *writer, *copy, *alias;
  OK(estafette_export(tensor, 0, &reader));
  CHECK(reader->version.major == 1 && (reader->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
  options.access = ESTAFETTE_WRITE;
  options.nonblocking = 1;
  EXPECT(ESTAFETTE_PENDING, estafette_export(tensor, &options, &writer));
  options.nonblocking = 0;
  /* This very thread holds it, so waiting could never end. */
  REFUSED(ESTAFETTE_LEASE_HELD, "lease", estafette_export(tensor, &options, &writer));
  reader->deleter(reader);
  OK(estafette_export(tensor, &options, &writer));
  CHECK(!(writer->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
  ((float *)writer->dl_tensor.data)[1] = 5.0f;
  options.access = ESTAFETTE_ALIAS;
  OK(estafette_export(tensor, &options, &alias));
  CHECK(alias->dl_tensor.data == writer->dl_tensor.data);
  alias->deleter(alias);
  writer->deleter(writer);
  options.access = ESTAFETTE_READ;
  options.copy = 1;
  OK(estafette_export(tensor, &options, &copy));
  CHECK((copy->flags & DLPACK_FLAG_BITMASK_IS_COPIED) && ((float *)copy->dl_tensor.data)[1] == 5.0f);
  copy->deleter(copy);
  options.copy = 7;
  REFUSED(ESTAFETTE_INVALID, "copy is 7", estafette_export(tensor, &options, &copy));
  options.copy = 0;
  options.device.device_type = kDLCUDA;
  REFUSED(ESTAFETTE_INVALID, "device", estafette_export(tensor, &options, &copy));
  options.device.device_type = kDLCPU;
  options.stream = &options;
  REFUSED(ESTAFETTE_INVALID, "stream", estafette_export(tensor, &options, &copy));
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

static void legacy_delete(DLManagedTensor *self) { atomic_fetch_add(&((counted *)self->manager_ctx)->deleted, 1); }

static void a_legacy_struct_passes_both_ways_and_says_nothing_of_access(void) {
  estafette_engine *engine = engine_new(1);
  counted *memory = counted_new();
  DLManagedTensor managed = {memory->managed.dl_tensor, memory, legacy_delete}, *view;
  estafette_tensor *tensor = 0;
  static counting context;
  context.complete = 1;
  /* A refused struct stays the caller's. */
  REFUSED(ESTAFETTE_INVALID, "managed is NULL", estafette_import_legacy(engine, 0, 1, 0, &tensor));
  REFUSED(ESTAFETTE_INVALID, "writable is 2", estafette_import_legacy(engine, &managed, 2, 0, &tensor));
  managed.dl_tensor.ndim = -3;
  REFUSED(ESTAFETTE_INVALID, "ndim", estafette_import_legacy(engine, &managed, 1, 0, &tensor));
  managed.dl_tensor.ndim = 1;
  CHECK(deleted_after_flush(memory) == 0 && tensor == 0);

  /* Without the owner's consent the memory is read-only, and a legacy struct could not tell its consumer. */
  int32_t read_only;
  OK(estafette_import_legacy(engine, &managed, 0, 0, &tensor));
  OK(estafette_tensor_read_only(tensor, &read_only));
  CHECK(read_only == 1);
  EXPECT(ESTAFETTE_CONFLICT, estafette_submit(engine, "writes", counting_function, &context, counting_drop, 0, 0, &tensor, 1));
  REFUSED(ESTAFETTE_CONFLICT, "read-only", estafette_export_legacy(tensor, 0, &view));
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.copy = 1;
  OK(estafette_export_legacy(tensor, &options, &view));
  CHECK(view->dl_tensor.data != memory->values);
  view->deleter(view);
  OK(estafette_tensor_release(tensor));
  CHECK(deletions(memory) == 1);

  /* It is ready with its fence, and an export is a lease. */
  estafette_promise *promise;
  DLFence fence;
  OK(estafette_promise_create(0, &promise, &fence));
  OK(estafette_import_legacy(engine, &managed, 1, &fence, &tensor));
  fence.release(fence.context);
  options.copy = 0;
  options.nonblocking = 1;
  EXPECT(ESTAFETTE_PENDING, estafette_export_legacy(tensor, &options, &view));
  OK(estafette_promise_settle(promise, ESTAFETTE_OK, 0));
  OK(estafette_wait(tensor, 10 * SECOND));
  OK(estafette_export_legacy(tensor, 0, &view));
  CHECK(view->dl_tensor.data == memory->values && view->dl_tensor.shape[0] == 4);
  OK(estafette_submit(engine, "writes", counting_function, &context, counting_drop, 0, 0, &tensor, 1));
  REFUSED(ESTAFETTE_LEASE_HELD, "lease", estafette_wait(tensor, ESTAFETTE_FOREVER));
  CHECK(context.called == 0);
  view->deleter(view);
  OK(estafette_wait(tensor, 10 * SECOND));
  CHECK(context.called == 1);
  OK(estafette_tensor_release(tensor));
  while (deleted_after_flush(memory) < 2) usleep(1000);

  /* A struct without a deleter: the memory stays its owner's. */
  managed.deleter = 0;
  OK(estafette_import_legacy(engine, &managed, 1, 0, &tensor));
  OK(estafette_tensor_release(tensor));
  CHECK(deleted_after_flush(memory) == 2);
  OK(estafette_engine_destroy(engine));
  free(memory);
}

static void told(void *context, estafette_status status, const char *message) {
  counting *self = context;
  self->complete = status;
  if (message && strstr(message, "no luck")) self->complete = -100;
  atomic_fetch_add(&self->called, 1);
}

static void produce_four(void *context, estafette_op *op) {
  counted *memory = context;
  memory->values[3] = 4.0f;
  REFUSED(ESTAFETTE_INVALID, "op: its end is a tensor", estafette_op_complete(op, ESTAFETTE_OK, 0));
  REFUSED(ESTAFETTE_INVALID, "op: its end is a tensor", estafette_op_complete_after(op, 0));
  OK(estafette_op_complete_with(op, &memory->managed));
}

static void fail(void *context, estafette_op *op) {
  (void)context;
  /* A text of the system need not be UTF-8. */
  OK(estafette_op_complete(op, ESTAFETTE_FAILED, "no luck \xe9"));
}

static void results_are_promises_until_they_are_there(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *gate = floats(engine, 1), *result, *failed;
  DLDevice host = {kDLCPU, 0};
  estafette_lease *lease;
  OK(estafette_order_on(gate, ESTAFETTE_WRITE, host, 0, &lease));
  counted *memory = counted_new();
  OK(estafette_produce(engine, 0, produce_four, memory, 0, &gate, 1, &result));
  OK(estafette_produce(engine, 0, fail, 0, 0, &gate, 1, &failed));
  int32_t ndim;
  REFUSED(ESTAFETTE_NOT_DEFINED, "not defined", estafette_tensor_shape(result, 0, 0, &ndim));
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.nonblocking = 1;
  DLManagedTensorVersioned *view;
  EXPECT(ESTAFETTE_PENDING, estafette_export(result, &options, &view));
  static counting ready, poisoned;
  OK(estafette_on_ready(result, told, &ready, counting_drop));
  OK(estafette_on_ready(failed, told, &poisoned, counting_drop));
  REFUSED(ESTAFETTE_INVALID, "callback", estafette_on_ready(failed, 0, &poisoned, counting_drop));
  CHECK(ready.called == 0);
  OK(estafette_lease_release(lease, 0));
  OK(estafette_wait(result, 10 * SECOND));
  REFUSED(ESTAFETTE_FAILED, "no luck", estafette_wait(failed, 10 * SECOND));
  OK(estafette_wait_all(engine, 10 * SECOND));
  for (int i = 0; i < 10000 && (!ready.dropped || !poisoned.dropped); i++) nap(1);
  CHECK(ready.called == 1 && ready.complete == ESTAFETTE_OK && ready.dropped == 1);
  CHECK(poisoned.called == 1 && poisoned.complete == -100 && poisoned.dropped == 1);
  OK(estafette_export(result, &options, &view));
  CHECK(((float *)view->dl_tensor.data)[3] == 4.0f);
  estafette_tensor_release(result);
  CHECK(deleted_after_flush(memory) == 0);
  view->deleter(view);
  CHECK(deletions(memory) == 1);
  free(memory);
  /* Without its failure it is still no memory. */
  OK(estafette_clear_error(failed));
  EXPECT(ESTAFETTE_NOT_DEFINED, estafette_export(failed, 0, &view));
  EXPECT(ESTAFETTE_NOT_DEFINED, estafette_export(failed, &options, &view));
  estafette_tensor_release(failed);
  estafette_tensor_release(gate);
  estafette_engine_destroy(engine);
}

static void a_result_is_called_off_by_its_operation(void) {
  estafette_engine *engine = engine_new(1);
  static counting work;
  estafette_tensor *gate = floats(engine, 1), *result;
  DLDevice host = {kDLCPU, 0};
  estafette_lease *lease;
  estafette_op *op;
  OK(estafette_order_on(gate, ESTAFETTE_WRITE, host, 0, &lease));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_produce_with(engine, 0, counting_function, &work, counting_drop, &gate, 1, 0, &op));
  OK(estafette_produce_with(engine, 0, counting_function, &work, counting_drop, &gate, 1, &result, &op));
  EXPECT(ESTAFETTE_PENDING, estafette_op_query(op));
  OK(estafette_op_cancel(op));
  EXPECT(ESTAFETTE_CANCELLED, estafette_wait(result, 10 * SECOND));
  CHECK(drops(&work) == 1 && work.called == 0);
  OK(estafette_lease_release(lease, 0));
  OK(estafette_op_release(op));
  estafette_tensor_release(result);
  /* The handle is the one that the function is given. */
  counted *memory = counted_new();
  static counting made;
  OK(estafette_produce_with(engine, 0, counting_function, &made, 0, &gate, 1, &result, &op));
  CHECK(begun(&made) == op);
  OK(estafette_op_complete_with(op, &memory->managed));
  OK(estafette_op_wait(op, 10 * SECOND));
  OK(estafette_wait(result, 10 * SECOND));
  OK(estafette_op_release(op));
  estafette_tensor_release(result);
  CHECK(deletions(memory) == 1);
  free(memory);
  estafette_tensor_release(gate);
  estafette_engine_destroy(engine);
}

static void leases_have_options_and_are_taken_together(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *both[2] = {floats(engine, 1), floats(engine, 1)};
  int32_t accesses[2] = {ESTAFETTE_READ, ESTAFETTE_WRITE};
  estafette_lease *held, *leases[2], *none = 0;
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.access = ESTAFETTE_WRITE;
  OK(estafette_order_on_with(both[0], &options, &held));
  options.nonblocking = 1;
  EXPECT(ESTAFETTE_PENDING, estafette_order_on_with(both[0], &options, &none));
  EXPECT(ESTAFETTE_PENDING, estafette_lease_all(engine, both, accesses, 2, &options, leases));
  options.nonblocking = 0;
  options.timeout_ns = SECOND / 100;
  /* Its own thread holds the lease, which the wait may find first. */
  int late = estafette_order_on_with(both[0], &options, &none);
  CHECK(!none && (late == ESTAFETTE_TIMEOUT || late == ESTAFETTE_LEASE_HELD));
  OK(estafette_lease_release(held, 0));
  OK(estafette_lease_all(engine, both, accesses, 2, 0, leases));
  options.access = ESTAFETTE_READ;
  options.nonblocking = 1;
  OK(estafette_order_on_with(both[0], &options, &held));
  OK(estafette_lease_release(held, 0));
  EXPECT(ESTAFETTE_PENDING, estafette_order_on_with(both[1], &options, &held));
  for (int i = 0; i < 2; i++) OK(estafette_lease_release(leases[i], 0));
  /* One access for all. */
  OK(estafette_lease_all(engine, both, 0, 2, &options, leases));
  for (int i = 0; i < 2; i++) OK(estafette_lease_release(leases[i], 0));
  OK(estafette_lease_all(engine, 0, 0, 0, 0, 0));
  accesses[0] = ESTAFETTE_ALIAS;
  EXPECT(ESTAFETTE_INVALID, estafette_lease_all(engine, both, accesses, 2, 0, leases));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_lease_all(engine, both, 0, 2, 0, 0));
  options.copy = 1;
  REFUSED(ESTAFETTE_INVALID, "copy is 1", estafette_order_on_with(both[0], &options, &held));
  options.copy = 0;
  options.device.device_type = kDLCUDA;
  REFUSED(ESTAFETTE_INVALID, "the memory is not on", estafette_order_on_with(both[0], &options, &held));
  static counting maker;
  estafette_tensor *result;
  OK(estafette_produce(engine, 0, counting_function, &maker, 0, 0, 0, &result));
  options.nonblocking = 0;
  REFUSED(ESTAFETTE_TIMEOUT, "within 10ms", estafette_order_on_with(result, &options, &held));
  OK(estafette_op_complete(begun(&maker), ESTAFETTE_FAILED, 0));
  estafette_tensor_release(result);
  for (int i = 0; i < 2; i++) estafette_tensor_release(both[i]);
  estafette_engine_destroy(engine);
}

static void memory_is_made_and_copied_on_a_device(void) {
  estafette_engine *engine = engine_new(1);
  DLDevice host = {kDLCPU, 0}, unknown = {kDLCUDA, 77}, found;
  DLDataType type = {kDLFloat, 32, 1};
  int64_t length = 4;
  estafette_tensor *x, *copy;
  OK(estafette_empty(engine, host, &length, 1, type, &x));
  EXPECT(ESTAFETTE_INVALID, estafette_empty(engine, unknown, &length, 1, type, &copy));
  void *data, *copied;
  OK(estafette_tensor_data(x, &data));
  ((float *)data)[3] = 5.0f;
  OK(estafette_copy(engine, x, host, &copy));
  OK(estafette_wait(copy, 10 * SECOND));
  OK(estafette_tensor_data(copy, &copied));
  OK(estafette_tensor_device(copy, &found));
  CHECK(copied != data && ((float *)copied)[3] == 5.0f && found.device_type == kDLCPU);
  estafette_tensor_release(copy);
  OK(estafette_copy(engine, x, unknown, &copy));
  CHECK(estafette_wait(copy, 10 * SECOND) < 0);
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_copy(engine, x, host, 0));
  estafette_tensor_release(copy);
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void stalled(void *context, int32_t level, const char *message) {
  if (level == 2 && strstr(message, "waits for ever")) atomic_fetch_add((atomic_int *)context, 1);
}

static void a_watchdog_logs_what_is_stalled(void) {
  static atomic_int warnings;
  static counting gate, waits;
  OK(estafette_set_log(2, stalled, &warnings, 0));
  estafette_engine_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.workers = 1;
  options.watchdog_ns = SECOND / 100;
  estafette_engine *engine;
  OK(estafette_engine_create(&options, &engine));
  estafette_tensor *x = floats(engine, 1);
  OK(estafette_submit(engine, "gate", counting_function, &gate, 0, 0, 0, &x, 1));
  OK(estafette_submit(engine, "waits for ever", counting_function, &waits, 0, &x, 1, 0, 0));
  for (int look = 0; look < 10000 && !atomic_load(&warnings); look++) nap(1);
  CHECK(atomic_load(&warnings) >= 1);
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  OK(estafette_op_complete(begun(&waits), ESTAFETTE_OK, 0));
  estafette_tensor_release(x);
  OK(estafette_engine_shutdown(engine, 10 * SECOND));
  estafette_engine_destroy(engine);
  OK(estafette_set_log(0, 0, 0, 0));
}

static void fail_as(void *context, estafette_op *op) {
  OK(estafette_op_complete(op, *(int *)context, "fell off the bus"));
}

static void an_operation_keeps_the_status_that_it_ends_with(void) {
  static int statuses[][2] = {{ESTAFETTE_DEVICE, ESTAFETTE_DEVICE},
                              {ESTAFETTE_PEER_DIED, ESTAFETTE_PEER_DIED},
                              {ESTAFETTE_CANCELLED, ESTAFETTE_CANCELLED},
                              {ESTAFETTE_CONFLICT, ESTAFETTE_FAILED}};
  estafette_engine *engine = engine_new(1);
  for (int i = 0; i < 4; i++) {
    estafette_tensor *tensor = floats(engine, 1);
    estafette_op *op;
    OK(estafette_submit_with(engine, 0, fail_as, statuses[i], 0, 0, 0, &tensor, 1, &op));
    REFUSED(statuses[i][1], "fell off the bus", estafette_op_wait(op, 10 * SECOND));
    REFUSED(statuses[i][1], "fell off the bus", estafette_wait(tensor, 10 * SECOND));
    OK(estafette_op_release(op));
    OK(estafette_tensor_release(tensor));
  }
  OK(estafette_engine_destroy(engine));
}

static void *complete_with(void *op) {
  counted *memory = counted_new();
  nap(800);
  OK(estafette_op_complete_with(op, &memory->managed));
  return memory;
}

static void an_export_of_a_promise_waits_no_longer_than_its_limit(void) {
  estafette_engine *engine = engine_new(2);
  estafette_tensor *result;
  static counting maker, reader;
  OK(estafette_produce(engine, 0, counting_function, &maker, 0, 0, 0, &result));
  OK(estafette_submit(engine, "reader", counting_function, &reader, 0, &result, 1, 0, 0));
  pthread_t thread;
  pthread_create(&thread, 0, complete_with, begun(&maker));
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.access = ESTAFETTE_WRITE;
  options.timeout_ns = SECOND;
  struct timespec began, ended;
  DLManagedTensorVersioned *view;
  clock_gettime(CLOCK_MONOTONIC, &began);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_export(result, &options, &view));
  clock_gettime(CLOCK_MONOTONIC, &ended);
  CHECK(ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) * 1e-9 < 1.6);
  void *memory;
  pthread_join(thread, &memory);
  OK(estafette_op_complete(begun(&reader), ESTAFETTE_OK, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  estafette_tensor_release(result);
  CHECK(deletions(memory) == 1);
  free(memory);
  estafette_engine_destroy(engine);
}

static void *delete_later(void *view) {
  nap(30);
  ((DLManagedTensorVersioned *)view)->deleter(view);
  return 0;
}

static void a_view_or_lease_of_any_thread_is_waited_for_where_it_was_taken(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *x = floats(engine, 4);
  estafette_export_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  DLManagedTensorVersioned *view, *next;
  estafette_lease *lease;
  options.any_thread = 2;
  REFUSED(ESTAFETTE_INVALID, "any_thread is 2", estafette_export(x, &options, &view));
  REFUSED(ESTAFETTE_INVALID, "any_thread is 2", estafette_order_on_with(x, &options, &lease));
  options.any_thread = 1;
  OK(estafette_export(x, &options, &view));
  pthread_t thread;
  pthread_create(&thread, 0, delete_later, view);
  options.access = ESTAFETTE_WRITE;
  OK(estafette_export(x, &options, &next));
  pthread_join(thread, 0);
  next->deleter(next);
  OK(estafette_order_on_with(x, &options, &lease));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 20));
  OK(estafette_lease_release(lease, 0));
  OK(estafette_wait(x, 10 * SECOND));
  options.any_thread = 0;
  OK(estafette_order_on_with(x, &options, &lease));
  REFUSED(ESTAFETTE_LEASE_HELD, "by this thread", estafette_wait(x, 10 * SECOND));
  OK(estafette_lease_release(lease, 0));
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void the_device_of_a_promise_is_checked_when_it_has_memory(void) {
  estafette_engine *engine = engine_new(-1);
  counted *memory = counted_new();
  estafette_tensor *result;
  estafette_lease *lease;
  DLDevice other = {kDLCUDA, 7};
  OK(estafette_produce(engine, 0, produce_four, memory, 0, 0, 0, &result));
  REFUSED(ESTAFETTE_INVALID, "the memory is not on", estafette_order_on(result, ESTAFETTE_READ, other, 0, &lease));
  estafette_tensor_release(result);
  CHECK(deletions(memory) == 1);
  free(memory);
  estafette_engine_destroy(engine);
}

typedef struct {
  estafette_tensor *tensor;
  DLManagedTensorVersioned *view;
} lending;

static void lend_and_keep(void *context, estafette_op *op) {
  lending *self = context;
  OK(estafette_op_export(op, self->tensor, &self->view));
  CHECK(!(self->view->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
  ((float *)self->view->dl_tensor.data)[0] = 3.0f;
  REFUSED(ESTAFETTE_INVALID, "op: its end is no tensor", estafette_op_complete_with(op, self->view));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
  REFUSED(ESTAFETTE_INVALID, "op", estafette_op_export(op, self->tensor, &self->view));
}

static void a_view_that_outlives_its_operation_is_a_lease(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  static lending context;
  context.tensor = tensor;
  static counting writer;
  writer.complete = 1;
  estafette_submit_options lend;
  memset(&lend, 0, sizeof lend);
  lend.size = sizeof lend;
  lend.name = "lend";
  estafette_op *lent;
  OK(estafette_submit_with(engine, &lend, lend_and_keep, &context, 0, 0, 0, &tensor, 1, &lent));
  OK(estafette_submit(engine, "writer", counting_function, &writer, 0, 0, 0, &tensor, 1));
  OK(estafette_op_wait(lent, 10 * SECOND));
  OK(estafette_op_release(lent));
  /* If the view did not hold it up, the writer would run now. */
  nap(20);
  CHECK(writer.called == 0);
  char *text;
  OK(estafette_diagnose(engine, &text));
  CHECK(strstr(text, "writer") && strstr(text, "lend"));
  estafette_string_free(text);
  context.view->deleter(context.view);
  OK(estafette_wait(tensor, 10 * SECOND));
  CHECK(writer.called == 1);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);
}

static void waiting_inside_of_an_operation_for_itself_is_refused(void *context, estafette_op *op) {
  EXPECT(ESTAFETTE_WOULD_DEADLOCK, estafette_wait(*(estafette_tensor **)context, ESTAFETTE_FOREVER));
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void shutdown_and_windows_end_in_statuses(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *tensor = floats(engine, 4);
  OK(estafette_submit(engine, "itself", waiting_inside_of_an_operation_for_itself_is_refused, &tensor, 0, 0, 0, &tensor, 1));
  OK(estafette_wait_all(engine, 10 * SECOND));
  estafette_stats stats;
  memset(&stats, 0, sizeof stats);
  EXPECT(ESTAFETTE_INVALID, estafette_engine_stats(engine, &stats));
  stats.size = sizeof stats;
  OK(estafette_engine_stats(engine, &stats));
  CHECK(stats.in_flight_limit == 4096 && stats.in_flight == 0);
  struct { estafette_stats stats; uint64_t newer; } larger;
  memset(&larger, 17, sizeof larger);
  larger.stats.size = sizeof larger;
  OK(estafette_engine_stats(engine, &larger.stats));
  CHECK(larger.stats.in_flight_limit == 4096 && larger.newer == 0);
  OK(estafette_engine_shutdown(engine, 10 * SECOND));
  static counting context;
  EXPECT(ESTAFETTE_SHUTDOWN, estafette_submit(engine, 0, counting_function, &context, counting_drop, 0, 0, 0, 0));
  CHECK(context.called == 0 && context.dropped == 0);
  estafette_tensor_release(tensor);
  estafette_engine_destroy(engine);

  estafette_engine_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.workers = 1;
  options.in_flight_limit = 1;
  OK(estafette_engine_create(&options, &engine));
  static counting first, second;
  estafette_submit_options submit;
  memset(&submit, 0, sizeof submit);
  submit.size = sizeof submit;
  submit.nonblocking = 1;
  submit.priority = 3;
  submit.name = "limited";
  estafette_op *op;
  OK(estafette_submit_with(engine, &submit, counting_function, &first, counting_drop, 0, 0, 0, 0, &op));
  REFUSED(ESTAFETTE_IN_FLIGHT_LIMIT, "in-flight limit",
          estafette_submit_with(engine, &submit, counting_function, &second, counting_drop, 0, 0, 0, 0, 0));
  CHECK(second.dropped == 0);
  OK(estafette_op_complete(begun(&first), ESTAFETTE_CANCELLED, "not today"));
  REFUSED(ESTAFETTE_CANCELLED, "not today", estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_release(op));
  OK(estafette_wait_all(engine, 10 * SECOND));
  estafette_engine_destroy(engine);
}

static atomic_int skips;

static void note_skip(void *context, estafette_status status, const char *message) {
  counting *self = context;
  CHECK(self->called == 0 && self->dropped == 0);
  CHECK(status == ESTAFETTE_FAILED ? strstr(message, "the disk is full") != 0 : status == ESTAFETTE_CANCELLED);
  atomic_fetch_add(&skips, 1);
}

static void fail_with(void *context, estafette_op *op) { OK(estafette_op_complete(op, ESTAFETTE_FAILED, context)); }

static void an_operation_that_is_skipped_calls_on_skip_before_its_context_goes(void) {
  estafette_engine *engine = engine_new(1);
  estafette_tensor *failed = floats(engine, 4), *held = floats(engine, 4), *result;
  static counting first, second, third, gate, runs;
  estafette_submit_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.name = "all_reduce";
  options.on_skip = note_skip;
  OK(estafette_submit(engine, "backward", fail_with, "the disk is full", 0, 0, 0, &failed, 1));
  OK(estafette_submit_with(engine, &options, counting_function, &first, counting_drop, &failed, 1, 0, 0, 0));
  OK(estafette_produce(engine, &options, counting_function, &second, counting_drop, &failed, 1, &result));
  REFUSED(ESTAFETTE_FAILED, "the disk is full", estafette_wait(result, 10 * SECOND));
  /* A cancelled one is called in its turn, behind the gate. */
  OK(estafette_submit(engine, "gate", counting_function, &gate, 0, 0, 0, &held, 1));
  estafette_op *op;
  OK(estafette_submit_with(engine, &options, counting_function, &third, counting_drop, &held, 1, &held, 1, &op));
  OK(estafette_op_cancel(op));
  REFUSED(ESTAFETTE_CANCELLED, "cancelled", estafette_op_wait(op, 10 * SECOND));
  CHECK(atomic_load(&skips) == 2 && third.dropped == 0);
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  OK(estafette_op_release(op));
  OK(estafette_submit_with(engine, &options, counting_function, &runs, counting_drop, 0, 0, 0, 0, 0));
  OK(estafette_op_complete(begun(&runs), ESTAFETTE_OK, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  CHECK(drops(&first) == 1 && drops(&second) == 1 && drops(&third) == 1 && drops(&runs) == 1);
  CHECK(atomic_load(&skips) == 3);
  estafette_tensor_release(failed);
  estafette_tensor_release(held);
  estafette_tensor_release(result);
  estafette_engine_destroy(engine);
}

static atomic_int logged;

static void note_log(void *context, int32_t level, const char *message) {
  (void)context;
  CHECK(level >= 1 && level <= 5 && message != 0);
  atomic_fetch_add(&logged, 1);
}

static void log_events_go_where_the_program_says(void) {
  static counting first, second;
  REFUSED(ESTAFETTE_INVALID, "level", estafette_set_log(0, note_log, &first, counting_drop));
  OK(estafette_set_log(5, note_log, &first, counting_drop));
  OK(estafette_set_log(2, note_log, &second, counting_drop));
  CHECK(first.dropped == 1 && second.dropped == 0);
  /* Memory whose last use can never be known to be over is leaked, and that is logged. */
  estafette_engine *engine = engine_new(1);
  estafette_promise *promise;
  DLFence fence;
  OK(estafette_promise_create(0, &promise, &fence));
  counted *memory = counted_new();
  estafette_tensor *tensor;
  OK(estafette_import(engine, &memory->managed, 0, &tensor));
  OK(estafette_tensor_release_after(tensor, &fence));
  fence.release(fence.context);
  OK(estafette_promise_settle(promise, ESTAFETTE_DEVICE, "the device fell off the bus"));
  for (int i = 0; i < 10000 && !atomic_load(&logged); i++) nap(1);
  CHECK(atomic_load(&logged) > 0 && atomic_load(&memory->deleted) == 0);
  OK(estafette_set_log(0, 0, 0, 0));
  /* The thread that logs may not have returned from the callback yet. */
  CHECK(drops(&second) == 1);
  estafette_engine_destroy(engine);
  free(memory);
}

static void contexts_get_numbers_that_devices_carry(void) {
  int one, other;
  int32_t first = -1, again = -1, second = -1;
  void *found = 0;
  OK(estafette_register_context(kDLVulkan, &one, &first));
  OK(estafette_register_context(kDLVulkan, &one, &again));
  OK(estafette_register_context(kDLVulkan, &other, &second));
  CHECK(first == again && first != second);
  OK(estafette_resolve_context(kDLVulkan, first, &found));
  CHECK(found == &one);
  OK(estafette_unregister_context(kDLVulkan, first));
  OK(estafette_resolve_context(kDLVulkan, first, &found));
  OK(estafette_unregister_context(kDLVulkan, first));
  REFUSED(ESTAFETTE_INVALID, "registered no more", estafette_resolve_context(kDLVulkan, first, &found));
  REFUSED(ESTAFETTE_INVALID, "registered no more", estafette_unregister_context(kDLVulkan, first));
  REFUSED(ESTAFETTE_INVALID, "no context is registered", estafette_resolve_context(kDLMetal, 3, &found));
  REFUSED(ESTAFETTE_INVALID, "numbers of their own", estafette_register_context(kDLCPU, &one, &first));
  REFUSED(ESTAFETTE_INVALID, "native_handle is NULL", estafette_register_context(kDLVulkan, 0, &first));
  REFUSED(ESTAFETTE_INVALID, "device_id is NULL", estafette_register_context(kDLVulkan, &one, 0));
  REFUSED(ESTAFETTE_INVALID, "native_handle is NULL", estafette_resolve_context(kDLVulkan, second, 0));
  OK(estafette_unregister_context(kDLVulkan, second));
}

int main(void) {
  RUN(the_library_says_which_it_is);
  RUN(options_grow_without_breaking_older_programs);
  RUN(a_tensor_describes_itself);
  RUN(exports_are_leases_and_say_so);
  RUN(a_legacy_struct_passes_both_ways_and_says_nothing_of_access);
  RUN(results_are_promises_until_they_are_there);
  RUN(a_result_is_called_off_by_its_operation);
  RUN(leases_have_options_and_are_taken_together);
  RUN(memory_is_made_and_copied_on_a_device);
  RUN(a_watchdog_logs_what_is_stalled);
  RUN(an_operation_keeps_the_status_that_it_ends_with);
  RUN(an_export_of_a_promise_waits_no_longer_than_its_limit);
  RUN(a_view_or_lease_of_any_thread_is_waited_for_where_it_was_taken);
  RUN(the_device_of_a_promise_is_checked_when_it_has_memory);
  RUN(a_view_that_outlives_its_operation_is_a_lease);
  RUN(shutdown_and_windows_end_in_statuses);
  RUN(an_operation_that_is_skipped_calls_on_skip_before_its_context_goes);
  RUN(log_events_go_where_the_program_says);
  RUN(contexts_get_numbers_that_devices_carry);
  return 0;
}
