/* A client that no program would be: what its parts share. */
#ifndef KOPS_TESTS_SIMULATION_RUDE_H
#define KOPS_TESTS_SIMULATION_RUDE_H

#include <msgpack.h>

#include "../soak/random.h"

extern struct random dice;
extern msgpack_packer packer; /* into `request` */
extern msgpack_sbuffer request;
extern int link_fd;

/* rude.c */
void text(const char *word);
void make_empty(const char *method, bool answered); /* a request without parameters, or a notification */
bool send_bytes(size_t n, int fd);                  /* of `request`, with a descriptor unless it is -1 */

/* rude_answers.c: of a connection that has asked for one thing alone */
enum { RUDE_FDS = 3 };                                           /* that an answer brings at most */
bool receive_answer(msgpack_unpacked *ret_answer, int *ret_fds); /* ret_fds: NULL, or RUDE_FDS of them */
const msgpack_object *result_of(const msgpack_unpacked *answer);
const msgpack_object *value_of(const msgpack_object *map, const char *key); /* NULL: there is none */
uint64_t number_of(const msgpack_object *map, const char *key);

/* rude_ring.c: the shared memory of a connection */
bool ring_misuse(void); /* breaks the ring's rules, which makes the connection useless. Returns whether the daemon has
                           stopped reading it */

/* rude_links.c */
int make_lingering(void); /* returns a socket whose close() blocks until its peer reads, which it never does */
void give_away(int fd); /* closes the copy of what was sent, at once: the daemon, which has the other copy, may block */

#endif
