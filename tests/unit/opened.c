#include "opened.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { OPENED_MAX = 256 };

static struct {
    void *object;
    void (*close)(void *object);
} all[OPENED_MAX];
static unsigned n, n_kept;

void *opened(void *object, void (*close)(void *object))
{
    assert_true(n < OPENED_MAX);
    all[n].object = object;
    all[n++].close = close;
    return object;
}

static void (*take(const void *object))(void *)
{
    for (unsigned i = n; i-- > 0;)
        if (all[i].object == object) {
            void (*const close)(void *) = all[i].close;

            for (n--; i < n; i++)
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
    return n;
}

void close_since(unsigned so_far)
{
    while (n > so_far) {
        n--;
        all[n].close(all[n].object);
    }
}

int close_opened(void **state)
{
    close_since(n_kept);
    return 0;
}

void keep_opened(void)
{
    n_kept = n;
}

void close_kept(void)
{
    n_kept = 0;
    close_opened(NULL);
}
