// Shows files and folders as a program does that makes its system calls itself, and is linked statically: no library can be put in front of it.
//
// usage: raw PATH...    each path with all below, links with their texts, files with what is in them
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct entry {
    uint64_t number;
    int64_t next;
    unsigned short length;
    unsigned char type;
    char name[];
};

static int compare(const void *one, const void *other) { return strcmp(*(char *const *)one, *(char *const *)other); }

static void show(const char *path) {
    static const int plain = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    char text[4096];
    long length = syscall(SYS_readlinkat, AT_FDCWD, path, text, sizeof text);
    if (length >= 0) {
        printf("%s -> %.*s\n", path, (int)length, text);
        return;
    }
    long folder = syscall(SYS_openat, AT_FDCWD, path, plain | O_DIRECTORY, 0);
    if (folder < 0) {
        long file = syscall(SYS_openat, AT_FDCWD, path, plain, 0);
        length = file < 0 ? -1 : syscall(SYS_read, file, text, sizeof text);
        printf("%s: %ld %.*s\n", path, length, length < 0 ? 0 : (int)length, text);
        syscall(SYS_close, file);
        return;
    }
    printf("%s/\n", path);
    char *names[4096];
    size_t count = 0;
    while ((length = syscall(SYS_getdents64, folder, text, sizeof text)) > 0)
        for (long at = 0; at < length; at += ((struct entry *)(text + at))->length) {
            const char *name = ((struct entry *)(text + at))->name;
            if (strcmp(name, ".") && strcmp(name, "..") && count < sizeof names / sizeof *names) names[count++] = strdup(name);
        }
    syscall(SYS_close, folder);
    qsort(names, count, sizeof *names, compare);
    for (size_t index = 0; index < count; index++) {
        char *below;
        if (asprintf(&below, "%s/%s", path, names[index]) < 0) exit(2);
        show(below);
        free(below);
        free(names[index]);
    }
}

int main(int count, char **arguments) {
    for (int index = 1; index < count; index++) show(arguments[index]);
    return 0;
}
