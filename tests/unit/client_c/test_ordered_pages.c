/* Pages of timelines, which the driver knows: given back whoever closes the client, and not to others too early. */
#include <stdio.h>

#include "ordered_fake.h"

enum { UNKNOWN = 999, PAGES_MAX = 64 };

struct pages {
    void *at[PAGES_MAX];
    unsigned n;
};

/* Shared memory that a device knows: pages of timelines, also of earlier tests. */
static struct pages registered_pages(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    struct pages pages = {.n = 0};
    char line[512];
    unsigned flags;
    void *page;

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        if (strstr(line, "/memfd:") && sscanf(line, "%p-", &page) == 1 && cu.host_flags(&flags, page) == 0) {
            assert_true(pages.n < PAGES_MAX);
            pages.at[pages.n++] = page;
        }
    fclose(maps);
    return pages;
}

static bool contains(const struct pages *pages, const void *page)
{
    for (unsigned i = 0; i < pages->n; i++)
        if (pages->at[i] == page)
            return true;
    return false;
}

/* A client with a page, which is not among those before; nothing is left to do on it. */
static struct setting *start_with_a_page(void **ret_page)
{
    const struct pages before = registered_pages();
    struct setting *s = start(KOPS_TRANSPORT_SHM, 30);
    struct pages now;

    assert_ok(enqueue(s, "x"));
    assert_ok(kops_synchronize(s->client, KOPS_ALL_STREAMS, 0, &s->error));
    assert_int_equal(cu.synchronize(), 0);
    now = registered_pages();
    assert_int_equal(now.n, before.n + 1);
    for (unsigned i = 0; i < now.n; i++)
        if (!contains(&before, now.at[i]))
            *ret_page = now.at[i];
    return s;
}

/* Without a context. */
static void *close_client(void *client)
{
    kops_close(client);
    return NULL;
}

static void a_page_is_given_back_in_any_thread(void **state)
{
    void *page = NULL;
    struct setting *s = start_with_a_page(&page);
    struct pages now;

    (void)state;
    in_threads(1, close_client, s->client, 0);
    s->client = NULL;
    now = registered_pages();
    assert_false(contains(&now, page));
    stop(s);
}

static void a_page_that_the_driver_keeps_keeps_its_addresses(void **state)
{
    void *page = NULL;
    struct setting *s = start_with_a_page(&page);
    const struct standin_fault *fault;
    struct pages now;

    (void)state;
    fault = fail_next("cuMemHostUnregister", 1, UNKNOWN, false);
    kops_close(s->client);
    s->client = NULL;
    assert_int_equal(fault->armed, 0);
    now = registered_pages();
    assert_true(contains(&now, page));
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_given_back_in_any_thread),
        cmocka_unit_test(a_page_that_the_driver_keeps_keeps_its_addresses),
    };
    int failed;

    open_control();
    failed = cmocka_run_group_tests(tests, load_for_all, NULL);
    close_control();
    return failed;
}
