/* A store of bodies by key on an HTTP server, as the daemon sees it. The helper, a process that has the network and
 * none of the daemon's memory (fetch.c), speaks HTTP; the daemon has no network.
 *
 * Nobody waits for the store: questions are refused when there are too many, when the helper is not there, and for a
 * while after failures. A body is bytes from a stranger: the caller must verify it, and report the result.
 *
 * Thread: the loop's; no function blocks. */
#ifndef KOPS_REMOTE_REMOTE_H
#define KOPS_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "remote/wire.h"
#include "util/error.h"

/* A circuit breaker: after some failures in a row no question is asked for a time, which doubles with each trial that
 * fails. Thread: the caller's. */

enum {
    BREAKER_FAILURES = 3,     /* failures in a row until it opens … */
    BREAKER_FIRST_MS = 1000,  /* … for this time, doubled with each trial that fails, … */
    BREAKER_LAST_MS = 300000, /* … up to this */
};

/* All zero at first: closed. Times are of one clock, in ms. */
struct breaker {
    unsigned failures; /* failures in a row, while closed */
    bool open, trying; /* trying: a trial is on its way */
    unsigned rest_ms;  /* length of this rest, or of the last one */
    uint64_t until_ms; /* when the rest ends */
};

/* Tells whether to ask now. When the rest of an open breaker is over, one caller gets true, for a trial. Each true must
 * be followed by one call of a function below: the question succeeded, failed, or its outcome is unknown. */
bool breaker_allows(struct breaker *b, uint64_t now_ms);

/* Return true when the breaker has closed, or has opened for the first time, for the log. */
bool breaker_succeed(struct breaker *b);
bool breaker_fail(struct breaker *b, uint64_t now_ms);
void breaker_abandon(struct breaker *b);

/* Returns the milliseconds until the next trial; 0: questions are allowed. */
uint64_t breaker_rests(const struct breaker *b, uint64_t now_ms);

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

/* The cache helper, which speaks HTTP: `kopsd --cache-helper`, a process that the daemon starts, or the service manager
 * for each connection of the daemon's (kopsd-cache@.service).
 *
 * The helper has the network and the names of hosts, reads the certificates of authorities and the configuration of the
 * resolver, and nothing else. Its only way to the daemon is a socket, and the daemon checks everything that comes from
 * it. */

#define REMOTE_HELPER_ARGUMENT "--cache-helper"

enum { REMOTE_HELPER_FD = 3 /* the connection; service managers use this number, too */ };

/* Tells whether main() was called for a helper. */
bool remote_helper_wanted(int argc, char **argv);

/* Runs the helper; returns the status to end with. Call it before anything else in main(). */
int remote_helper_main(int argc, char **argv);

#endif
