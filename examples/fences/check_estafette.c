/* Does Estafette keep the rules of dlpack_fence.h? */
#include "dlpack_fence_check.h"
#include "gate.h"

#include <estafette.h>
#include <stdio.h>

#define OK(call)                                                                                \
  do {                                                                                          \
    if ((call) != ESTAFETTE_OK) {                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, estafette_last_error()); \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

static void *open_engine(void) {
  estafette_engine *engine;
  OK(estafette_engine_create(NULL, &engine));
  return engine;
}

/* As a producer, of memory that the gate lends. */
typedef struct { gate *input; estafette_tensor *taken; } lent;
static int tensors; /* of this process */
static lent *all[8];

static void *new_tensor(void *engine) {
  lent *made = malloc(sizeof *made);
  made->input = gate_new();
  OK(estafette_import_fenced(engine, &made->input->raw, &made->taken));
  return all[tensors++] = made;
}
static void finish(void *engine, void *tensor, int well) { (void)engine, gate_open(((lent *)tensor)->input, well); }
static DLManagedTensorFenced *give(void *engine, void *tensor) {
  DLManagedTensorFenced *given;
  (void)engine;
  OK(estafette_export_fenced(((lent *)tensor)->taken, ESTAFETTE_READ, &given));
  return given;
}
static void write_over(void *context, estafette_op *op) {
  float *values = ((lent *)context)->input->values;
  for (int i = 0; i < GATE_FLOATS; i++) values[i] = 1000.0f + (float)i;
  OK(estafette_op_complete(op, ESTAFETTE_OK, NULL));
}
static void overwrite(void *engine, void *tensor) {
  OK(estafette_submit(engine, "overwrite", write_over, tensor, NULL, NULL, 0, &((lent *)tensor)->taken, 1));
}
static void drop(void *engine, void *tensor) { (void)engine, (void)estafette_tensor_release(((lent *)tensor)->taken); }
static int live(void *engine) {
  int count = 0;
  (void)engine;
  for (int i = 0; i < tensors; i++) count += !gate_deleted(all[i]->input);
  return count;
}

/* As a consumer: an operation sums. */
typedef struct { estafette_tensor *from, *output; double sum; } summing;

static void add_up(void *context, estafette_op *op) {
  summing *self = context;
  float *values;
  OK(estafette_tensor_data(self->from, (void **)&values));
  self->sum = 0;
  for (int i = 0; i < GATE_FLOATS; i++) self->sum += values[i];
  estafette_tensor *from = self->from;
  OK(estafette_op_complete(op, ESTAFETTE_OK, NULL));
  OK(estafette_tensor_release(from));
}
static void *take(void *engine, DLManagedTensorFenced *tensor) {
  summing *made = calloc(1, sizeof *made);
  int64_t one = 1;
  DLDataType f32 = {kDLFloat, 32, 1};
  OK(estafette_import_fenced(engine, tensor, &made->from));
  OK(estafette_zeros(engine, &one, 1, f32, &made->output));
  OK(estafette_submit(engine, "sum", add_up, made, NULL, &made->from, 1, &made->output, 1));
  return made;
}
static int32_t result(void *engine, void *use, double *sum) {
  summing *made = use;
  estafette_status status = ((void)engine, estafette_query(made->output));
  if (status == ESTAFETTE_OK) *sum = made->sum;
  if (status < 0 && made->from) {
    OK(estafette_tensor_release(made->from));
    made->from = NULL;
  }
  return status;
}

int main(void) {
  const DLFenceProducer producer = {open_engine, new_tensor, finish, give, overwrite, drop, live};
  const DLFenceConsumer consumer = {open_engine, take, result};
  return dlpack_fence_check_producer(&producer) + dlpack_fence_check_consumer(&consumer) != 0;
}
