/*
 * Lets one call of the system fail: preloaded into a program, it counts the calls of one function from the moment that the program calls
 * `failing_system_arm`, and fails the one with the number that it was given, or that one and all later ones.
 *
 *   FAILING_CALL   pthread_create | membarrier | mmap | malloc | open | descriptor | write | clock_gettime
 *   FAILING_AT     the number of the call, from 1
 *   FAILING_ALL    if set, all later calls fail too
 *   FAILING_ERRNO  the error
 *   FAILING_OBJECT if set, only calls that come from a shared object count whose file name has this text in it
 *
 * Both counts belong to the program and the children that it forks together.
 * `descriptor` counts all calls that make a descriptor: those that open a file, too, and messages that bring one.
 * `malloc` counts calls of the whole family. A `write` counts only where it can fail: event counters (eventfd) are left out. Calls
 * inside of the C library do not come by here: the stack of a thread is a matter of pthread_create alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *chosen, *object;
static long at;
static int all, error;
static atomic_int armed;

/* In memory that forked children share. */
static struct {
  atomic_long calls, struck;
} *counts;

__attribute__((constructor)) static void begin(void) {
  const char *number = getenv("FAILING_AT"), *code = getenv("FAILING_ERRNO");
  at = number ? atol(number) : 0;
  error = code ? atoi(code) : EAGAIN;
  all = getenv("FAILING_ALL") != NULL;
  chosen = getenv("FAILING_CALL");
  object = getenv("FAILING_OBJECT");
  counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (counts == MAP_FAILED) abort();
}

/* True if code at this address is in the chosen object. Takes no lock and allocates nothing. */
static int is_chosen(void *code) {
  struct dl_find_object found;
  if (_dl_find_object(code, &found) != 0) return 0;
  const char *path = found.dlfo_link_map->l_name, *slash = strrchr(path, '/');
  return strstr(slash ? slash + 1 : path, object) != NULL;
}

/* True if this call fails, with errno set. */
static int fails_from(const char *name, void *caller) {
  if (!atomic_load_explicit(&armed, memory_order_relaxed) || !chosen || strcmp(name, chosen) != 0) return 0;
  if (object && !is_chosen(caller)) return 0;
  long number = atomic_fetch_add(&counts->calls, 1) + 1;
  if (all ? number < at : number != at) return 0;
  atomic_fetch_add(&counts->struck, 1);
  errno = error;
  return 1;
}

/* In a function that takes a call's place: whether that call fails. */
#define fails(name) fails_from(name, __builtin_return_address(0))

/* From here on calls are counted; with 0, no longer. */
void failing_system_arm(int on) { atomic_store(&armed, on); }

/* Number of calls that have failed. */
long failing_system_struck(void) { return atomic_load(&counts->struck); }

#define NEXT(name) \
  static __typeof__(&name) next; \
  if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  NEXT(pthread_create);
  if (fails("pthread_create")) return error;
  return next(thread, attributes, body, argument);
}

long syscall(long number, ...) {
  NEXT(syscall);
  long values[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) values[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_membarrier && fails("membarrier")) return -1;
  if (number == SYS_pidfd_open && fails("descriptor")) return -1;
  return next(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
  NEXT(mmap);
  if (fails("mmap")) return MAP_FAILED;
  return next(address, length, protection, flags, file, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off64_t offset) {
  NEXT(mmap64);
  if (fails("mmap")) return MAP_FAILED;
  return next(address, length, protection, flags, file, offset);
}

/* Looking functions up allocates, so these go to the C library by its own names. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) { return fails("malloc") ? NULL : __libc_malloc(size); }

void *calloc(size_t count, size_t size) { return fails("malloc") ? NULL : __libc_calloc(count, size); }

void *realloc(void *memory, size_t size) { return fails("malloc") ? NULL : __libc_realloc(memory, size); }

void *aligned_alloc(size_t alignment, size_t size) {
  return fails("malloc") ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  if (fails("malloc")) return ENOMEM;
  void *found = __libc_memalign(alignment, size);
  if (!found) return ENOMEM;
  *memory = found;
  return 0;
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    NEXT(name); \
    va_list list; \
    va_start(list, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list); \
    return fails("open") || fails("descriptor") ? -1 : next(path, flags, mode); \
  }
#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    NEXT(name); \
    va_list list; \
    va_start(list, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list); \
    return fails("open") || fails("descriptor") ? -1 : next(folder, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int socket(int domain, int type, int protocol) {
  NEXT(socket);
  return fails("descriptor") ? -1 : next(domain, type, protocol);
}

int accept4(int socket, struct sockaddr *address, socklen_t *length, int flags) {
  NEXT(accept4);
  return fails("descriptor") ? -1 : next(socket, address, length, flags);
}

int epoll_create1(int flags) {
  NEXT(epoll_create1);
  return fails("descriptor") ? -1 : next(flags);
}

int eventfd(unsigned count, int flags) {
  NEXT(eventfd);
  return fails("descriptor") ? -1 : next(count, flags);
}

int memfd_create(const char *name, unsigned flags) {
  NEXT(memfd_create);
  return fails("descriptor") ? -1 : next(name, flags);
}

/* As the kernel does where there is no room for the descriptors of a message: they are gone, the message comes. */
ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
  NEXT(recvmsg);
  ssize_t length = next(socket, message, flags);
  struct cmsghdr *control = length < 0 ? NULL : CMSG_FIRSTHDR(message);
  if (!control || control->cmsg_type != SCM_RIGHTS || !fails("descriptor")) return length;
  int files[16];
  size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof *files;
  memcpy(files, CMSG_DATA(control), count * sizeof *files);
  for (size_t i = 0; i < count; i++) close(files[i]);
  message->msg_controllen = 0;
  message->msg_flags |= MSG_CTRUNC;
  return length;
}

ssize_t write(int file, const void *bytes, size_t count) {
  NEXT(write);
  struct stat is;
  int can_fail = fstat(file, &is) != 0 || (is.st_mode & S_IFMT) != 0;
  return can_fail && fails("write") ? -1 : next(file, bytes, count);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  NEXT(clock_gettime);
  return fails("clock_gettime") ? -1 : next(clock, now);
}
