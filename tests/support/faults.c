// Sits between a process and the C library: counts the calls that change files below a folder and strikes at the n-th.
// Loaded with LD_PRELOAD, so that it also sees the writes of Rust and C++ libraries; faults.py arms it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { KILL, TORN, FULL };  // the same order as Action in faults.py

static char root[PATH_MAX];
static long strike_at, calls;
static int action, journal = -1;

void faults_arm(const char *folder, long at, int what, int journal_fd) {
    snprintf(root, sizeof root, "%s", folder);
    strike_at = at, action = what, calls = 0, journal = journal_fd;
}

// Whether the path is the folder or in it.
static int below(const char *path) {
    size_t n = strlen(root);
    return journal >= 0 && strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static const char *path_of(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n < 0 ? 0 : n] = 0;
    return out;
}

static const char *path_at(int dir, const char *name, char *out) {
    char folder[PATH_MAX];
    if (name[0] == '/' || dir == AT_FDCWD) snprintf(out, PATH_MAX, "%s", name);
    else snprintf(out, PATH_MAX, "%s/%s", path_of(dir, folder), name);
    return out;
}

static unsigned long inode_of(int fd) {
    struct stat file;
    return fstat(fd, &file) ? 0 : file.st_ino;
}

static unsigned long inode_at(int dir, const char *name) {
    struct stat file;
    return fstatat(dir, name, &file, AT_SYMLINK_NOFOLLOW) ? 0 : file.st_ino;
}

static void note(const char *call, const char *path, const char *other, unsigned long inode, long size) {
    dprintf(journal, "%s\t%s\t%s\t%lu\t%ld\n", call, path, other, inode, size);
}

// Returns 1 when this call must fail; does not return from a kill. A torn write is done by its caller.
static int strike(int needs_space) {
    if (++calls < strike_at || strike_at == 0) return 0;
    if (action == FULL && needs_space) return errno = ENOSPC, 1;
    if (calls == strike_at && action == KILL) kill(getpid(), SIGKILL);
    return 0;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITE(name, fd, half, ...)                                           \
    REAL(name);                                                              \
    char path[PATH_MAX];                                                     \
    if (journal < 0 || !below(path_of(fd, path))) return real(__VA_ARGS__);  \
    if (strike(1)) return -1;                                                \
    if (action == TORN && calls == strike_at) { half; kill(getpid(), SIGKILL); } \
    ssize_t done = real(__VA_ARGS__);                                        \
    note("write", path, "", inode_of(fd), done);                                       \
    return done;

ssize_t write(int fd, const void *data, size_t size) { WRITE(write, fd, real(fd, data, size / 2), fd, data, size) }

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    WRITE(pwrite64, fd, real(fd, data, size / 2, at), fd, data, size, at)
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    WRITE(writev, fd, real(fd, parts, count / 2), fd, parts, count)
}

#define CHANGE(call, name, path, other, inode, ...)             \
    REAL(name);                                                 \
    if (!below(path)) return real(__VA_ARGS__);                 \
    if (strike(strcmp(call, "remove"))) return -1;              \
    unsigned long changed = inode;                              \
    int failed = real(__VA_ARGS__);                             \
    if (!failed) note(call, path, other, changed, 0);           \
    return failed;

int fsync(int fd) {
    char path[PATH_MAX];
    path_of(fd, path);
    CHANGE("fsync", fsync, path, "", inode_of(fd), fd)
}

int fdatasync(int fd) {
    char path[PATH_MAX];
    path_of(fd, path);
    CHANGE("fsync", fdatasync, path, "", inode_of(fd), fd)
}

int rename(const char *from, const char *to) { CHANGE("rename", rename, from, to, 0, from, to) }
int mkdir(const char *path, mode_t mode) { CHANGE("mkdir", mkdir, path, "", 0, path, mode) }
int symlink(const char *target, const char *path) { CHANGE("symlink", symlink, path, "", 0, target, path) }

int unlink(const char *name) { CHANGE("remove", unlink, name, "", inode_at(AT_FDCWD, name), name) }
int rmdir(const char *name) { CHANGE("remove", rmdir, name, "", inode_at(AT_FDCWD, name), name) }

int unlinkat(int dir, const char *name, int flags) {
    char path[PATH_MAX];
    path_at(dir, name, path);
    CHANGE("remove", unlinkat, path, "", inode_at(dir, name), dir, name, flags)
}
