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
#ifndef KOPS_TEST_SCRIPTED_H
#define KOPS_TEST_SCRIPTED_H

#include <pthread.h>

#include "test.h"

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

/* What came so far. */
struct scripted scene_seen(struct scene *s);

/* A run with the tag "x". */
enum kops_code scene_run(struct scene *s);

/* A scene as the state of a test. */
int scene_begin(void **state);
int scene_end(void **state);

#define SCENE(name) TEST_OF(struct scene *s, name, scene_begin, scene_end)

#endif
