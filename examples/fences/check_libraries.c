/* Do the pool and the reader keep the rules of dlpack_fence.h? */
#include "dlpack_fence_check.h"
#include "gate.h"
#include "pool.h"
#include "reader.h"

/* The pool as a producer: its task takes the gate's tensor, so that its own tensor is there when the gate is open. */
typedef struct { gate *input; pool_tensor *output; } passed;

static void *open_pool(void) { return pool_create(2); }
static void *new_tensor(void *library) {
  passed *made = malloc(sizeof *made);
  made->input = gate_new();
  made->output = pool_scale(library, &made->input->raw, 2);
  return made;
}
static void finish(void *library, void *tensor, int well) { (void)library, gate_open(((passed *)tensor)->input, well); }
static DLManagedTensorFenced *give(void *library, void *tensor) { return (void)library, pool_export(((passed *)tensor)->output); }
static void overwrite(void *library, void *tensor) { (void)library, pool_refill(((passed *)tensor)->output, 1000, 0); }
static void drop(void *library, void *tensor) { (void)library, pool_drop(((passed *)tensor)->output); }
static int live(void *library) { return pool_live(library); }

/* The pool as a consumer. */
static void *take_by_pool(void *library, DLManagedTensorFenced *tensor) {
  pool_tensor *made = pool_scale(library, tensor, 1);
  return made ? pool_export(made) : NULL;
}
static int32_t result_of_pool(void *library, void *use, double *sum) {
  DLManagedTensorFenced *made = use;
  int32_t status = ((void)library, dlpack_fence_query(&made->ready));
  *sum = 0;
  if (status == DLPACK_FENCE_DONE)
    for (int64_t i = 0; i < made->managed.dl_tensor.shape[0]; i++) *sum += ((float *)made->managed.dl_tensor.data)[i];
  return status;
}

/* The reader. */
static void *open_reader(void) { return reader_create(); }
static void *take_by_reader(void *library, DLManagedTensorFenced *tensor) { return reader_sum(library, tensor); }
static int32_t result_of_reader(void *library, void *use, double *value) {
  (void)library;
  if (!sum_finished(use)) return DLPACK_FENCE_PENDING;
  return sum_get(use, value) ? DLPACK_FENCE_FAILED : DLPACK_FENCE_DONE;
}

int main(void) {
  const DLFenceProducer producer = {open_pool, new_tensor, finish, give, overwrite, drop, live};
  const DLFenceConsumer pool_consumer = {open_pool, take_by_pool, result_of_pool};
  const DLFenceConsumer reader_consumer = {open_reader, take_by_reader, result_of_reader};
  int failed = dlpack_fence_check_producer(&producer);
  failed += dlpack_fence_check_consumer(&pool_consumer);
  failed += dlpack_fence_check_consumer(&reader_consumer);
  return failed != 0;
}
