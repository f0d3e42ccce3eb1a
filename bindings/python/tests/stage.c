/* A library in C beside the Python package: it adds a number to each element, as an operation of the engine that Python uses.
 *
 * With STAGE_LINKED it calls the functions of the package's library, which it is linked to; else those of the table that it is given.
 */
#include <stdlib.h>

#include "estafette.h"

typedef struct {
  const estafette_api *api;
  estafette_tensor *from, *to;
  float number;
} stage;

static void add(void *context, estafette_op *op) {
  stage *self = context;
  DLTensor from, to;
  estafette_status status = self->api->tensor_lend(self->from, &from);
  if (status == ESTAFETTE_OK) status = self->api->tensor_lend(self->to, &to);
  if (status != ESTAFETTE_OK) {
    self->api->op_complete(op, status, self->api->last_error());
    return;
  }
  const float *source = (const float *)((const char *)from.data + from.byte_offset);
  float *target = (float *)((char *)to.data + to.byte_offset);
  for (int64_t at = 0; at < from.shape[0]; at++) target[at] = source[at] + self->number;
  self->api->op_complete(op, ESTAFETTE_OK, NULL);
}

static void drop(void *context) {
  stage *self = context;
  self->api->tensor_release(self->from);
  self->api->tensor_release(self->to);
  free(self);
}

/* Submits the operation. Adopts the handles of the two tensors, in every case; those of the engine and the operation are the caller's. */
int32_t stage_submit(const estafette_api *given, estafette_engine *engine, estafette_tensor *from, estafette_tensor *to, float number,
                     estafette_op **op) {
#ifdef STAGE_LINKED
  const estafette_api *api = estafette_get_api();
  (void)given;
#else
  const estafette_api *api = given;
#endif
  stage *self = malloc(sizeof *self);
  *self = (stage){.api = api, .from = from, .to = to, .number = number};
  estafette_submit_options options = {.size = sizeof options, .name = "stage in C"};
  int32_t status = api->submit_with(engine, &options, add, self, drop, &from, 1, &to, 1, op);
  if (status != ESTAFETTE_OK) drop(self);
  return status;
}

static void legacy_delete(DLManagedTensor *self) { free(self); }

/* A tensor of 1, 2 and 3 in the struct from before DLPack 1.0, of a library that lets others write. */
int32_t stage_legacy(const estafette_api *api, estafette_engine *engine, estafette_tensor **out) {
  static int64_t shape[1] = {3};
  static float values[3] = {1, 2, 3};
  DLManagedTensor *managed = calloc(1, sizeof *managed);
  managed->deleter = legacy_delete;
  managed->dl_tensor.data = values;
  managed->dl_tensor.device.device_type = kDLCPU;
  managed->dl_tensor.ndim = 1;
  managed->dl_tensor.dtype = (DLDataType){.code = kDLFloat, .bits = 32, .lanes = 1};
  managed->dl_tensor.shape = shape;
  int32_t status = api->import_legacy(engine, managed, 1, 0, out);
  if (status != ESTAFETTE_OK) free(managed);
  return status;
}

/* A consumer that knows no DLPack 1.0 reads this. */
int32_t stage_first(const estafette_api *api, estafette_tensor *tensor, float *first) {
  DLManagedTensor *view;
  int32_t status = api->export_legacy(tensor, 0, &view);
  if (status != ESTAFETTE_OK) return status;
  *first = *(float *)view->dl_tensor.data;
  view->deleter(view);
  return status;
}

/* A tensor that C makes. */
int32_t stage_zeros(const estafette_api *api, estafette_engine *engine, int64_t length, estafette_tensor **out) {
  DLDataType type = {.code = kDLFloat, .bits = 32, .lanes = 1};
  return api->zeros(engine, &length, 1, type, out);
}

/* Waits for a tensor. */
void stage_wait(const estafette_api *api, estafette_tensor *tensor, int32_t *status) {
  *status = api->wait(tensor, ESTAFETTE_FOREVER);
}
