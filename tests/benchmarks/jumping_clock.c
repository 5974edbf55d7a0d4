/* The wall clock of a process, with jumps: `bench_month` preloads this library into every process of a run.
 *
 * SMELT_CLOCK names a file: a number n of jumps, a length of a jump in seconds, and n moments (nanoseconds since
 * 1970, ascending), all as 64-bit integers. A moment m of the machine's clock becomes m + length * (jumps at or
 * before m). One function therefore moves the clock and the times of files alike: a file that was written before
 * a jump is older by the jump afterwards. The monotonic clock does not jump, so waits and timeouts last as long
 * as they do without this library; an absolute deadline by the wall clock is moved back before the kernel sees it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096
#define BILLION 1000000000LL

static const volatile int64_t *table;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("SMELT_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, (MOST + 2) * 8, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) table = found;
}

static int64_t shift(int64_t seconds, int64_t nanoseconds) {
    if (!table) return 0;
    int64_t moment = seconds * BILLION + nanoseconds, count = table[0], jumps = 0;
    while (jumps < count && table[2 + jumps] <= moment) jumps++;
    return jumps * table[1];
}

static void real_time(clockid_t clock, struct timespec *now) { syscall(SYS_clock_gettime, clock, now); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift(now->tv_sec, now->tv_nsec);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (to) *to = exact.tv_sec;
    return exact.tv_sec;
}

/* Deadlines. A small number is of the monotonic clock, which counts from the machine's start. */
static struct timespec moved_back(const struct timespec *until) {
    struct timespec moved = *until, now;
    real_time(CLOCK_REALTIME, &now);
    if (until->tv_sec > BILLION) moved.tv_sec -= shift(now.tv_sec, now.tv_nsec);
    return moved;
}

#define DEADLINE(name, kind)                                                    \
    int name(kind *what, const struct timespec *until) {                        \
        static int (*real)(kind *, const struct timespec *);                    \
        if (!real) real = dlsym(RTLD_NEXT, #name);                              \
        struct timespec moved = moved_back(until);                              \
        return real(what, &moved);                                              \
    }
DEADLINE(sem_timedwait, sem_t)
DEADLINE(pthread_mutex_timedlock, pthread_mutex_t)

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = moved_back(until);
    return real(condition, mutex, &moved);
}

/* Times of files. `struct stat` and `struct stat64` are the same on 64-bit Linux. */
static int moved_file(int failed, struct stat *found) {
    if (!failed) {
        found->st_mtim.tv_sec += shift(found->st_mtim.tv_sec, found->st_mtim.tv_nsec);
        found->st_ctim.tv_sec += shift(found->st_ctim.tv_sec, found->st_ctim.tv_nsec);
    }
    return failed;
}

static int status_at(int folder, const char *path, struct stat *found, int flags) {
    return moved_file((int)syscall(SYS_newfstatat, folder, path, found, flags), found);
}

int stat(const char *restrict path, struct stat *restrict found) { return status_at(AT_FDCWD, path, found, 0); }
int lstat(const char *restrict path, struct stat *restrict found) {
    return status_at(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}
int fstat(int file, struct stat *found) { return moved_file((int)syscall(SYS_fstat, file, found), found); }
int fstatat(int folder, const char *restrict path, struct stat *restrict found, int flags) {
    return status_at(folder, path, found, flags);
}
int stat64(const char *restrict path, struct stat64 *restrict found) { return stat(path, (struct stat *)found); }
int lstat64(const char *restrict path, struct stat64 *restrict found) { return lstat(path, (struct stat *)found); }
int fstat64(int file, struct stat64 *found) { return fstat(file, (struct stat *)found); }
int fstatat64(int folder, const char *restrict path, struct stat64 *restrict found, int flags) {
    return status_at(folder, path, (struct stat *)found, flags);
}
int __xstat(int version, const char *path, struct stat *found) { (void)version; return stat(path, found); }
int __lxstat(int version, const char *path, struct stat *found) { (void)version; return lstat(path, found); }
int __fxstat(int version, int file, struct stat *found) { (void)version; return fstat(file, found); }
int __xstat64(int version, const char *path, struct stat64 *found) { (void)version; return stat64(path, found); }
int __lxstat64(int version, const char *path, struct stat64 *found) { (void)version; return lstat64(path, found); }
int __fxstat64(int version, int file, struct stat64 *found) { (void)version; return fstat64(file, found); }

int statx(int folder, const char *restrict path, int flags, unsigned int mask, struct statx *restrict found) {
    int failed = (int)syscall(SYS_statx, folder, path, flags, mask, found);
    if (!failed) {
        found->stx_mtime.tv_sec += shift(found->stx_mtime.tv_sec, found->stx_mtime.tv_nsec);
        found->stx_ctime.tv_sec += shift(found->stx_ctime.tv_sec, found->stx_ctime.tv_nsec);
    }
    return failed;
}
