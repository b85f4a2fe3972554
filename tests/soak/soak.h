/* A client that works at random, and what came of it. */
#ifndef SOAK_H
#define SOAK_H

#include <kops/kernel.h>

#include "work.h"

enum {
    PIPELINE = 16,
    CODES = 128,
    SAMPLES = 1 << 16, /* of latencies, picked at random */
    WITNESS = 1000     /* elements of each of its tensors */
};

struct soak {
    kops_client *client;
    struct random random;
    struct memory memory;
    struct work work[PIPELINE];
    kops_buffer *witness; /* kept for all of the time, over every restart: a, b, and what a program needs */
    struct kops_tensor kept[4];
    kops_program *program; /* NULL: none now */
    kops_kernel *kernel;   /* the same */
    bool kernels, forks, threads, streams;
    double think_s;        /* the longest pause between bursts of work; 0: none */
    struct stream *stream; /* NULL: no CUDA stream of its own */

    bool spoiled; /* its daemon hung up and may still write: what comes next uses other buffers */
    uint64_t requests, checked, wrong, lost, errors[CODES], timed;
    double samples[SAMPLES];
    double longest_us; /* of a turn in which nothing was lost */
};

/* turns.c */
double now_us(void);
double kept_value(unsigned tensor, unsigned i); /* element i of the witness's first two tensors */
bool explained(enum kops_code code);            /* a daemon that ends, or one at its limits, may answer this */
void check_kept(struct soak *s);
void turn(struct soak *s); /* some work */
void complain(struct soak *s, const char *what, const char *why);
void count_error(struct soak *s, const char *what, const struct kops_error *e);

/* soak_client.c */
void soak_begin(struct soak *s, const char *socket); /* connects */
void soak_end(struct soak *s);

/* think.c */
void check_times(struct soak *s, const struct kops_result *r, double begin_us); /* of a call that began then */
void think(struct soak *s, const char *socket);                                 /* some pause, or none */

/* stream.c */
void stream_begin(struct soak *s);
void stream_turn(struct soak *s);
void stream_end(struct soak *s);

#endif
