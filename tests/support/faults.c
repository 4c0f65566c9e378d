// SPDX-License-Identifier: Apache-2.0
// Lets one call that changes files below a folder fail: the n-th of the process, counted from `faults_arm`.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char top[4096];
static atomic_long seen, wanted;
static char where[4200];

void faults_arm(const char *folder, long number) {
    strncpy(top, folder, sizeof top - 1);
    seen = 0;
    wanted = number;
}

long faults_seen(void) { return seen; }

const char *faults_where(void) { return where; }

static int is_below(const char *path) {
    return top[0] && strncmp(path, top, strlen(top)) == 0 && path[strlen(top)] == '/';
}

static void name_fd(int fd, char *out, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, size - 1);
    out[length < 0 ? 0 : length] = 0;
}

// Space runs out where something is made or written; what only changes names, or waits, meets a broken disk.
static int fails(const char *call, const char *path, int error) {
    if (!is_below(path) || ++seen != wanted) return 0;
    snprintf(where, sizeof where, "%s %s", call, path);
    errno = error;
    return 1;
}

static int fails_fd(const char *call, int fd, int error) {
    char path[4096];
    if (!top[0]) return 0;
    name_fd(fd, path, sizeof path);
    return fails(call, path, error);
}

static int fails_at(const char *call, int dir, const char *path, int error) {
    char whole[8192], folder[4096];
    int fd, used = 0;
    if (!top[0]) return 0;
    if (sscanf(path, "/proc/self/fd/%d%n", &fd, &used) == 1 && used) {
        name_fd(fd, folder, sizeof folder);
        snprintf(whole, sizeof whole, "%s%s", folder, path + used);
    } else if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        if (dir == AT_FDCWD) {
            if (!getcwd(folder, sizeof folder)) folder[0] = 0;
        } else {
            name_fd(dir, folder, sizeof folder);
        }
        snprintf(whole, sizeof whole, "%s/%s", folder, path);
    }
    return fails(call, whole, error);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                         \
    int name(const char *path, int flags, ...) {                                           \
        va_list rest;                                                                      \
        va_start(rest, flags);                                                             \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;          \
        va_end(rest);                                                                      \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails_at("open", AT_FDCWD, path, ENOSPC)) \
            return -1;                                                                     \
        return REAL(name)(path, flags, mode);                                              \
    }
#define OPENAT(name)                                                                       \
    int name(int dir, const char *path, int flags, ...) {                                  \
        va_list rest;                                                                      \
        va_start(rest, flags);                                                             \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;          \
        va_end(rest);                                                                      \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails_at("open", dir, path, ENOSPC)) \
            return -1;                                                                     \
        return REAL(name)(dir, path, flags, mode);                                         \
    }
#define CALL(type, name, list, words, test) \
    type name list { return test ? -1 : REAL(name) words; }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CALL(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), fails_fd("write", fd, ENOSPC))
CALL(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count),
     fails_fd("write", fd, ENOSPC))
CALL(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at),
     fails_fd("write", fd, ENOSPC))
CALL(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at),
     fails_fd("write", fd, ENOSPC))
CALL(int, ftruncate, (int fd, off_t size), (fd, size), fails_fd("truncate", fd, ENOSPC))
CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), fails_fd("truncate", fd, ENOSPC))
CALL(ssize_t, copy_file_range,
     (int from, off64_t *at, int to, off64_t *there, size_t size, unsigned int flags),
     (from, at, to, there, size, flags), fails_fd("write", to, ENOSPC))
// No power is cut here: a sync that does not fail need not wait for the disk.
int fsync(int fd) { return fails_fd("fsync", fd, EIO) ? -1 : 0; }
int fdatasync(int fd) { return fails_fd("fsync", fd, EIO) ? -1 : 0; }
int syncfs(int fd) { return fails_fd("fsync", fd, EIO) ? -1 : 0; }
CALL(int, rename, (const char *from, const char *to), (from, to), fails_at("rename", AT_FDCWD, to, EIO))
CALL(int, renameat, (int dir, const char *from, int there, const char *to), (dir, from, there, to),
     fails_at("rename", there, to, EIO))
CALL(int, link, (const char *from, const char *to), (from, to), fails_at("link", AT_FDCWD, to, ENOSPC))
CALL(int, linkat, (int dir, const char *from, int there, const char *to, int flags),
     (dir, from, there, to, flags), fails_at("link", there, to, ENOSPC))
CALL(int, unlink, (const char *path), (path), fails_at("unlink", AT_FDCWD, path, EIO))
CALL(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags),
     fails_at("unlink", dir, path, EIO))
CALL(int, rmdir, (const char *path), (path), fails_at("rmdir", AT_FDCWD, path, EIO))
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), fails_at("mkdir", AT_FDCWD, path, ENOSPC))
CALL(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode),
     fails_at("mkdir", dir, path, ENOSPC))
CALL(int, fchmod, (int fd, mode_t mode), (fd, mode), fails_fd("chmod", fd, EPERM))
CALL(int, chmod, (const char *path, mode_t mode), (path, mode), fails_at("chmod", AT_FDCWD, path, EPERM))
CALL(int, symlink, (const char *from, const char *to), (from, to), fails_at("link", AT_FDCWD, to, ENOSPC))
CALL(int, flock, (int fd, int what), (fd, what), !(what & LOCK_UN) && fails_fd("lock", fd, ENOLCK))
