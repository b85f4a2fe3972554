/* A registry of mappings over a backend that counts what is open. */
#ifndef KOPS_TEST_MAPPING_SUPPORT_H
#define KOPS_TEST_MAPPING_SUPPORT_H

#include <stdatomic.h>

#include "backend/mapping.h"
#include "tests/support/unit.h"

extern atomic_uint n_open, n_opened;
extern atomic_bool refuse_open; /* the backend opens and extends nothing */
extern struct backend_device fake_device;
extern const struct mapping_owner ann, ann_too, bob; /* ann_too: another process of ann's */

extern uv_loop_t loop;
extern struct mapping_registry registry;

/* For each test; at its end nothing may be open. */
int set_up(void **state);
int tear_down(void **state);
/* Until nothing is being opened or closed. */
void settle(void);
/* 64 bytes of that letter. Those of 'u' may be open more than once. */
struct backend_import handle(char name);
int get(char name, uint64_t id, struct mapping_owner owner, struct mapping **ret, struct error *e);
/* The context is an int: 1, or -1 where it failed. */
void on_ready(struct mapping_waiter *w, bool ok);

#define MAPPING_TEST(name) TEST_WITH(name, set_up, tear_down)

#endif
