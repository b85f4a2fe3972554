#include "unit.h"

#include <stdbool.h>

enum { MAX_TESTS = 128, MAX_FILES = 32 };

/* The tests of a file, in the order in which they stand there. */
static struct file {
    const char *name;
    struct CMUnitTest tests[MAX_TESTS];
    unsigned lines[MAX_TESTS], n;
    CMFixtureFunction set_up, tear_down;
} files[MAX_FILES];
static unsigned n_files;
static int (*first)(int argc, char **argv);

static struct file *file_of(const char *name)
{
    for (unsigned i = 0; i < n_files; i++)
        if (strcmp(files[i].name, name) == 0)
            return &files[i];
    if (n_files == MAX_FILES)
        abort();
    files[n_files].name = name;
    return &files[n_files++];
}

/* Constructors run in any order. */
void unit_add(const char *file, unsigned line, const struct CMUnitTest *test)
{
    struct file *f = file_of(file);
    unsigned at = f->n;

    if (f->n++ == MAX_TESTS)
        abort();
    for (; at && f->lines[at - 1] > line; at--) {
        f->tests[at] = f->tests[at - 1];
        f->lines[at] = f->lines[at - 1];
    }
    f->tests[at] = *test;
    f->lines[at] = line;
}

void unit_around_all(const char *file, CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    file_of(file)->set_up = set_up;
    file_of(file)->tear_down = tear_down;
}

void unit_first(int (*function)(int argc, char **argv))
{
    first = function;
}

/* ---- what a test has opened ---- */

enum { OPENED_MAX = 256 };

static struct {
    void *object;
    void (*close)(void *object);
} all[OPENED_MAX];
static unsigned n_opened, n_kept;

void *opened(void *object, void (*close)(void *object))
{
    assert_true(n_opened < OPENED_MAX);
    all[n_opened].object = object;
    all[n_opened++].close = close;
    return object;
}

static void (*take(const void *object))(void *)
{
    for (unsigned i = n_opened; i-- > 0;)
        if (all[i].object == object) {
            void (*const close)(void *) = all[i].close;

            for (n_opened--; i < n_opened; i++)
                all[i] = all[i + 1];
            return close;
        }
    fail_msg("this was not opened, or is closed already");
    return NULL;
}

void close_now(void *object)
{
    take(object)(object);
}

void closed_by_test(void *object)
{
    take(object);
}

unsigned opened_so_far(void)
{
    return n_opened;
}

void close_since(unsigned so_far)
{
    while (n_opened > so_far) {
        n_opened--;
        all[n_opened].close(all[n_opened].object);
    }
}

int close_opened(void **state)
{
    close_since(n_kept);
    return 0;
}

void keep_opened(void)
{
    n_kept = n_opened;
}

void close_kept(void)
{
    n_kept = 0;
    close_opened(NULL);
}

/* ---- all tests ---- */

/* Whether that is the file's name, without folders and ".c". */
static bool is_named(const struct file *f, const char *name)
{
    const char *base = strrchr(f->name, '/');
    const size_t length = strlen(name);

    base = base ? base + 1 : f->name;
    return strncmp(base, name, length) == 0 && strcmp(base + length, ".c") == 0;
}

int main(int argc, char **argv)
{
    int status = first ? first(argc, argv) : -1, n_run = 0, failed = 0;

    for (unsigned i = 0; status < 0 && i < n_files; i++)
        if (argc < 2 || is_named(&files[i], argv[1])) {
            struct file *f = &files[i];

            failed += _cmocka_run_group_tests(f->name, f->tests, f->n, f->set_up, f->tear_down);
            n_run++;
        }
    return status >= 0 ? status : n_run ? failed : 1;
}
