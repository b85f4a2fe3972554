#include "cache_support.h"
#include "compile/cache_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void module_key(unsigned seed, unsigned char ret_key[KEY_BYTES])
{
    for (unsigned i = 0; i < KEY_BYTES; i++)
        ret_key[i] = (unsigned char)(seed * 7 + i * 13 + 1);
    ret_key[5] = (unsigned char)seed;
    ret_key[6] = (unsigned char)(seed >> 8);
}

struct compiled *module_new(unsigned seed, size_t image_size)
{
    struct compiled *c = compiled_new();
    char text[64];

    assert_non_null(c);
    module_key(seed, c->key);
    snprintf(c->arch, sizeof(c->arch), "sm_90a");
    snprintf(c->compiler, sizeof(c->compiler), "NVRTC 13.0");
    c->compile_us = 1000.5 + seed;
    snprintf(text, sizeof(text), "warning %u", seed);
    c->log = strdup(text);
    c->entries = calloc(1, sizeof(*c->entries));
    c->n_entries = 1;
    snprintf(text, sizeof(text), "kernel%u<float>", seed);
    c->entries[0].name = strdup(text);
    snprintf(text, sizeof(text), "_Z7kernel%u", seed);
    c->entries[0].lowered = strdup(text);
    c->entries[0].registers = 16 + seed;
    c->entries[0].n_params = 2;
    c->entries[0].param_sizes[0] = c->entries[0].param_sizes[1] = 8;
    c->entries[0].param_offsets[1] = 8;
    c->image = malloc(image_size);
    c->image_size = image_size;
    for (size_t i = 0; i < image_size; i++)
        c->image[i] = (unsigned char)(i * 31 + seed);
    return c;
}

int compiled_verify(const struct compiled *c, struct error *e)
{
    if (c->image_size >= 3 && !memcmp(c->image, "bad", 3))
        return error_set(e, ERROR_INVALID_ARGUMENT, "the image has no such kernel");
    return 0;
}

void assert_same_module(const struct compiled *a, const struct compiled *b)
{
    assert_memory_equal(a->key, b->key, KEY_BYTES);
    assert_texts(a->arch, b->arch, a->log, b->log, a->entries[0].name, b->entries[0].name);
    assert_int_equal(a->entries[0].registers, b->entries[0].registers);
    assert_int_equal(a->image_size, b->image_size);
    assert_memory_equal(a->image, b->image, a->image_size);
}

const char *path_of_module(const char *directory, unsigned seed)
{
    unsigned char key[KEY_BYTES];
    char hex[KEY_HEX + 1];

    module_key(seed, key);
    key_to_hex(key, hex);
    return folder_path(directory, hex);
}

unsigned directory_count(const char *directory)
{
    DIR *d = opendir(directory);
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));)
        n += strcmp(entry->d_name, "secret") && strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(d);
    return n;
}

unsigned char *file_read(const char *path, size_t *ret_size)
{
    unsigned char *bytes;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    bytes = malloc((size_t)st.st_size + 1);
    assert_int_equal(read(fd, bytes, (size_t)st.st_size), st.st_size);
    close(fd);
    *ret_size = (size_t)st.st_size;
    return bytes;
}

void file_write(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

void file_used(const char *path, long seconds)
{
    struct timespec times[2];

    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static int log_fd = -1, saved_stderr = -1;

void log_begin(void)
{
    log_fd = memfd_create("log", MFD_CLOEXEC);
    saved_stderr = dup(STDERR_FILENO);
    assert_int_equal(dup2(log_fd, STDERR_FILENO), STDERR_FILENO);
}

unsigned log_end(const char *event)
{
    off_t size = lseek(log_fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    unsigned n = 0;

    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    assert_int_equal(pread(log_fd, text, (size_t)size, 0), size);
    close(log_fd);
    for (const char *at = text; (at = strstr(at, event)); at++)
        n++;
    free(text);
    return n;
}

static void disk_close(void *disk)
{
    cache_disk_close(disk);
}

struct cache_disk *disk_opened(const char *directory, uint64_t limit)
{
    struct cache_disk *d = NULL;
    struct error e;

    if (cache_disk_open(directory, limit, &d, &e) < 0)
        fail_msg("%s: %s", directory, e.message);
    return opened(d, disk_close);
}

void disk_store(struct cache_disk *d, unsigned seed, size_t size)
{
    struct compiled *c = module_new(seed, size);

    MUST(cache_disk_write(d, c, &e));
    compiled_unref(c);
}

bool disk_has(struct cache_disk *d, unsigned seed, size_t size)
{
    struct compiled *wanted = module_new(seed, size), *c;

    c = cache_disk_read(d, wanted->key, true);
    if (c)
        assert_same_module(c, wanted);
    compiled_unref(wanted);
    compiled_unref(c);
    return c;
}
