/* libcurl, loaded at run time by the helper only. So the daemon is linked with no library that speaks to a network, and
 * one binary serves machines with and without libcurl. The numbers and types are libcurl's stable interface (versions
 * since 7.28 have them all); tests/unit/remote compares them with the library's header where that is installed.
 *
 * Thread: the helper's only one. */
#ifndef KOPS_REMOTE_CURL_H
#define KOPS_REMOTE_CURL_H

typedef void *curl_handle;
struct curl_list;

enum curl_option {
    CURL_OPTION_WRITEDATA = 10001,
    CURL_OPTION_URL = 10002,
    CURL_OPTION_READDATA = 10009,
    CURL_OPTION_USERAGENT = 10018,
    CURL_OPTION_HTTPHEADER = 10023,
    CURL_OPTION_HEADERDATA = 10029,
    CURL_OPTION_CAINFO = 10065,
    CURL_OPTION_PRIVATE = 10103,
    CURL_OPTION_SEEKDATA = 10168,
    CURL_OPTION_WRITEFUNCTION = 20011,
    CURL_OPTION_READFUNCTION = 20012,
    CURL_OPTION_HEADERFUNCTION = 20079,
    CURL_OPTION_SEEKFUNCTION = 20167,
    CURL_OPTION_INFILESIZE_LARGE = 30115,
    CURL_OPTION_MAXFILESIZE_LARGE = 30117,
    CURL_OPTION_UPLOAD = 46,
    CURL_OPTION_FOLLOWLOCATION = 52,
    CURL_OPTION_NOSIGNAL = 99,
    CURL_OPTION_TIMEOUT_MS = 155,
    CURL_OPTION_CONNECTTIMEOUT_MS = 156,
    CURL_OPTION_PROTOCOLS = 181,
    CURL_OPTION_REDIR_PROTOCOLS = 182,
};

enum {
    CURL_HTTP = 1, /* for PROTOCOLS */
    CURL_HTTPS = 2,
    CURL_ALL = 3, /* features to set up */
    CURL_OK = 0,
    CURL_NO_HOST = 6,
    CURL_DONE = 1,
    CURL_READ_ABORT = 0x10000000,
    CURL_SEEK_OK = 0,
    CURL_SEEK_FAILED = 1,
    CURL_READABLE = 1,
    CURL_MULTI_CONNECTIONS = 13,
    CURL_INFO_RESPONSE_CODE = 0x200002,
    CURL_INFO_PRIVATE = 0x100015,
};

struct curl_wait {
    int fd;
    short events, revents;
};

struct curl_message {
    int what;
    curl_handle easy;
    union {
        void *whatever;
        int result;
    } data;
};

/* The functions, by libcurl's names: X(type, name, (parameters)). */
#define CURL_FUNCTIONS(X)                                                                                              \
    X(int, global_init, (long flags))                                                                                  \
    X(const char *, version, (void))                                                                                   \
    X(struct curl_list *, slist_append, (struct curl_list * list, const char *text))                                   \
    X(void, slist_free_all, (struct curl_list * list))                                                                 \
    X(curl_handle, easy_init, (void))                                                                                  \
    X(int, easy_setopt, (curl_handle easy, int option, ...))                                                           \
    X(int, easy_getinfo, (curl_handle easy, int info, ...))                                                            \
    X(void, easy_cleanup, (curl_handle easy))                                                                          \
    X(const char *, easy_strerror, (int result))                                                                       \
    X(curl_handle, multi_init, (void))                                                                                 \
    X(int, multi_setopt, (curl_handle multi, int option, ...))                                                         \
    X(int, multi_add_handle, (curl_handle multi, curl_handle easy))                                                    \
    X(int, multi_remove_handle, (curl_handle multi, curl_handle easy))                                                 \
    X(int, multi_perform, (curl_handle multi, int *ret_running))                                                       \
    X(int, multi_wait, (curl_handle multi, struct curl_wait * extra, unsigned n, int timeout_ms, int *ret_ready))      \
    X(struct curl_message *, multi_info_read, (curl_handle multi, int *ret_left))

struct curl_functions {
#define X(type, name, parameters) type(*name) parameters;
    CURL_FUNCTIONS(X)
#undef X
};

#endif
