/* The numbers and structs of remote/curl.h against libcurl's own header. */
#include <curl/curl.h>

/* The names of curl.h that are also libcurl's are none of these. */
#include "remote/curl.h"
#include "tests/support/unit.h"

#define SAME(ours, theirs)                                                                                             \
    {                                                                                                                  \
#ours, (long)(ours), (long)(theirs)                                                                            \
    }

static const struct {
    const char *name;
    long ours, theirs;
} numbers[] = {
    SAME(CURL_OPTION_WRITEDATA, CURLOPT_WRITEDATA),
    SAME(CURL_OPTION_URL, CURLOPT_URL),
    SAME(CURL_OPTION_READDATA, CURLOPT_READDATA),
    SAME(CURL_OPTION_USERAGENT, CURLOPT_USERAGENT),
    SAME(CURL_OPTION_HTTPHEADER, CURLOPT_HTTPHEADER),
    SAME(CURL_OPTION_HEADERDATA, CURLOPT_HEADERDATA),
    SAME(CURL_OPTION_CAINFO, CURLOPT_CAINFO),
    SAME(CURL_OPTION_PRIVATE, CURLOPT_PRIVATE),
    SAME(CURL_OPTION_WRITEFUNCTION, CURLOPT_WRITEFUNCTION),
    SAME(CURL_OPTION_READFUNCTION, CURLOPT_READFUNCTION),
    SAME(CURL_OPTION_HEADERFUNCTION, CURLOPT_HEADERFUNCTION),
    SAME(CURL_OPTION_INFILESIZE_LARGE, CURLOPT_INFILESIZE_LARGE),
    SAME(CURL_OPTION_MAXFILESIZE_LARGE, CURLOPT_MAXFILESIZE_LARGE),
    SAME(CURL_OPTION_UPLOAD, CURLOPT_UPLOAD),
    SAME(CURL_OPTION_FOLLOWLOCATION, CURLOPT_FOLLOWLOCATION),
    SAME(CURL_OPTION_NOSIGNAL, CURLOPT_NOSIGNAL),
    SAME(CURL_OPTION_TIMEOUT_MS, CURLOPT_TIMEOUT_MS),
    SAME(CURL_OPTION_CONNECTTIMEOUT_MS, CURLOPT_CONNECTTIMEOUT_MS),
    SAME(CURL_OPTION_PROTOCOLS, 181), /* deprecated names: the numbers stay */
    SAME(CURL_OPTION_REDIR_PROTOCOLS, 182),
    SAME(CURL_HTTP, CURLPROTO_HTTP),
    SAME(CURL_HTTPS, CURLPROTO_HTTPS),
    SAME(CURL_ALL, CURL_GLOBAL_ALL),
    SAME(CURL_OK, CURLE_OK),
    SAME(CURL_NO_HOST, CURLE_COULDNT_RESOLVE_HOST),
    SAME(CURL_DONE, CURLMSG_DONE),
    SAME(CURL_READ_ABORT, CURL_READFUNC_ABORT),
    SAME(CURL_READABLE, CURL_WAIT_POLLIN),
    SAME(CURL_MULTI_CONNECTIONS, CURLMOPT_MAX_TOTAL_CONNECTIONS),
    SAME(CURL_INFO_RESPONSE_CODE, CURLINFO_RESPONSE_CODE),
    SAME(CURL_INFO_PRIVATE, CURLINFO_PRIVATE),
    SAME(sizeof(struct curl_wait), sizeof(struct curl_waitfd)),
    SAME(offsetof(struct curl_wait, revents), offsetof(struct curl_waitfd, revents)),
    SAME(sizeof(struct curl_message), sizeof(CURLMsg)),
    SAME(offsetof(struct curl_message, easy), offsetof(CURLMsg, easy_handle)),
    SAME(offsetof(struct curl_message, data), offsetof(CURLMsg, data)),
    SAME(sizeof(int64_t), sizeof(curl_off_t)),
};

TEST(the_same)
{
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].ours != numbers[i].theirs)
            fail_msg("%s is %ld, libcurl's is %ld", numbers[i].name, numbers[i].ours, numbers[i].theirs);
}
