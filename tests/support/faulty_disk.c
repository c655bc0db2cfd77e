/* Preloaded into a broker: makes chosen system calls on chosen files fail, wait, or do half of their work.

   FAULTS_RULES names a file with a rule a line, read at every call, so that a test can change its mind:
       OPERATION PART-OF-PATH ACTION NUMBER
   operation: sync, write, read, send, cut, rename; action: error (errno), delay (ms), hold (until the
   rule is gone), short. FAULTS_TRACE names a file that gets a line for every sync: its path and errno. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define RULES_BYTES 4096

struct verdict {
    int error;
    int is_short;
};

static int find(const char *operation, const char *path, char *action, int *number)
{
    const char *name = getenv("FAULTS_RULES");
    if (name == NULL)
        return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    char rules[RULES_BYTES];
    ssize_t size = syscall(SYS_read, fd, rules, sizeof rules - 1);
    syscall(SYS_close, fd);
    if (size <= 0)
        return 0;
    rules[size] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(rules, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char wanted[16], part[PATH_BYTES];
        if (sscanf(line, "%15s %4095s %15s %d", wanted, part, action, number) == 4 &&
            strcmp(wanted, operation) == 0 && strstr(path, part) != NULL)
            return 1;
    }
    return 0;
}

static struct verdict judge(const char *operation, const char *path)
{
    struct verdict verdict = {0, 0};
    char action[16];
    int number = 0;
    while (find(operation, path, action, &number) && strcmp(action, "hold") == 0)
        usleep(5000);
    if (!find(operation, path, action, &number))
        return verdict;
    if (strcmp(action, "delay") == 0)
        usleep(number * 1000);
    else if (strcmp(action, "short") == 0)
        verdict.is_short = 1;
    else if (strcmp(action, "error") == 0)
        verdict.error = number;
    return verdict;
}

static void path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_BYTES - 1);
    path[size < 0 ? 0 : size] = 0;
}

static struct verdict judge_fd(const char *operation, int fd)
{
    char path[PATH_BYTES];
    path_of(fd, path);
    return judge(operation, path);
}

static void trace(int fd, int error)
{
    const char *name = getenv("FAULTS_TRACE");
    if (name == NULL)
        return;
    char path[PATH_BYTES], line[PATH_BYTES + 32];
    path_of(fd, path);
    int size = snprintf(line, sizeof line, "%d %s\n", error, path);
    int out = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (out >= 0) {
        syscall(SYS_write, out, line, size);
        syscall(SYS_close, out);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define SYNC(name)                                                                                 \
    int name(int fd)                                                                               \
    {                                                                                              \
        struct verdict verdict = judge_fd("sync", fd);                                             \
        int result = verdict.error ? -1 : REAL(name)(fd);                                          \
        int error = verdict.error ? verdict.error : result < 0 ? errno : 0;                        \
        trace(fd, error);                                                                          \
        errno = error;                                                                             \
        return result;                                                                             \
    }
SYNC(fsync)
SYNC(fdatasync)

#define GUARD(operation, fd)                                                                       \
    struct verdict verdict = judge_fd(operation, fd);                                              \
    if (verdict.error) {                                                                           \
        errno = verdict.error;                                                                     \
        return -1;                                                                                 \
    }

ssize_t write(int fd, const void *data, size_t size)
{
    GUARD("write", fd)
    return REAL(write)(fd, data, verdict.is_short && size > 1 ? size / 2 : size);
}

#define PWRITE(name)                                                                               \
    ssize_t name(int fd, const void *data, size_t size, off_t at)                                  \
    {                                                                                              \
        GUARD("write", fd)                                                                         \
        return REAL(name)(fd, data, verdict.is_short && size > 1 ? size / 2 : size, at);           \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PREAD(name)                                                                                \
    ssize_t name(int fd, void *data, size_t size, off_t at)                                        \
    {                                                                                              \
        GUARD("read", fd)                                                                          \
        return REAL(name)(fd, data, size, at);                                                     \
    }
PREAD(pread)
PREAD(pread64)

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    GUARD("read", fd)
    return REAL(preadv64v2)(fd, parts, count, at, flags);
}

#define SENDFILE(name)                                                                             \
    ssize_t name(int out, int in, off_t *at, size_t size)                                          \
    {                                                                                              \
        GUARD("send", in)                                                                          \
        return ((ssize_t(*)(int, int, off_t *, size_t))dlsym(RTLD_NEXT, #name))(out, in, at, size); \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

#define CUT(name)                                                                                  \
    int name(int fd, off_t size)                                                                   \
    {                                                                                              \
        GUARD("cut", fd)                                                                           \
        return REAL(name)(fd, size);                                                               \
    }
CUT(ftruncate)
CUT(ftruncate64)

int rename(const char *from, const char *to)
{
    struct verdict verdict = judge("rename", from);
    if (verdict.error) {
        errno = verdict.error;
        return -1;
    }
    return REAL(rename)(from, to);
}
