#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

void in_child(int (*work)(void *), void *context)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(work(context));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

void threads_start(struct threads *t, unsigned n, void *(*work)(void *), void *contexts, size_t size)
{
    for (t->n = 0; t->n < n; t->n++)
        assert_int_equal(pthread_create(&t->at[t->n], NULL, work, (char *)contexts + t->n * size), 0);
}

void threads_join(struct threads *t)
{
    const char *failed[sizeof(t->at) / sizeof(t->at[0])];

    for (unsigned i = 0; i < t->n; i++) {
        void *said;

        assert_int_equal(pthread_join(t->at[i], &said), 0);
        failed[i] = said;
    }
    for (unsigned i = 0; i < t->n; i++)
        if (failed[i])
            fail_msg("thread %u: %s", i, failed[i]);
}

void in_threads(unsigned n, void *(*work)(void *), void *contexts, size_t size)
{
    struct threads t;

    threads_start(&t, n, work, contexts, size);
    threads_join(&t);
}

void assert_packed(const void *data, size_t length, const char *message)
{
    msgpack_sbuffer expected;
    msgpack_unpacked got;
    char text[2048] = "no message";

    fake_pack(&expected, message);
    if (length != expected.size || memcmp(data, expected.data, length) != 0) {
        msgpack_unpacked_init(&got);
        if (msgpack_unpack_next(&got, data, length, NULL) == MSGPACK_UNPACK_SUCCESS)
            fake_print(&got.data, text, sizeof(text));
        fail_msg("%zu bytes, not %zu: %s", length, expected.size, text);
    }
    msgpack_sbuffer_destroy(&expected);
}
