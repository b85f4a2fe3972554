/* What tests of libkops share: threads, children, a fake daemon that obeys a script, and a client of it. */
#ifndef KOPS_TEST_SCENE_H
#define KOPS_TEST_SCENE_H

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

/* Runs `work` in a child: what it returns, and -1 where that did not end well. in_child() wants 0. */
int child_status(int (*work)(void *), void *context);
void in_child(int (*work)(void *), void *context);

/* Threads, each of which works on its own one of the contexts, which are of that size; 0: all have the same one. Fails
 * with what `work` returns, the text of what failed, or NULL. */
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

/* A fake daemon that does to each piece of work what the next letter of a script says, whatever its connection:
 *
 *     .  answers                                   x  hangs up
 *     d  answers device_lost and hangs up          D  answers device_lost
 *     g  answers device_lost, daemon: goes_on      t  answers job_timeout, daemon: goes_on
 *     s  answers shutting_down                     S  answers shutting_down and hangs up
 *     n, k, p  notifies of device_lost, shutting_down, protocol_error and hangs up
 *     u  answers unknown_method                    r  answers with the code `refusal`
 *     c  answers compile_failed with a long log    f  answers shape_mismatch with details
 *     b  answers and hangs up                      _  never answers
 *     w  answers when it is told to cancel it      W  answers cancelled then
 *     l  answers behind the next request
 *     *  the letter before, again and again
 *
 * After the script everything is answered. Work is every request of the methods that the test names, or run, launch,
 * sequence and run_program. Answers to work that come late are of the variant "late".
 *
 * A scene is a client of such a daemon: what most tests of libkops begin and end with. */
enum { LOG_BYTES = 200000 };

struct scripted {
    pthread_mutex_t lock;
    const char *script;
    const char *methods; /* separated by spaces; NULL: those above */
    const char *answer;  /* to these methods, as text; NULL: a good one */
    const char *refusal; /* every registration on a second connection, and later, is refused with this code */
    void (*look_at)(void *context, const struct fake_request *r); /* a request, before it is answered; or NULL */
    void *context;

    /* What came. */
    unsigned work, connections, registered, compiled, defined, cancelled, by_ring, by_socket, with_fds_by_ring;
    unsigned requests[8]; /* by the connection's number */
    char asked[1024];     /* the parameters of the last work, as text */
    char last[32];        /* the last method */
    char order[64];       /* C compile, K kernel, L launch, S sequence, P program, R run_program, r release */
    char released[256];   /* the parameters of the releases, as texts */
};

void scripted_serve(struct fake_connection *c, void *context);

struct scene {
    struct scripted d;
    struct fake *fake;
    kops_client *client;
    struct kops_error error;
    struct tagged t;
    kops_buffer *made[4];
    unsigned n_made;
};

/* A client whose daemon answers everything; NULL options: none but the socket, which is set anyway. */
struct scene *scene_start(const struct kops_connect_options *options);
/* A client whose daemon is `serve`. */
struct scene *scene_serve(fake_serve *serve, void *context, const struct kops_connect_options *options);
void scene_stop(struct scene *s);

/* What the daemon does from now on; work is counted anew. */
void scene_script(struct scene *s, const char *script, const char *methods);
/* It answers these methods so. */
void scene_answer(struct scene *s, const char *methods, const char *answer);

/* What came so far; whether these were the parameters of the last work. */
struct scripted scene_seen(struct scene *s);
void scene_asked(struct scene *s, const char *expected);

/* Shared memory, released by scene_stop(). */
kops_buffer *scene_memory(struct scene *s, size_t size);

/* A run with the tag "x". */
enum kops_code scene_run(struct scene *s);

/* A scene as the state of a test. */
int scene_begin(void **state);
int scene_end(void **state);

#define SCENE(name) TEST_OF(struct scene *s, name, scene_begin, scene_end)

#endif
