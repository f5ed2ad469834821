/* Support for a second process. It runs the same program in another role, and is connected to the
   first process by a socket. The file is for C and C++. */
#ifndef PEER_H
#define PEER_H

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time limit for a process in seconds. A process normally needs much less time. */
#define DEADLINE 50

/* The descriptor of the socket to the process that started this one. */
#define PARENT 0

/* A process that this process has started, and the socket to it. */
struct peer {
  pid_t pid;
  int link;
};

/* What this process is currently doing. The text is printed if the process exceeds its time
   limit. */
static const char *volatile doing = "starting";

#define PEER_TEXT_OF(x) #x
#define PEER_TEXT(x) PEER_TEXT_OF(x)
#define PLACE(what) __FILE__ ":" PEER_TEXT(__LINE__) ": " what
#define HERE(what) (doing = PLACE(what))

/* Fails the program unless `condition` holds. */
#define EXPECT(condition)                                                                          \
  (HERE(#condition), (condition) ? (void)0 : fail("%s: does not hold", PLACE(#condition)))

__attribute__((format(printf, 1, 2), noreturn)) static inline void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "process %d: ", (int)getpid());
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  _exit(1);
}

static inline void be_late(int number) {
  (void)number;
  const char *what = doing;
  (void)!write(STDERR_FILENO, "late: ", 6);
  (void)!write(STDERR_FILENO, what, strlen(what));
  (void)!write(STDERR_FILENO, "\n", 1);
  _exit(1);
}

/* Makes this process exit if it exceeds its time limit or if its parent exits. Call this function
   first. */
static inline void limit_life(void) {
  signal(SIGALRM, be_late);
  signal(SIGPIPE, SIG_IGN);
  alarm(DEADLINE);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Starts this program as a second process. `role` becomes the first argument. */
static inline struct peer start_peer(const char *role) {
  extern char **environ;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("no sockets: %s", strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], PARENT);
  char *arguments[] = {(char *)"peer", (char *)role, NULL};
  struct peer peer = {0, ends[0]};
  int error = posix_spawn(&peer.pid, "/proc/self/exe", &actions, NULL, arguments, environ);
  if (error != 0)
    fail("no second process: %s", strerror(error));
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  return peer;
}

/* Closes the socket, which makes the process exit, and waits until the process has exited
   successfully. */
static inline void end_peer(struct peer *peer) {
  HERE("the other process ends");
  int status = 0;
  close(peer->link);
  if (waitpid(peer->pid, &status, 0) != peer->pid || status != 0)
    fail("the other process ended with status %#x", (unsigned)status);
}

/* Kills the process, and waits until it has exited. */
static inline void kill_peer(struct peer *peer) {
  HERE("the other process is killed");
  kill(peer->pid, SIGKILL);
  waitpid(peer->pid, NULL, 0);
  close(peer->link);
}

static inline void say(int link, const void *data, size_t size) {
  if (send(link, data, size, MSG_NOSIGNAL) != (ssize_t)size)
    fail("%s: the other process does not listen", doing);
}

/* Receives bytes. Returns false if the other process closes the socket before it has sent all of
   them. */
static inline int hear_or_end(int link, void *data, size_t size) {
  return recv(link, data, size, MSG_WAITALL) == (ssize_t)size;
}

static inline void hear(int link, void *data, size_t size) {
  if (!hear_or_end(link, data, size))
    fail("%s: the other process has ended", doing);
}

/* Waits until both processes have reached this point. */
#define MEET(link) (HERE("the other process comes here too"), meet(link))

static inline void meet(int link) {
  char token = 'm';
  say(link, &token, 1);
  hear(link, &token, 1);
}

/* The bytes of a handle in the form in which processes exchange them: the size, followed by the
   data. */
struct bytes {
  size_t size;
  unsigned char data[256];
};

static inline struct bytes bytes_of(const void *data, size_t size) {
  struct bytes bytes;
  memset(&bytes, 0, sizeof bytes);
  if (size > sizeof bytes.data)
    fail("a handle of %zu bytes", size);
  bytes.size = size;
  memcpy(bytes.data, data, size);
  return bytes;
}

static inline void say_bytes(int link, struct bytes bytes) { say(link, &bytes, sizeof bytes); }

static inline struct bytes hear_bytes(int link) {
  struct bytes bytes;
  hear(link, &bytes, sizeof bytes);
  return bytes;
}

#endif
