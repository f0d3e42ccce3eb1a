/* A shared library of operators in C, one of each kind. It needs the header alone and links to nothing of Estafette.
 *
 *   cc -shared -fPIC -I bindings/c/include -o libarithmetic.so tests/operators/arithmetic.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "estafette.h"

/* Texts of failures with numbers in them stay valid until this thread calls an operator again. */
static _Thread_local char failure[128];

static int is_f32(const DLTensor *tensor) {
  return tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32 && tensor->dtype.lanes == 1;
}

/* Number of elements of a row-major tensor; -1 for one that is not. */
static int64_t length(const DLTensor *tensor) {
  int64_t count = 1;
  for (int32_t at = tensor->ndim - 1; at >= 0; at--) {
    if (tensor->strides != NULL && tensor->shape[at] > 1 && tensor->strides[at] != count) return -1;
    count *= tensor->shape[at];
  }
  return count;
}

static float *elements(const DLTensor *tensor) { return (float *)((char *)tensor->data + tensor->byte_offset); }

static const char *option(const estafette_attribute *attributes, size_t count, const char *key) {
  for (size_t at = 0; at < count; at++) {
    if (strcmp(attributes[at].key, key) == 0) return attributes[at].value;
  }
  return NULL;
}

/* axpy(x, y) -> out: out = alpha * x + y, in place where out is y. The destination is passed in. */
static const char *axpy(const DLTensor *const *inputs, size_t n_inputs, DLManagedTensorVersioned **outputs,
                        size_t n_outputs, const estafette_attribute *attributes, size_t n_attributes, void *stream,
                        void *context) {
  (void)n_inputs, (void)n_outputs, (void)context;
  const DLTensor *x = inputs[0], *y = inputs[1], *out = &outputs[0]->dl_tensor;
  if (stream != NULL) return "axpy runs on the host";
  if (!is_f32(x) || !is_f32(y) || !is_f32(out)) return "axpy takes float32";
  int64_t count = length(x);
  if (count < 0 || length(y) != count || length(out) != count) {
    snprintf(failure, sizeof failure, "axpy takes row-major tensors of one length, not of %lld, %lld and %lld",
             (long long)count, (long long)length(y), (long long)length(out));
    return failure;
  }
  const char *alpha = option(attributes, n_attributes, "alpha");
  float factor = alpha == NULL ? 1.0f : strtof(alpha, NULL);
  for (int64_t at = 0; at < count; at++) elements(out)[at] = factor * elements(x)[at] + elements(y)[at];
  return NULL;
}

/* outer(x, y): every product of an element of x and one of y. The shape is inferred. */
static const char *outer_shape(const DLTensor *const *inputs, size_t n_inputs, DLManagedTensorVersioned **outputs,
                               size_t n_outputs, const estafette_attribute *attributes, size_t n_attributes,
                               void *stream, void *context) {
  (void)n_inputs, (void)n_outputs, (void)attributes, (void)n_attributes, (void)stream, (void)context;
  DLTensor *out = &outputs[0]->dl_tensor;
  if (inputs[0]->ndim != 1 || inputs[1]->ndim != 1) return "outer takes vectors";
  out->dtype = inputs[0]->dtype;
  out->ndim = 2;
  out->shape[0] = inputs[0]->shape[0];
  out->shape[1] = inputs[1]->shape[0];
  return NULL;
}

static const char *outer(const DLTensor *const *inputs, size_t n_inputs, DLManagedTensorVersioned **outputs,
                         size_t n_outputs, const estafette_attribute *attributes, size_t n_attributes, void *stream,
                         void *context) {
  (void)n_inputs, (void)n_outputs, (void)attributes, (void)n_attributes, (void)stream, (void)context;
  const DLTensor *x = inputs[0], *y = inputs[1];
  if (!is_f32(x) || !is_f32(y) || length(x) < 0 || length(y) < 0) return "outer takes row-major float32";
  float *out = elements(&outputs[0]->dl_tensor);
  for (int64_t i = 0; i < x->shape[0]; i++) {
    for (int64_t j = 0; j < y->shape[0]; j++) *out++ = elements(x)[i] * elements(y)[j];
  }
  return NULL;
}

/* One allocation: the struct, its shape and its elements. */
typedef struct {
  DLManagedTensorVersioned managed;
  int64_t shape[1];
  int64_t strides[1];
  float elements[];
} vector;

static void delete_vector(DLManagedTensorVersioned *self) { free(self); }

static DLManagedTensorVersioned *make_vector(int64_t count) {
  vector *made = calloc(1, sizeof(vector) + (size_t)count * sizeof(float));
  if (made == NULL) return NULL;
  made->shape[0] = count;
  made->strides[0] = 1;
  made->managed.version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  made->managed.deleter = delete_vector;
  made->managed.dl_tensor = (DLTensor){.data = made->elements,
                                       .device = {kDLCPU, 0},
                                       .ndim = 1,
                                       .dtype = {kDLFloat, 32, 1},
                                       .shape = made->shape,
                                       .strides = made->strides};
  return &made->managed;
}

/* split(x): the elements below `at`, and the others. How many there are is known afterwards: it allocates. */
static const char *split(const DLTensor *const *inputs, size_t n_inputs, DLManagedTensorVersioned **outputs,
                         size_t n_outputs, const estafette_attribute *attributes, size_t n_attributes, void *stream,
                         void *context) {
  (void)n_inputs, (void)n_outputs, (void)stream;
  const DLTensor *x = inputs[0];
  if (!is_f32(x) || length(x) < 0) return "split takes row-major float32";
  const char *text = option(attributes, n_attributes, "at");
  float at = text == NULL ? 0.0f : strtof(text, NULL);
  int64_t below = 0, count = length(x);
  for (int64_t i = 0; i < count; i++) below += elements(x)[i] < at;
  outputs[0] = make_vector(below);
  outputs[1] = make_vector(count - below);
  if (outputs[0] == NULL || outputs[1] == NULL) return "split has no memory";
  float *parts[2] = {((vector *)outputs[0])->elements, ((vector *)outputs[1])->elements};
  for (int64_t i = 0; i < count; i++) *parts[!(elements(x)[i] < at)]++ = elements(x)[i];
  ++*(int *)context; /* counts its calls, to have something to drop */
  return NULL;
}

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const char *estafette_operators(estafette_operator_registrar *registrar) {
  estafette_operator_options options = {.size = sizeof options, .n_inputs = 2, .n_outputs = 1};
  options.kind = ESTAFETTE_OPERATOR_DESTINATION;
  options.flags = ESTAFETTE_OPERATOR_IN_PLACE;
  const char *refusal = registrar->add(registrar, "arithmetic.axpy", axpy, &options, NULL, NULL);
  if (refusal != NULL) return refusal;

  options.kind = ESTAFETTE_OPERATOR_INFERRED;
  options.flags = 0;
  options.infer = outer_shape;
  refusal = registrar->add(registrar, "arithmetic.outer", outer, &options, NULL, NULL);
  if (refusal != NULL) return refusal;

  options.kind = ESTAFETTE_OPERATOR_ALLOCATING;
  options.infer = NULL;
  options.n_inputs = 1;
  options.n_outputs = 2;
  int *calls = calloc(1, sizeof *calls);
  if (calls == NULL) return "no memory";
  refusal = registrar->add(registrar, "arithmetic.split", split, &options, calls, free);
  if (refusal != NULL) free(calls);
  return refusal;
}
