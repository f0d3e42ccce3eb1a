/* Operators from C: registered, called by name behind promises, failing, listed, taken out. */
#include "check.h"

typedef struct {
  atomic_int called;
  atomic_int dropped;
} watched;

static void watched_drop(void *context) { atomic_fetch_add(&((watched *)context)->dropped, 1); }

/* Adds `by` to every element, in place if asked for. */
static const char *add(const DLTensor *const *inputs, size_t n_inputs, DLManagedTensorVersioned **outputs, size_t n_outputs,
                       const estafette_attribute *attributes, size_t n_attributes, void *stream, void *context) {
  (void)stream;
  if (n_inputs != 1 || n_outputs != 1) return "not as registered";
  atomic_fetch_add(&((watched *)context)->called, 1);
  float by = 1;
  for (size_t at = 0; at < n_attributes; at++) {
    if (strcmp(attributes[at].key, "by")) return "an attribute that is not known";
    by = strtof(attributes[at].value, 0);
  }
  const float *from = (const float *)inputs[0]->data;
  float *to = (float *)outputs[0]->dl_tensor.data;
  for (int64_t at = 0; at < inputs[0]->shape[0]; at++) to[at] = from[at] + by;
  return 0;
}

static estafette_operator_options in_place(void) {
  estafette_operator_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.kind = ESTAFETTE_OPERATOR_DESTINATION;
  options.flags = ESTAFETTE_OPERATOR_IN_PLACE;
  options.n_inputs = 1;
  options.n_outputs = 1;
  return options;
}

static float first(estafette_tensor *tensor) {
  void *data;
  OK(estafette_wait(tensor, 10 * SECOND));
  OK(estafette_tensor_data(tensor, &data));
  return ((float *)data)[0];
}

static void a_call_waits_in_the_graph_for_what_is_not_there_yet(void) {
  estafette_engine *engine = engine_new(1);
  static watched state;
  estafette_operator_options options = in_place();
  OK(estafette_register_operator("c.add", add, &options, &state, watched_drop));
  estafette_tensor *x = floats(engine, 2), *y = floats(engine, 2);
  static counting gate;
  OK(estafette_submit(engine, "gate", counting_function, &gate, 0, 0, 0, &x, 1));
  estafette_attribute by = {"by", "2.5"};
  OK(estafette_call_operator(engine, "c.add", &x, 1, &y, 1, &by, 1));
  OK(estafette_call_operator(engine, "c.add", &y, 1, &y, 1, 0, 0));
  EXPECT(ESTAFETTE_PENDING, estafette_query(y));
  CHECK(atomic_load(&state.called) == 0);
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  CHECK(first(y) == 3.5f && atomic_load(&state.called) == 2);
  OK(estafette_unregister_operator("c.add"));
  OK(estafette_wait_all(engine, 10 * SECOND));
  while (!atomic_load(&state.dropped)) nap(1);
  CHECK(atomic_load(&state.dropped) == 1);
  estafette_tensor_release(x);
  estafette_tensor_release(y);
  estafette_engine_destroy(engine);
}

static void a_failure_has_the_operators_words(void) {
  estafette_engine *engine = engine_new(1);
  static watched state;
  estafette_operator_options options = in_place();
  OK(estafette_register_operator("c.add", add, &options, &state, watched_drop));
  estafette_tensor *x = floats(engine, 2);
  estafette_attribute wrong = {"of", "1"};
  OK(estafette_call_operator(engine, "c.add", &x, 1, &x, 1, &wrong, 1));
  REFUSED(ESTAFETTE_FAILED, "an attribute that is not known", estafette_wait(x, 10 * SECOND));
  CHECK(strstr(estafette_last_error(), "operation `c.add`") != 0);
  estafette_tensor_release(x);
  OK(estafette_unregister_operator("c.add"));
  estafette_engine_destroy(engine);
}

static estafette_tensor *pending;

static void wait_in_the_drop(void *context) {
  EXPECT(ESTAFETTE_WOULD_DEADLOCK, estafette_wait(pending, SECOND / 10));
  watched_drop(context);
}

static void the_drop_of_a_context_is_a_callback(void) {
  estafette_engine *engine = engine_new(1);
  static watched state;
  static counting gate;
  estafette_operator_options options = in_place();
  pending = floats(engine, 1);
  OK(estafette_submit(engine, "gate", counting_function, &gate, 0, 0, 0, &pending, 1));
  OK(estafette_register_operator("c.drop", add, &options, &state, wait_in_the_drop));
  OK(estafette_unregister_operator("c.drop"));
  CHECK(atomic_load(&state.dropped) == 1);
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  OK(estafette_wait_all(engine, 10 * SECOND));
  estafette_tensor_release(pending);
  estafette_engine_destroy(engine);
}

static void what_is_refused_stays_the_callers(void) {
  static watched state;
  estafette_operator_options options = in_place();
  OK(estafette_register_operator("c.once", add, &options, &state, watched_drop));
  REFUSED(ESTAFETTE_CONFLICT, "`c.once` is registered already, by C",
          estafette_register_operator("c.once", add, &options, &state, watched_drop));
  REFUSED(ESTAFETTE_INVALID, "function is NULL", estafette_register_operator("c.two", 0, &options, &state, watched_drop));
  struct {
    estafette_operator_options known;
    uint64_t newer;
  } longer = {options, 1};
  longer.known.size = sizeof longer;
  REFUSED(ESTAFETTE_INVALID, "operator `c.two`: its options: sets fields behind its first 32 bytes",
          estafette_register_operator("c.two", add, &longer.known, &state, watched_drop));
  longer.known.size = 1u << 30;
  REFUSED(ESTAFETTE_INVALID, "more than 4096", estafette_register_operator("c.two", add, &longer.known, &state, watched_drop));
  options.kind = 9;
  REFUSED(ESTAFETTE_INVALID, "kind 9", estafette_register_operator("c.two", add, &options, &state, watched_drop));
  options = in_place();
  options.n_outputs = 65537;
  REFUSED(ESTAFETTE_INVALID, "65537 outputs, more than 65536",
          estafette_register_operator("c.two", add, &options, &state, watched_drop));
  CHECK(atomic_load(&state.dropped) == 0);
  OK(estafette_unregister_operator("c.once"));
  CHECK(atomic_load(&state.dropped) == 1);
  REFUSED(ESTAFETTE_INVALID, "no operator `c.once`", estafette_unregister_operator("c.once"));
  REFUSED(ESTAFETTE_INVALID, "cannot be loaded", estafette_load_operators("/nowhere/lib.so", 0));
}

static void listed(void *context, const estafette_operator_info *info) {
  if (strcmp(info->name, "c.listed")) return;
  CHECK(info->size == sizeof *info && strcmp(info->origin, "C") == 0);
  CHECK(info->kind == ESTAFETTE_OPERATOR_DESTINATION && info->flags == ESTAFETTE_OPERATOR_IN_PLACE);
  CHECK(info->n_inputs == ESTAFETTE_OPERATOR_ANY_NUMBER && info->n_outputs == 1);
  ++*(int *)context;
}

static void what_is_registered_is_listed(void) {
  static watched state;
  estafette_operator_options options = in_place();
  options.n_inputs = ESTAFETTE_OPERATOR_ANY_NUMBER;
  OK(estafette_register_operator("c.listed", add, &options, &state, watched_drop));
  int found = 0;
  OK(estafette_list_operators(listed, &found));
  CHECK(found == 1);
  OK(estafette_unregister_operator("c.listed"));
}

static void a_call_is_called_off_and_has_a_priority(void) {
  estafette_engine *engine = engine_new(1);
  static watched state;
  static counting gate;
  estafette_operator_options options = in_place();
  OK(estafette_register_operator("c.add", add, &options, &state, watched_drop));
  estafette_tensor *x = floats(engine, 2), *y = floats(engine, 2);
  OK(estafette_submit(engine, "gate", counting_function, &gate, 0, 0, 0, &x, 1));
  estafette_submit_options how;
  memset(&how, 0, sizeof how);
  how.size = sizeof how;
  how.priority = 5;
  estafette_op *op;
  OK(estafette_call_operator_with(engine, &how, "c.add", &x, 1, &y, 1, 0, 0, &op));
  EXPECT(ESTAFETTE_PENDING, estafette_op_query(op));
  REFUSED(ESTAFETTE_INVALID, "reports its own end", estafette_op_complete(op, ESTAFETTE_OK, 0));
  void *stream;
  REFUSED(ESTAFETTE_INVALID, "reports its own end", estafette_op_stream(op, &stream));
  OK(estafette_op_cancel(op));
  EXPECT(ESTAFETTE_CANCELLED, estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_release(op));
  OK(estafette_op_complete(begun(&gate), ESTAFETTE_OK, 0));
  EXPECT(ESTAFETTE_CANCELLED, estafette_wait(y, 10 * SECOND));
  /* A wait for what is cancelled may end before its turn has come. */
  OK(estafette_wait_all(engine, 10 * SECOND));
  OK(estafette_clear_error(y));
  OK(estafette_call_operator_with(engine, &how, "c.add", &x, 1, &y, 1, 0, 0, &op));
  OK(estafette_op_wait(op, 10 * SECOND));
  OK(estafette_op_release(op));
  CHECK(first(y) == 1.0f && atomic_load(&state.called) == 1);
  how.reserved = 7;
  REFUSED(ESTAFETTE_INVALID, "reserved is 7", estafette_call_operator_with(engine, &how, "c.add", &x, 1, &y, 1, 0, 0, &op));
  how.reserved = 0;
  how.name = "another";
  REFUSED(ESTAFETTE_INVALID, "the operator's name", estafette_call_operator_with(engine, &how, "c.add", &x, 1, &y, 1, 0, 0, &op));
  estafette_tensor_release(x);
  estafette_tensor_release(y);
  OK(estafette_unregister_operator("c.add"));
  estafette_engine_destroy(engine);
}

int main(void) {
  alarm(60);
  RUN(a_call_waits_in_the_graph_for_what_is_not_there_yet);
  RUN(a_call_is_called_off_and_has_a_priority);
  RUN(a_failure_has_the_operators_words);
  RUN(the_drop_of_a_context_is_a_callback);
  RUN(what_is_refused_stays_the_callers);
  RUN(what_is_registered_is_listed);
  return 0;
}
