/* What every test of libkops includes. */
#ifndef KOPS_TEST_TEST_H
#define KOPS_TEST_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <kops/kops.h>

#include "fake.h"

/* Fails the test with the error's message. */
#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        enum kops_code code_ = (call);                                                                                 \
                                                                                                                       \
        if (code_)                                                                                                     \
            fail_msg("%s: %s", #call, kops_code_name(code_));                                                          \
    } while (0)

static inline kops_client *connect_to(const struct fake *f)
{
    struct kops_connect_options options = {.socket = fake_path(f)};
    struct kops_error error;
    kops_client *client = NULL;

    if (kops_connect(&options, &client, &error))
        fail_msg("connect: %s", error.message);
    return client;
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
