/* Links to another process, which is given the address of a door. */
#include "two.h"

#include <dirent.h>
#include <poll.h>
#include <sys/epoll.h>

typedef struct {
  estafette_tensor *from, *to;
} doubling;

static void twice(void *context, estafette_op *op) {
  doubling *self = context;
  int64_t *from, *to;
  OK(estafette_tensor_data(self->from, (void **)&from));
  OK(estafette_tensor_data(self->to, (void **)&to));
  for (int i = 0; i < LENGTH; i++) to[i] = 2 * from[i];
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

static void end_of_doubling(void *context) {
  doubling *self = context;
  OK(estafette_tensor_release(self->from));
  OK(estafette_tensor_release(self->to));
  free(self);
}

/* A promise of the double of `from`. */
static estafette_tensor *doubled(estafette_engine *engine, estafette_tensor *from) {
  doubling *context = malloc(sizeof *context);
  *context = (doubling){from, numbers(engine)};
  estafette_tensor *to = context->to;
  OK(estafette_tensor_retain(from));
  OK(estafette_tensor_retain(to));
  OK(estafette_submit(engine, "double", twice, context, end_of_doubling, &from, 1, &to, 1));
  return to;
}

static estafette_tensor *received(estafette_link *link) {
  estafette_tensor *tensor;
  OK(estafette_link_receive(link, LIMIT, &tensor));
  CHECK(tensor != 0);
  return tensor;
}

static void send(estafette_link *link, estafette_tensor *tensor) { OK(estafette_link_send(link, tensor, 0, LIMIT)); }

/* A word, for which the other process waits by `hear`. */
static void say(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *word = numbers(engine);
  send(link, word);
  estafette_tensor_release(word);
}

static void hear(estafette_link *link) { estafette_tensor_release(received(link)); }

/* Until this process is killed. */
static void live_on(estafette_link *link) {
  estafette_tensor *none;
  estafette_link_receive(link, ESTAFETTE_FOREVER, &none);
  CHECK(!"this process is killed before");
}

/* The other process, and the link to it. */
typedef struct {
  pid_t process;
  estafette_engine *engine;
  estafette_link *link;
} other;

static other with(const char *half, int workers) {
  estafette_door *door;
  char *address;
  other made;
  made.engine = engine_of(workers, 1);
  OK(estafette_door_open(&door));
  OK(estafette_door_address(door, &address));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_door_accept(door, made.engine, 0, &made.link));
  made.process = start(half, address);
  OK(estafette_door_accept(door, made.engine, LIMIT, &made.link));
  uint32_t number;
  OK(estafette_link_process(made.link, &number));
  CHECK(number == (uint32_t)made.process);
  OK(estafette_door_close(door));
  estafette_string_free(address);
  return made;
}

static void end(other *of) {
  OK(estafette_link_close(of->link));
  ends_well(of->process);
  OK(estafette_engine_destroy(of->engine));
}

static int entries(const char *path) {
  int count = 0;
  DIR *folder = opendir(path);
  CHECK(folder != 0);
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

static int has_link_thread(void) {
  DIR *folder = opendir("/proc/self/task");
  CHECK(folder != 0);
  int found = 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "r");
    if (!file) continue;
    if (fgets(name, sizeof name, file) && strncmp(name, "estafette-links", 15) == 0) found = 1;
    fclose(file);
  }
  closedir(folder);
  return found;
}

static void a_program_that_opens_no_link_has_no_thread_and_no_descriptor_for_links(void) {
  int before = entries("/proc/self/fd");
  estafette_engine *engine = engine_of(1, 0);
  DLDataType type = {kDLInt, 64, 1};
  int64_t length = LENGTH;
  estafette_tensor *x;
  OK(estafette_zeros(engine, &length, 1, type, &x));
  submit_fill(engine, x, 7, 0, 0);
  CHECK(value(x) == 7);
  estafette_ticket *ticket;
  REFUSED(ESTAFETTE_INVALID, "no ticket", estafette_from_ticket(engine, (const uint8_t *)"?", 1, &x));
  EXPECT(ESTAFETTE_INVALID, estafette_ticket_create(0, 0, &ticket));
  CHECK(!has_link_thread() && entries("/proc/self/fd") == before);
  estafette_door *door;
  OK(estafette_door_open(&door));
  /* A thread names itself. */
  for (int look = 0; look < 10000 && !has_link_thread(); look++) nap(1);
  CHECK(has_link_thread() && entries("/proc/self/fd") > before);
  OK(estafette_door_close(door));
  estafette_tensor_release(x);
  estafette_engine_destroy(engine);
}

#define ROUNDS 50

static void each_version_is_seen_whole_and_writes_wait_for_its_readers(void) {
  other of = with("doubles", 2);
  estafette_tensor *x = numbers(of.engine);
  for (int round = 0; round < ROUNDS; round++) {
    submit_fill(of.engine, x, round, 0, 0);
    send(of.link, x);
  }
  submit_fill(of.engine, x, -1, 0, 0);
  for (int round = 0; round < ROUNDS; round++) {
    estafette_tensor *y = received(of.link);
    CHECK(value(y) == 2 * round);
    CHECK(estafette_submit(of.engine, 0, fill, 0, 0, 0, 0, &y, 1) == ESTAFETTE_CONFLICT);
    estafette_tensor_release(y);
  }
  CHECK(value(x) == -1);
  estafette_tensor_release(x);
  end(&of);
}

/* Also what a process does whose engine has no workers: while it waits for an answer, the operation is run that the answer needs. */
static void a_receive_holds_up_no_operation(void) {
  other of = with("doubles", -1);
  estafette_tensor *x = numbers(of.engine);
  submit_fill(of.engine, x, 4, 0, 0);
  send(of.link, x);
  estafette_tensor *y = received(of.link);
  CHECK(value(y) == 8);
  estafette_tensor_release(y);
  estafette_tensor_release(x);
  end(&of);
}

static void doubles(estafette_engine *engine, estafette_link *link) {
  for (;;) {
    estafette_tensor *x;
    OK(estafette_link_receive(link, LIMIT, &x));
    if (!x) return;
    estafette_tensor *y = doubled(engine, x);
    send(link, y);
    estafette_tensor_release(x);
    estafette_tensor_release(y);
  }
}

static void receive_inside(void *context, estafette_op *op) {
  other *of = context;
  estafette_tensor *y = received(of->link);
  CHECK(value(y) == 6);
  estafette_tensor_release(y);
  OK(estafette_op_complete(op, ESTAFETTE_OK, 0));
}

/* The only worker waits for the other process, and the other process for an operation of this engine. */
static void a_receive_in_a_function_holds_up_no_operation(void) {
  other of = with("doubles", 1);
  estafette_tensor *x = numbers(of.engine);
  estafette_op *op;
  OK(estafette_submit_with(of.engine, 0, receive_inside, &of, 0, 0, 0, 0, 0, &op));
  submit_fill(of.engine, x, 3, 0, 0);
  send(of.link, x);
  OK(estafette_op_wait(op, LIMIT));
  estafette_op_release(op);
  estafette_tensor_release(x);
  end(&of);
}

static void a_value_crosses_before_it_is_there(void) {
  other of = with("sees_it_pending", 1);
  estafette_tensor *x = numbers(of.engine);
  _Atomic(estafette_op *) open = 0;
  filling *context = submit_fill(of.engine, x, 11, 0, &open);
  send(of.link, x);
  hear(of.link);
  while (!atomic_load(&open)) nap(1);
  fill_now(context);
  OK(estafette_op_complete(atomic_load(&open), ESTAFETTE_OK, 0));
  hear(of.link);
  estafette_tensor_release(x);
  end(&of);
}

static void sees_it_pending(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *x = received(link);
  EXPECT(ESTAFETTE_PENDING, estafette_query(x));
  say(engine, link);
  CHECK(value(x) == 11);
  say(engine, link);
  estafette_tensor_release(x);
}

static void a_failure_crosses_with_its_text(void) {
  other of = with("sees_the_failure", 1);
  estafette_tensor *x = numbers(of.engine);
  submit_fill(of.engine, x, 0, ESTAFETTE_FAILED, 0);
  send(of.link, x);
  hear(of.link);
  estafette_tensor_release(x);
  end(&of);
}

static void sees_the_failure(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *x = received(link);
  REFUSED(ESTAFETTE_FAILED, "out of paper", estafette_wait(x, LIMIT));
  CHECK(strncmp(estafette_last_error(), "operation `", 11) == 0 && strstr(estafette_last_error(), "in process") != 0);
  say(engine, link);
  estafette_tensor_release(x);
}

static void the_death_of_an_owner_fails_what_it_had_promised(void) {
  other of = with("promises", 1);
  estafette_tensor *ready = received(of.link), *pending = received(of.link);
  estafette_tensor *after = doubled(of.engine, pending);
  CHECK(value(ready) == 5);
  EXPECT(ESTAFETTE_PENDING, estafette_query(pending));
  dies(of.process);
  char died[64];
  snprintf(died, sizeof died, "process %d died", (int)of.process);
  REFUSED(ESTAFETTE_PEER_DIED, died, estafette_wait(pending, LIMIT));
  REFUSED(ESTAFETTE_PEER_DIED, died, estafette_wait(after, LIMIT));
  CHECK(value(ready) == 5);
  estafette_tensor *none = 0;
  REFUSED(ESTAFETTE_PEER_DIED, died, estafette_link_receive(of.link, LIMIT, &none));
  REFUSED(ESTAFETTE_PEER_DIED, died, estafette_link_send(of.link, after, 0, LIMIT));
  CHECK(none == 0);
  OK(estafette_link_close(of.link));
  estafette_tensor_release(ready);
  estafette_tensor_release(pending);
  estafette_tensor_release(after);
  estafette_engine_destroy(of.engine);
}

static void promises(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *ready = numbers(engine), *pending = numbers(engine);
  static _Atomic(estafette_op *) never;
  submit_fill(engine, ready, 5, 0, 0);
  submit_fill(engine, pending, 0, 0, &never);
  send(link, ready);
  send(link, pending);
  live_on(link);
}

static void the_death_of_a_consumer_ends_its_leases(void) {
  other of = with("holds", 1);
  estafette_tensor *x = numbers(of.engine);
  submit_fill(of.engine, x, 1, 0, 0);
  send(of.link, x);
  hear(of.link);
  submit_fill(of.engine, x, 2, 0, 0);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 50));
  dies(of.process);
  CHECK(value(x) == 2);
  OK(estafette_link_close(of.link));
  estafette_tensor_release(x);
  estafette_engine_destroy(of.engine);
}

static void holds(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *x = received(link);
  CHECK(value(x) == 1);
  say(engine, link);
  live_on(link);
}

static void a_link_that_the_other_process_closes(void) {
  other of = with("closes", 1);
  estafette_tensor *last = received(of.link), *unkept = received(of.link), *none = last;
  EXPECT(ESTAFETTE_TIMEOUT, estafette_link_receive(of.link, 0, &none));
  EXPECT(ESTAFETTE_TIMEOUT, estafette_link_receive(of.link, SECOND / 100, &none));
  CHECK(none == last);
  say(of.engine, of.link);
  for (int again = 0; again < 2; again++) {
    OK(estafette_link_receive(of.link, LIMIT, &none));
    CHECK(none == 0);
  }
  CHECK(value(last) == 3);
  char closed[64];
  snprintf(closed, sizeof closed, "process %d closed the link", (int)of.process);
  estafette_tensor *late = numbers(of.engine);
  REFUSED(ESTAFETTE_CANCELLED, closed, estafette_link_send(of.link, late, 0, LIMIT));
  estafette_tensor_release(late);
  char process[32];
  snprintf(process, sizeof process, "process %d", (int)of.process);
  CHECK(estafette_wait(unkept, LIMIT) < 0 && strstr(estafette_last_error(), process));
  estafette_tensor_release(last);
  estafette_tensor_release(unkept);
  end(&of);
}

static void closes(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *last = numbers(engine), *unkept = numbers(engine);
  static _Atomic(estafette_op *) never;
  submit_fill(engine, last, 3, 0, 0);
  CHECK(value(last) == 3);
  submit_fill(engine, unkept, 0, 0, &never);
  send(link, last);
  send(link, unkept);
  hear(link);
}

#define BURST 10
#define BURSTS 5

/* Everything that is there. 1 once the link is closed. */
static int drain(estafette_link *link, int *count) {
  for (;;) {
    estafette_tensor *x;
    int got = estafette_link_receive(link, 0, &x);
    if (got == ESTAFETTE_TIMEOUT) return 0;
    CHECK(got == ESTAFETTE_OK);
    if (!x) return 1;
    CHECK(value(x) == (*count)++);
    estafette_tensor_release(x);
  }
}

static int is_readable(int descriptor) {
  struct pollfd look = {descriptor, POLLIN, 0};
  return poll(&look, 1, 0);
}

static void an_event_loop_waits_for_the_descriptor(void) {
  for (unsigned int edge = 0; edge < 2; edge++) {
    other of = with("sends_in_bursts", 1);
    int descriptor, again, count = 0, asked = 0;
    OK(estafette_link_descriptor(of.link, &descriptor));
    OK(estafette_link_descriptor(of.link, &again));
    CHECK(descriptor == again && is_readable(descriptor));
    int loop = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN | (edge ? (unsigned int)EPOLLET : 0u), {0}};
    CHECK(loop >= 0 && epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &event) == 0);
    for (;;) {
      CHECK(epoll_wait(loop, &event, 1, 60000) == 1);
      if (drain(of.link, &count)) break;
      if (count < asked * BURST) continue;
      /* The other process waits for a word and sends nothing. A thread of the library may still be at the last message. */
      while (is_readable(descriptor)) CHECK(!drain(of.link, &count) && count == asked * BURST);
      asked++;
      say(of.engine, of.link);
    }
    CHECK(count == BURSTS * BURST && is_readable(descriptor));
    close(loop);
    end(&of);
  }
}

/* As many as it is asked for. */
static void sends_in_bursts(estafette_engine *engine, estafette_link *link) {
  for (int count = 0; count < BURSTS * BURST; count++) {
    if (count % BURST == 0) hear(link);
    estafette_tensor *x = numbers(engine);
    submit_fill(engine, x, count, 0, 0);
    send(link, x);
    CHECK(value(x) == count);
    estafette_tensor_release(x);
  }
  hear(link);
}

static void call_back(void *context, estafette_status status, const char *message) {
  (void)message;
  other *of = context;
  estafette_tensor *none = 0;
  CHECK(status == ESTAFETTE_OK);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_link_receive(of->link, 0, &none));
  EXPECT(ESTAFETTE_WOULD_DEADLOCK, estafette_link_receive(of->link, ESTAFETTE_FOREVER, &none));
  say(of->engine, of->link);
}

static void a_callback_sends_and_does_not_wait(void) {
  other of = with("waits_for_a_word", 1);
  estafette_tensor *x = numbers(of.engine);
  OK(estafette_on_ready(x, call_back, &of, 0));
  estafette_tensor_release(x);
  end(&of);
}

static void waits_for_a_word(estafette_engine *engine, estafette_link *link) {
  (void)engine;
  hear(link);
}

static void what_cannot_be_is_refused(void) {
  other of = with("waits_for_a_word", 1);
  estafette_engine *engine = engine_of(1, 0);
  DLDataType type = {kDLInt, 64, 1};
  int64_t length = LENGTH;
  estafette_tensor *own, *none = 0;
  estafette_ticket *ticket = 0;
  estafette_link *link = 0;
  OK(estafette_zeros(engine, &length, 1, type, &own));
  estafette_ticket_options options = {sizeof options, 0, -1, 0, 0};
  REFUSED(ESTAFETTE_NOT_SHARED, "a copy was refused", estafette_ticket_create(own, &options, &ticket));
  options.copy = 2;
  REFUSED(ESTAFETTE_INVALID, "copy is 2", estafette_ticket_create(own, &options, &ticket));
  options.once = 7;
  REFUSED(ESTAFETTE_INVALID, "once is 7", estafette_ticket_create(own, &options, &ticket));
  options.size = 4;
  REFUSED(ESTAFETTE_INVALID, "size is 4", estafette_ticket_create(own, &options, &ticket));
  estafette_engine_options wrong = {.size = sizeof wrong, .shared = 2};
  estafette_engine *refused;
  REFUSED(ESTAFETTE_INVALID, "shared is 2", estafette_engine_create(&wrong, &refused));

  char address[] = "estafette-00000000000000000000000000000000";
  EXPECT(ESTAFETTE_FAILED, estafette_connect(engine, address, LIMIT, &link));
  REFUSED(ESTAFETTE_INVALID, "no address of a door", estafette_connect(engine, "elsewhere", LIMIT, &link));
  REFUSED(ESTAFETTE_INVALID, "address is NULL", estafette_connect(engine, 0, LIMIT, &link));
  REFUSED(ESTAFETTE_INVALID, "70 bytes that are no ticket",
          estafette_from_ticket(engine, (const uint8_t[70]){0}, 70, &none));
  REFUSED(ESTAFETTE_INVALID, "bytes is NULL", estafette_from_ticket(engine, 0, 70, &none));
  REFUSED(ESTAFETTE_INVALID, "link is NULL", estafette_link_send(0, own, 0, 0));
  REFUSED(ESTAFETTE_INVALID, "tensor: this is the handle of an engine",
          estafette_link_send(of.link, (estafette_tensor *)engine, 0, 0));
  REFUSED(ESTAFETTE_INVALID, "out is NULL", estafette_link_receive(of.link, 0, 0));
  REFUSED(ESTAFETTE_INVALID, "link: this is the handle of a tensor",
          estafette_link_receive((estafette_link *)own, 0, &none));
  OK(estafette_link_close(0));
  OK(estafette_door_close(0));
  OK(estafette_ticket_revoke(0));
  OK(estafette_ticket_release(0));
  REFUSED(ESTAFETTE_INVALID, "host is NULL", estafette_declare_dead(0, 1));
  REFUSED(ESTAFETTE_INVALID, "host is not UTF-8", estafette_declare_dead("\xe9", 1));
  OK(estafette_declare_dead("10.0.0.1", 0));
  CHECK(!ticket && !link && !none);
  say(of.engine, of.link);
  end(&of);
  REFUSED(ESTAFETTE_INVALID, "link: this handle is not in use; it was closed", estafette_link_close(of.link));
  estafette_tensor_release(own);
  estafette_engine_destroy(engine);
}

/* A call of another thread that waits at a door or for a link. */
typedef struct {
  other of;
  estafette_door *door;
  atomic_int thread, status;
  char text[200];
} waiting;

static void *wait_for_it(void *context) {
  waiting *self = context;
  estafette_link *link;
  estafette_tensor *none;
  atomic_store(&self->thread, gettid());
  int status = self->door ? estafette_door_accept(self->door, self->of.engine, 5 * SECOND, &link)
                          : estafette_link_receive(self->of.link, 5 * SECOND, &none);
  snprintf(self->text, sizeof self->text, "%s", estafette_last_error());
  atomic_store(&self->status, status);
  return 0;
}

static int sleeps(int thread) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  CHECK(fscanf(file, "%*d %*s %c", &state) == 1);
  fclose(file);
  return state == 'S';
}

static pthread_t waits(waiting *self) {
  pthread_t thread;
  CHECK(pthread_create(&thread, 0, wait_for_it, self) == 0);
  while (!sleeps(atomic_load(&self->thread))) nap(1);
  return thread;
}

static void a_close_ends_the_waits_of_other_threads(void) {
  waiting at_link = {.of = with("waits_for_a_word", 1)}, at_door = {.of = at_link.of};
  OK(estafette_door_open(&at_door.door));
  pthread_t receives = waits(&at_link), accepts = waits(&at_door);
  /* The other process closes the link itself as soon as it has the word. */
  CHECK(kill(at_link.of.process, SIGSTOP) == 0);
  say(at_link.of.engine, at_link.of.link);
  OK(estafette_link_close(at_link.of.link));
  pthread_join(receives, 0);
  CHECK(kill(at_link.of.process, SIGCONT) == 0);
  ends_well(at_link.of.process);
  OK(estafette_engine_destroy(at_link.of.engine));
  OK(estafette_door_close(at_door.door));
  pthread_join(accepts, 0);
  CHECK(at_link.status == ESTAFETTE_INVALID && strstr(at_link.text, "closed"));
  CHECK(at_door.status == ESTAFETTE_INVALID && strstr(at_door.text, "closed"));
}

static estafette_tensor *writable(estafette_engine *engine) {
  DLDataType type = {kDLInt, 64, 1};
  int64_t length = LENGTH;
  estafette_tensor *tensor;
  OK(estafette_zeros_shared_for_writing(engine, &length, 1, type, &tensor));
  return tensor;
}

static void what_another_process_writes_is_the_next_version(void) {
  other of = with("writes", 1);
  estafette_tensor *x = writable(of.engine), *y = writable(of.engine), *shared = numbers(of.engine);
  estafette_send_options options = {sizeof options, 0, ESTAFETTE_WRITE};
  REFUSED(ESTAFETTE_NOT_SHARED, "shared for writing", estafette_link_send(of.link, shared, &options, LIMIT));
  options.copy = 1;
  REFUSED(ESTAFETTE_INVALID, "is not copied", estafette_link_send(of.link, x, &options, LIMIT));
  options = (estafette_send_options){sizeof options, 0, ESTAFETTE_ALIAS};
  REFUSED(ESTAFETTE_INVALID, "no lease", estafette_link_send(of.link, x, &options, LIMIT));
  options.access = 3;
  REFUSED(ESTAFETTE_INVALID, "access is 3", estafette_link_send(of.link, x, &options, LIMIT));
  /* A program that was built before has no such field. */
  options.size = 8;
  OK(estafette_link_send(of.link, x, &options, LIMIT));
  options = (estafette_send_options){sizeof options, 0, ESTAFETTE_WRITE};
  OK(estafette_link_send(of.link, x, &options, LIMIT));
  options.copy = -1;
  OK(estafette_link_send(of.link, y, &options, LIMIT));
  hear(of.link);
  EXPECT(ESTAFETTE_TIMEOUT, estafette_wait(x, SECOND / 50));
  say(of.engine, of.link);
  CHECK(value(x) == 11);
  hear(of.link);
  dies(of.process);
  EXPECT(ESTAFETTE_PEER_DIED, estafette_wait(y, LIMIT));
  submit_fill(of.engine, y, 3, 0, 0);
  CHECK(value(y) == 3);
  OK(estafette_link_close(of.link));
  estafette_tensor_release(x);
  estafette_tensor_release(y);
  estafette_tensor_release(shared);
  OK(estafette_engine_destroy(of.engine));
}

static void writes(estafette_engine *engine, estafette_link *link) {
  estafette_tensor *read = received(link);
  int32_t read_only;
  OK(estafette_tensor_read_only(read, &read_only));
  CHECK(read_only && value(read) == 0);
  estafette_tensor_release(read);
  estafette_tensor *x = received(link), *y = received(link);
  say(engine, link);
  hear(link);
  submit_fill(engine, x, 11, 0, 0);
  OK(estafette_wait(x, LIMIT));
  estafette_tensor_release(x);
  submit_fill(engine, y, 12, 0, 0);
  OK(estafette_wait(y, LIMIT));
  say(engine, link);
  live_on(link);
}

static void linked(const char *address, void (*run)(estafette_engine *, estafette_link *)) {
  estafette_engine *engine = engine_of(1, 1);
  estafette_link *link;
  OK(estafette_connect(engine, address, LIMIT, &link));
  run(engine, link);
  OK(estafette_link_close(link));
  OK(estafette_engine_destroy(engine));
}

#define LINKED(half) \
  static void run_##half(const char *address) { linked(address, half); }

LINKED(doubles)
LINKED(sees_it_pending)
LINKED(sees_the_failure)
LINKED(promises)
LINKED(holds)
LINKED(closes)
LINKED(sends_in_bursts)
LINKED(waits_for_a_word)
LINKED(writes)

static const half HALVES[] = {
    {"doubles", run_doubles},
    {"sees_it_pending", run_sees_it_pending},
    {"sees_the_failure", run_sees_the_failure},
    {"promises", run_promises},
    {"holds", run_holds},
    {"closes", run_closes},
    {"sends_in_bursts", run_sends_in_bursts},
    {"waits_for_a_word", run_waits_for_a_word},
    {"writes", run_writes},
};

int main(int count, char **arguments) {
  if (is_second(HALVES, count, arguments)) return 0;
  RUN(a_program_that_opens_no_link_has_no_thread_and_no_descriptor_for_links);
  RUN(each_version_is_seen_whole_and_writes_wait_for_its_readers);
  RUN(what_cannot_be_is_refused);
  int before = entries("/proc/self/fd");
  RUN(a_receive_holds_up_no_operation);
  RUN(a_receive_in_a_function_holds_up_no_operation);
  RUN(a_value_crosses_before_it_is_there);
  RUN(a_failure_crosses_with_its_text);
  RUN(the_death_of_an_owner_fails_what_it_had_promised);
  RUN(the_death_of_a_consumer_ends_its_leases);
  RUN(a_link_that_the_other_process_closes);
  RUN(an_event_loop_waits_for_the_descriptor);
  RUN(a_callback_sends_and_does_not_wait);
  RUN(a_close_ends_the_waits_of_other_threads);
  RUN(what_another_process_writes_is_the_next_version);
  /* A link that is over leaves no descriptor. It goes once the other process has said that it uses nothing more. */
  for (int look = 0; look < 10000 && entries("/proc/self/fd") > before; look++) nap(1);
  CHECK(entries("/proc/self/fd") <= before);
  return 0;
}
