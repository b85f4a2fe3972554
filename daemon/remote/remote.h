/* A store of bodies by key on an HTTP server, as the daemon sees it. The helper, a process that has the network and
 * none of the daemon's memory (fetch.h), speaks HTTP; the daemon has no network.
 *
 * Nobody waits for the store: questions are refused when there are too many, when the helper is not there, and for a
 * while after failures (breaker.h). A body is bytes from a stranger: the caller must verify it, and report the result.
 *
 * Thread: the loop's; no function blocks. */
#ifndef KOPS_REMOTE_REMOTE_H
#define KOPS_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "remote/wire.h"
#include "util/error.h"

struct remote;
struct remote_request;

enum {
    REMOTE_GETS = 16,     /* gets at the helper at one time */
    REMOTE_PUTS = 4,      /* puts at the helper at one time */
    REMOTE_WAITING = 256, /* gets and puts that wait for these */
};

/* Configuration. Texts are copied; NULL: none. */
struct remote_config {
    const char *url;           /* the folder that the bodies are below */
    const char *authorization; /* the header's value */
    const char *ca;            /* file of certificates of authorities, in place of the system's */
    const char *helper;        /* path of the socket of a helper that is a service of its own; NULL: one is started */
    const char *user;          /* for a helper that root starts; NULL: nobody */
    const char *binary;        /* the program that is started; NULL: this one */
    unsigned timeout_ms;       /* for one transfer */
    uint64_t max_bytes;
};

/* Starts the helper at once, so that the first question finds it ready. */
struct remote *remote_new(uv_loop_t *loop, const struct remote_config *config, struct error *e);

/* Tells whether the remote was made with an equal configuration. */
bool remote_is(const struct remote *r, const struct remote_config *config);

/* Drops the requests without calling their done(), ends the helper, frees all and calls closed(). */
void remote_close(struct remote *r, void (*closed)(void *context), void *context);

enum remote_status { REMOTE_HIT, REMOTE_MISS, REMOTE_FAILED };

/* Outcome of a request. HIT of a get: `fd` is a descriptor that the helper sent, now the callee's, unchecked
 * (remote_body_size()); the callee must call remote_judge() once. FAILED: `why` is the reason. */
typedef void remote_done(void *context, enum remote_status status, int fd, const char *why);

/* Asks for a body. done() is called later, once, unless the request is cancelled. NULL: the store is not asked now, or
 * there is no memory. */
struct remote_request *remote_get(struct remote *r, const unsigned char key[REMOTE_KEY_BYTES], remote_done *done,
                                  void *context);
/* Stores a body. `fd`: a sealed memfd, taken in every case. */
struct remote_request *remote_put(struct remote *r, const unsigned char key[REMOTE_KEY_BYTES], int fd,
                                  remote_done *done, void *context);
/* Cancels a request; done() is not called. `too_slow`: the compiler has answered before, which counts as a failure. */
void remote_cancel(struct remote_request *q, bool too_slow);

/* Reports whether the body of a get was right. A server whose bodies are wrong is treated as one that does not answer.
 */
void remote_judge(struct remote *r, bool good, const char *why);

enum remote_state {
    REMOTE_STARTING, /* the helper gets ready: questions wait */
    REMOTE_SERVING,
    REMOTE_RESTING, /* after failures: the server is not asked */
    REMOTE_DOWN,    /* no helper runs */
};

/* "starting", … */
extern const char *const remote_state_names[];

struct remote_report {
    enum remote_state state;
    uint64_t rests_ms;         /* RESTING */
    uint64_t skipped;          /* questions that were refused */
    char why[REMOTE_WHY_SIZE]; /* the last failure; "": none so far */
};

void remote_report(const struct remote *r, struct remote_report *ret);

#endif
