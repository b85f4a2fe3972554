/* What every test of libkops includes. */
#ifndef KOPS_TEST_TEST_H
#define KOPS_TEST_TEST_H

#include <kops/kops.h>
#include <pthread.h>

#include "fake.h"
#include "tests/support/unit.h"

/* Fails the test with the error's message. */
#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        enum kops_code code_ = (call);                                                                                 \
                                                                                                                       \
        if (code_)                                                                                                     \
            fail_msg("%s: %s", #call, kops_code_name(code_));                                                          \
    } while (0)

/* Runs `work` in a child; fails the test unless it returns 0. */
void in_child(int (*work)(void *), void *context);

/* Threads, each of which works on its own one of the contexts, which are of that size; 0: all have the same one. What
 * `work` returns is the text of what failed, or NULL. */
struct threads {
    pthread_t at[8];
    unsigned n;
};

void threads_start(struct threads *t, unsigned n, void *(*work)(void *), void *contexts, size_t size);
/* Fails the test with what failed. */
void threads_join(struct threads *t);
void in_threads(unsigned n, void *(*work)(void *), void *contexts, size_t size);

/* The bytes are those of this message (fake_text.c), with each number in its shortest form. */
void assert_packed(const void *data, size_t length, const char *message);

/* Vectors of f32, one behind the other in a buffer. */
static inline void vectors_in(kops_buffer *buffer, int64_t length, unsigned n, struct kops_tensor *ret)
{
    for (unsigned i = 0; i < n; i++) {
        ret[i] = kops_vector(buffer, KOPS_F32, length);
        ret[i].offset = i * (uint64_t)length * sizeof(float);
    }
}

/* A run on nothing: tensors with a dimension of 0 need no memory. `tag` comes as the attribute of that name. */
struct tagged {
    struct kops_tensor tensors[2];
    struct kops_attr attr;
    struct kops_request request;
};

static inline const struct kops_request *tagged_run(struct tagged *t, const char *tag)
{
    memset(t, 0, sizeof(*t));
    t->tensors[0] = t->tensors[1] = kops_vector(NULL, KOPS_F32, 0);
    t->attr = kops_attr_text("tag", tag);
    t->request = (struct kops_request){.op = "square",
                                       .inputs = &t->tensors[0],
                                       .n_inputs = 1,
                                       .outputs = &t->tensors[1],
                                       .n_outputs = 1,
                                       .attrs = &t->attr,
                                       .n_attrs = 1};
    return &t->request;
}

#endif
