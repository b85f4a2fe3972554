/* Uses libkops as a stranger would: nothing but the installed header and library. */
#include <stdio.h>
#include <string.h>

#include <kops/kops.h>

int main(void)
{
    struct kops_connect_options options = {.socket = "/nonexistent/kopsd.sock"};
    struct kops_tensor t = kops_matrix(NULL, KOPS_F64, 3, 4);
    struct kops_error error;
    kops_client *client = NULL;

    if (kops_connect(&options, &client, &error) != KOPS_ERR_CONNECT_FAILED || client)
        return 1;
    if (!strstr(error.message, "/nonexistent/kopsd.sock") || kops_tensor_count(&t) != 12)
        return 2;
    printf("libkops %s: %s\n", kops_version(), error.message);
    return 0;
}
