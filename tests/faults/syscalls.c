/* Faults at the n-th change of a file below a folder, for a process that preloads this library (LD_PRELOAD).
 *
 * Every call that changes the disk is a step, wherever it comes from: Python, SQLite or Arrow. At its step a process is
 * killed before, within or after the call, or the call fails, or the clock jumps. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, KILL_BEFORE, KILL_WITHIN, KILL_AFTER, DISK_FULL, IO_ERROR, CLOCK_STEP };

static atomic_long steps, skew_s;
static long fault_at, clock_step_s;
static int fault = NOTHING, armed;
static char root[4096];

/* Count steps below `folder` from now on; let `kind` happen at step `at`, and the clock jump by `seconds`. */
void faults_arm(const char *folder, int kind, long at, long seconds)
{
    (void)snprintf(root, sizeof root, "%s/", folder);
    steps = 0;
    skew_s = 0;
    fault = kind;
    fault_at = at;
    clock_step_s = seconds;
    armed = 1;
}

/* Return the number of steps since faults_arm. */
long faults_steps(void)
{
    return steps;
}

static int is_below(const char *path)
{
    return armed && path && !strncmp(path, root, strlen(root));
}

static int is_file_below(int fd)
{
    char link[64], path[4096];
    if (!armed)
        return 0;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return is_below(path);
}

static void end(void)
{
    (void)syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        (void)pause();
}

/* Take a step; return the fault of this call. */
static int step(void)
{
    const long now = ++steps;
    if (fault == DISK_FULL && now >= fault_at)
        return DISK_FULL;
    if (now != fault_at)
        return NOTHING;
    if (fault == KILL_BEFORE)
        end();
    if (fault == CLOCK_STEP)
        skew_s = clock_step_s;
    return fault;
}

/* Return 1 and set errno if a call fails; `grows`: it needs room on the disk. */
static int fails(int now, int grows)
{
    if (now != IO_ERROR && !(now == DISK_FULL && grows))
        return 0;
    errno = now == IO_ERROR ? EIO : ENOSPC;
    return 1;
}

static long finish(int now, long result)
{
    if (now == KILL_WITHIN || now == KILL_AFTER)
        end();
    return result;
}

/* A call on an open file. */
#define ON_FILE(FD, GROWS, WITHIN, CALL)                                                                               \
    do {                                                                                                               \
        if (!is_file_below(FD))                                                                                        \
            return CALL;                                                                                               \
        const int now = step();                                                                                        \
        if (fails(now, GROWS))                                                                                         \
            return -1;                                                                                                 \
        return finish(now, now == KILL_WITHIN ? WITHIN : CALL);                                                        \
    } while (0)

/* A call on paths. */
#define ON_PATH(PATH, GROWS, CALL)                                                                                     \
    do {                                                                                                               \
        if (!is_below(PATH))                                                                                           \
            return (int)(CALL);                                                                                        \
        const int now = step();                                                                                        \
        if (fails(now, GROWS))                                                                                         \
            return -1;                                                                                                 \
        return (int)finish(now, CALL);                                                                                 \
    } while (0)

ssize_t write(int fd, const void *data, size_t size)
{
    ON_FILE(fd, 1, syscall(SYS_write, fd, data, size / 2), syscall(SYS_write, fd, data, size));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    ON_FILE(fd, 1, syscall(SYS_pwrite64, fd, data, size / 2, at), syscall(SYS_pwrite64, fd, data, size, at));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return pwrite64(fd, data, size, at);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t size)
{
    ON_FILE(to, 1, syscall(SYS_sendfile, to, from, at, size / 2), syscall(SYS_sendfile, to, from, at, size));
}

ssize_t sendfile(int to, int from, off_t *at, size_t size)
{
    return sendfile64(to, from, at, size);
}

int fsync(int fd)
{
    ON_FILE(fd, 0, 0, (int)syscall(SYS_fsync, fd));
}

int fdatasync(int fd)
{
    ON_FILE(fd, 0, 0, (int)syscall(SYS_fdatasync, fd));
}

int ftruncate64(int fd, off64_t size)
{
    ON_FILE(fd, 0, 0, (int)syscall(SYS_ftruncate, fd, size));
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int rename(const char *from, const char *to)
{
    ON_PATH(to, 0, syscall(SYS_rename, from, to));
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    ON_PATH(to, 0, syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}

int link(const char *from, const char *to)
{
    ON_PATH(to, 1, syscall(SYS_link, from, to));
}

int unlink(const char *path)
{
    ON_PATH(path, 0, syscall(SYS_unlink, path));
}

int rmdir(const char *path)
{
    ON_PATH(path, 0, syscall(SYS_rmdir, path));
}

int mkdir(const char *path, mode_t mode)
{
    ON_PATH(path, 1, syscall(SYS_mkdir, path, mode));
}

static int open_file(const char *path, int flags, mode_t mode)
{
    if (!(flags & (O_CREAT | O_TRUNC)))
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    ON_PATH(path, 1, syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_file(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_file(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += skew_s;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    const int failed = (int)syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += skew_s;
    return failed;
}

time_t time(time_t *at)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
