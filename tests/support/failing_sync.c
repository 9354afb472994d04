// Makes one fsync of a database fail, as a disk that loses what it was given: the file is then as it was at its last
// fsync that succeeded, and later ones succeed again. `FAILS_ONCE` names a file; while it exists, the next fsync fails.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy(const char *from, const char *to) {
    char block[65536];
    ssize_t length;
    int input = open(from, O_RDONLY), output = open(to, O_WRONLY | O_CREAT, 0600);
    while (input >= 0 && output >= 0 && (length = read(input, block, sizeof block)) > 0)
        if (write(output, block, length) != length) abort();
    close(input);
    close(output);
}

static int synced(int fd, const char *name) {
    char link[64], path[512], copied[600];
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return real(fd);
    path[length] = 0;
    const char *end = strrchr(path, '/');
    if (!end || strcmp(end, "/journal.db")) return real(fd);
    snprintf(copied, sizeof copied, "%s.synced", path);
    const char *fails = getenv("FAILS_ONCE");
    if (fails && unlink(fails) == 0) {
        copy(copied, path);
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    unlink(copied);
    copy(path, copied);
    return result;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
