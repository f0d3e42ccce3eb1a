/* Tickets, which are given to another process as digits. No link joins the two. */
#include "two.h"

/* The text of a ticket, as digits for the command line of another process. */
static void in_digits(estafette_ticket *ticket, char digits[256]) {
  uint8_t bytes[128];
  size_t size, first;
  OK(estafette_ticket_bytes(ticket, 0, 0, &size));
  OK(estafette_ticket_bytes(ticket, bytes, 4, &first));
  CHECK(size < sizeof bytes && first == size);
  OK(estafette_ticket_bytes(ticket, bytes, sizeof bytes, &size));
  for (size_t i = 0; i < size; i++) sprintf(digits + 2 * i, "%02x", bytes[i]);
}

static estafette_tensor *of_digits(estafette_engine *engine, const char *digits) {
  uint8_t bytes[128];
  size_t size = strlen(digits) / 2;
  for (size_t i = 0; i < size; i++) {
    unsigned int byte;
    CHECK(sscanf(digits + 2 * i, "%2x", &byte) == 1);
    bytes[i] = (uint8_t)byte;
  }
  estafette_tensor *tensor;
  OK(estafette_from_ticket(engine, bytes, size, &tensor));
  return tensor;
}

static void a_ticket_names_a_version_for_a_process_without_a_link(void) {
  estafette_engine *engine = engine_of(1, 0);
  estafette_tensor *x = numbers(engine);
  submit_fill(engine, x, 6, 0, 0);
  estafette_ticket *ticket;
  char digits[256];
  OK(estafette_ticket_create(x, 0, &ticket));
  in_digits(ticket, digits);
  submit_fill(engine, x, 7, 0, 0);
  for (int use = 0; use < 2; use++) ends_well(start("finds_six", digits));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 50));
  OK(estafette_ticket_revoke(ticket));
  CHECK(value(x) == 7);
  ends_well(start("finds_it_revoked", digits));

  /* As an older program knows the options. */
  estafette_ticket_options once = {8, 1, 0, 0, 0};
  OK(estafette_ticket_create(x, &once, &ticket));
  in_digits(ticket, digits);
  OK(estafette_ticket_release(ticket));
  submit_fill(engine, x, 8, 0, 0);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 50));
  ends_well(start("finds_seven", digits));
  CHECK(value(x) == 8);
  ends_well(start("finds_it_revoked", digits));

  /* One that is lost on its way holds its version until it is revoked. */
  OK(estafette_ticket_create(x, &once, &ticket));
  in_digits(ticket, digits);
  submit_fill(engine, x, 9, 0, 0);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 50));
  OK(estafette_ticket_revoke(ticket));
  REFUSED(ESTAFETTE_INVALID, "not in use", estafette_ticket_release(ticket));
  CHECK(value(x) == 9);
  ends_well(start("finds_it_revoked", digits));

  /* The release of any other ticket revokes it. */
  OK(estafette_ticket_create(x, 0, &ticket));
  in_digits(ticket, digits);
  OK(estafette_ticket_release(ticket));
  ends_well(start("finds_it_revoked", digits));
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void finds(const char *digits, int64_t expected) {
  estafette_engine *engine = engine_of(1, 0);
  estafette_tensor *x = of_digits(engine, digits);
  CHECK(value(x) == expected);
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void finds_six(const char *digits) { finds(digits, 6); }
static void finds_seven(const char *digits) { finds(digits, 7); }

static void finds_it_revoked(const char *digits) {
  estafette_engine *engine = engine_of(1, 0);
  estafette_tensor *x = of_digits(engine, digits);
  REFUSED(ESTAFETTE_FAILED, "not valid any more", estafette_wait(x, LIMIT));
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void a_ticket_of_a_process_that_has_died(void) {
  char path[] = "/tmp/estafette-ticket-XXXXXX", digits[256] = "";
  int file = mkstemp(path);
  CHECK(file >= 0);
  pid_t process = start("writes_a_ticket", path);
  while (pread(file, digits, sizeof digits - 1, 0) <= 0 || digits[strlen(digits) - 1] != '.') nap(1);
  digits[strlen(digits) - 1] = 0;
  estafette_engine *engine = engine_of(1, 0);
  estafette_tensor *before = of_digits(engine, digits);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(before, SECOND / 50));
  dies(process);
  estafette_tensor *after = of_digits(engine, digits);
  char died[64];
  snprintf(died, sizeof died, "process %d died", (int)process);
  REFUSED(ESTAFETTE_PEER_DIED, died, estafette_wait(before, LIMIT));
  REFUSED(ESTAFETTE_PEER_DIED, died, estafette_wait(after, LIMIT));
  close(file);
  unlink(path);
  estafette_tensor_release(before);
  estafette_tensor_release(after);
  estafette_engine_destroy(engine);
}

static void writes_a_ticket(const char *path) {
  estafette_engine *engine = engine_of(1, 1);
  estafette_tensor *x = numbers(engine);
  static _Atomic(estafette_op *) never;
  submit_fill(engine, x, 0, 0, &never);
  estafette_ticket *ticket;
  char digits[256];
  OK(estafette_ticket_create(x, 0, &ticket));
  in_digits(ticket, digits);
  FILE *file = fopen(path, "w");
  CHECK(file != 0);
  fprintf(file, "%s.", digits);
  fclose(file);
  for (;;) pause();
}

static void ends_with(void *fence, estafette_op *op) { OK(estafette_op_complete_after(op, fence)); }

/* It is done, or fails, as the fence does that the first process settles once this one has looked. */
static void fence_of(const char *digits, int32_t expected) {
  estafette_engine *engine = engine_of(1, 0);
  estafette_tensor *x = of_digits(engine, digits);
  DLFence fence;
  OK(estafette_tensor_fence(x, &fence));
  CHECK(fence.wait(fence.context, LIMIT) == expected);
  CHECK(expected == DLPACK_FENCE_DONE || strstr(fence.error(fence.context), "out of ink"));
  fence.release(fence.context);
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

static void fence_is_done(const char *digits) { fence_of(digits, DLPACK_FENCE_DONE); }
static void fence_fails(const char *digits) { fence_of(digits, ESTAFETTE_FAILED); }

static void a_fence_alone_crosses_as_the_readiness_of_a_tensor_without_elements(void) {
  estafette_engine *engine = engine_of(1, 0);
  for (int fails = 0; fails < 2; fails++) {
    DLDataType type = {kDLUInt, 8, 1};
    int64_t none = 0;
    estafette_tensor *x;
    estafette_promise *promise;
    estafette_ticket *ticket;
    DLFence fence;
    char digits[256];
    OK(estafette_zeros_shared(engine, &none, 1, type, &x));
    OK(estafette_promise_create("a printer", &promise, &fence));
    OK(estafette_submit(engine, "a fence", ends_with, &fence, 0, 0, 0, &x, 1));
    OK(estafette_ticket_create(x, 0, &ticket));
    in_digits(ticket, digits);
    pid_t process = start(fails ? "fence_fails" : "fence_is_done", digits);
    nap(50);
    OK(estafette_promise_settle(promise, fails ? ESTAFETTE_FAILED : ESTAFETTE_OK, fails ? "out of ink" : 0));
    ends_well(process);
    OK(estafette_ticket_revoke(ticket));
    estafette_tensor_release(x);
    fence.release(fence.context);
  }
  estafette_engine_destroy(engine);
}

static const half HALVES[] = {
    {"finds_six", finds_six},
    {"finds_seven", finds_seven},
    {"finds_it_revoked", finds_it_revoked},
    {"writes_a_ticket", writes_a_ticket},
    {"fence_is_done", fence_is_done},
    {"fence_fails", fence_fails},
};

int main(int count, char **arguments) {
  if (is_second(HALVES, count, arguments)) return 0;
  RUN(a_ticket_names_a_version_for_a_process_without_a_link);
  RUN(a_ticket_of_a_process_that_has_died);
  RUN(a_fence_alone_crosses_as_the_readiness_of_a_tensor_without_elements);
  return 0;
}
