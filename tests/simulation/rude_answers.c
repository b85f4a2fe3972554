/* Answers that are looked at. */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "rude.h"

enum { ANSWER_BYTES = 256 << 10, ANSWER_MS = 20000 };

const msgpack_object *value_of(const msgpack_object *map, const char *key)
{
    for (uint32_t i = 0; map && map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const msgpack_object_kv *pair = &map->via.map.ptr[i];

        if (pair->key.type == MSGPACK_OBJECT_STR && pair->key.via.str.size == strlen(key) &&
            !memcmp(pair->key.via.str.ptr, key, strlen(key)))
            return &pair->val;
    }
    return NULL;
}

uint64_t number_of(const msgpack_object *map, const char *key)
{
    const msgpack_object *value = value_of(map, key);

    return value && value->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? value->via.u64 : 0;
}

const msgpack_object *result_of(const msgpack_unpacked *answer)
{
    return &answer->data.via.array.ptr[3];
}

/* The next bytes of the answer, and its descriptors. */
static ssize_t receive(char *into, size_t room, int *fds)
{
    char control[CMSG_SPACE(RUDE_FDS * sizeof(int))];
    struct iovec part = {into, room};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct pollfd answer = {.fd = link_fd, .events = POLLIN};
    const struct cmsghdr *header;
    ssize_t n;

    if (poll(&answer, 1, ANSWER_MS) != 1 || (n = recvmsg(link_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) <= 0)
        return -1;
    header = CMSG_FIRSTHDR(&message);
    if (fds && header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(RUDE_FDS * sizeof(int)))
        memcpy(fds, CMSG_DATA(header), RUDE_FDS * sizeof(int));
    return n;
}

bool receive_answer(msgpack_unpacked *ret_answer, int *ret_fds)
{
    static char bytes[ANSWER_BYTES];
    size_t have = 0, at;
    ssize_t n;

    msgpack_unpacked_init(ret_answer);
    while (have < sizeof(bytes) && (n = receive(bytes + have, sizeof(bytes) - have, ret_fds)) > 0) {
        have += (size_t)n;
        at = 0;
        if (msgpack_unpack_next(ret_answer, bytes, have, &at) != MSGPACK_UNPACK_SUCCESS)
            continue;
        if (ret_answer->data.type == MSGPACK_OBJECT_ARRAY && ret_answer->data.via.array.size == 4)
            return true;
        break;
    }
    msgpack_unpacked_destroy(ret_answer);
    return false;
}
